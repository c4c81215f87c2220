"""API keys in a file: the keys that it holds now are taken, in whatever way it was replaced."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from pydantic import SecretStr

from embedserve_runtime.api.api_keys import ApiKeys
from embedserve_runtime.api.key_file import read_key_file
from embedserve_runtime.api.watched_file import POLL_INTERVAL_SECONDS
from embedserve_runtime.errors import (
    ApiKeysMissing,
    ConfigError,
    EmbedserveError,
    RouteForbidden,
    Unauthorized,
)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def is_taken(keys: ApiKeys, key: str) -> bool:
    try:
        keys.check({b"authorization": f"Bearer {key}".encode()}, "/embed")
    except Unauthorized:
        return False
    return True


def swap_link(folder: Path, content: str) -> None:
    """Write as the kubelet updates a mounted Secret: a link to a folder is replaced by one to a new folder."""
    new = folder / f"..{content.strip()}"
    new.mkdir()
    (new / "api-keys").write_text(content)
    (folder / "next").symlink_to(new.name)
    (folder / "next").replace(folder / "..data")
    if not (folder / "api-keys").is_symlink():
        (folder / "api-keys").symlink_to("..data/api-keys")


def write_in_place(folder: Path, content: str) -> None:
    (folder / "api-keys").write_text(content)


@pytest.mark.parametrize("write", [swap_link, write_in_place], ids=["as the kubelet does", "in place"])
def test_a_key_that_was_replaced_is_refused_and_the_new_one_is_taken(
    tmp_path: Path, write: Callable[[Path, str], None]
) -> None:
    write(tmp_path, "old-key\n")
    clock = Clock()
    keys = ApiKeys(file=tmp_path / "api-keys", clock=clock)
    assert (is_taken(keys, "old-key"), is_taken(keys, "new-key")) == (True, False)
    write(tmp_path, "new-key-1, new-key-2\n")
    clock.now += POLL_INTERVAL_SECONDS
    assert [is_taken(keys, key) for key in ("old-key", "new-key-1", "new-key-2")] == [False, True, True]


def test_a_file_rewritten_in_place_with_the_size_and_time_that_it_had_is_read_again(tmp_path: Path) -> None:
    file, clock = tmp_path / "api-keys", Clock()
    file.write_text("old-key")
    keys = ApiKeys(file=file, clock=clock)
    assert is_taken(keys, "old-key")
    former = file.stat()
    while file.stat().st_ctime_ns == former.st_ctime_ns:  # the clock of the file system is coarse
        file.write_text("new-key")
        os.utime(file, ns=(former.st_atime_ns, former.st_mtime_ns))
    clock.now += POLL_INTERVAL_SECONDS
    assert (is_taken(keys, "old-key"), is_taken(keys, "new-key")) == (False, True)


@pytest.mark.parametrize("content", [None, "", "key with\x07bell", b"\xff\xfe"], ids=str)
def test_a_file_that_holds_no_keys_any_more_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str | bytes | None
) -> None:
    file, clock = tmp_path / "api-keys", Clock()
    file.write_text("marked-key")
    keys = ApiKeys(file=file, clock=clock)
    assert is_taken(keys, "marked-key")
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            clock.now += POLL_INTERVAL_SECONDS
            assert is_taken(keys, "marked-key")
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1, "it is said once"
    assert "bell" not in caplog.text


def test_keys_of_the_settings_are_taken_beside_those_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "api-keys").write_text("from-file")
    keys = ApiKeys([SecretStr("from-settings")], tmp_path / "api-keys")
    assert is_taken(keys, "from-settings")
    assert is_taken(keys, "from-file")
    assert not is_taken(keys, "")


def test_a_key_of_the_settings_is_as_restricted_as_the_file_says(tmp_path: Path) -> None:
    (tmp_path / "api-keys").write_text("keys: [{name: search, key: twice-named-key, routes: [/rerank]}]")
    keys = ApiKeys([SecretStr("twice-named-key")], tmp_path / "api-keys")
    with pytest.raises(RouteForbidden):
        keys.check({b"authorization": b"Bearer twice-named-key"}, "/embed")


def test_a_key_for_another_path_of_a_route_is_for_the_route(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("keys: [{name: search, key: alias-key, routes: [/embeddings]}]")
    assert check_at(tmp_path / "keys", "alias-key", "/v1/embeddings") == "search"


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("", "an API key is needed"),
        ("Bearer ", "an API key is needed"),
        ("Basic good-key", "an API key is needed"),
        ("Bearer wrong-key", "is none that this server accepts"),
    ],
)
def test_no_key_and_a_wrong_one_are_told_apart(header: str, message: str) -> None:
    with pytest.raises(Unauthorized, match=message) as refused:
        ApiKeys([SecretStr("good-key")]).check({b"authorization": header.encode()}, "/embed")
    assert "-key" not in refused.value.message


def test_with_a_file_that_is_not_there_nobody_is_let_in(tmp_path: Path) -> None:
    keys = ApiKeys(file=tmp_path / "api-keys")
    assert keys
    with pytest.raises(Unauthorized):
        keys.check({}, "/embed")


@pytest.mark.parametrize(
    ("content", "error", "retryable"),
    [
        pytest.param(None, ApiKeysMissing, True, id="no file"),
        pytest.param(b" \n", ApiKeysMissing, True, id="an empty file"),
        pytest.param(b"fine,marked-\x07", ConfigError, False, id="a control character"),
        pytest.param(b"\xff\xfemarked", ConfigError, False, id="not text"),
    ],
)
def test_a_server_that_could_let_nobody_in_does_not_start(
    tmp_path: Path, content: bytes | None, error: type[EmbedserveError], retryable: bool
) -> None:
    file = tmp_path / "api-keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(error) as caught:
        read_key_file(file)
    assert str(file) in caught.value.message
    assert "marked" not in caught.value.message
    assert caught.value.retryable is retryable


DOCUMENT = """
keys:
- name: search
  key: search-key
- name: indexer
  key: indexer-key
  routes: [/embed, "/v1/*", /tei.v1.Embed]
  expires: 2030-01-01T00:00:00Z
  tokens_per_minute: 1000
"""


def check_at(file: Path, key: str, route: str, now: str = "2029-12-31T23:59:59+00:00") -> str | None:
    """Return the name of the key, or the error's reason."""
    keys = ApiKeys(file=file, now=lambda: datetime.fromisoformat(now))
    try:
        key_name = keys.check({b"authorization": f"Bearer {key}".encode()}, route)
    except EmbedserveError as error:
        return error.reason
    return None if key_name is None else key_name[0].name


@pytest.mark.parametrize(
    ("key", "route", "now", "want"),
    [
        ("search-key", "/rerank", "2029-01-01T00:00:00+00:00", "search"),
        ("indexer-key", "/embed", "2029-12-31T23:59:59+00:00", "indexer"),
        ("indexer-key", "/v1/embeddings", "2029-12-31T23:59:59+00:00", "indexer"),
        ("indexer-key", "/tei.v1.Embed", "2029-12-31T23:59:59+00:00", "indexer"),
        ("indexer-key", "/rerank", "2029-12-31T23:59:59+00:00", "RouteForbidden"),
        ("indexer-key", "/embed_all", "2029-12-31T23:59:59+00:00", "RouteForbidden"),
        ("indexer-key", "/embed", "2030-01-01T00:00:00+00:00", "Unauthorized"),
        ("search-key", "/embed", "2099-01-01T00:00:00+00:00", "search"),
        ("another-key", "/embed", "2029-01-01T00:00:00+00:00", "Unauthorized"),
    ],
)
def test_a_document_says_which_key_may_use_which_route_until_when(
    tmp_path: Path, key: str, route: str, now: str, want: str
) -> None:
    (tmp_path / "keys").write_text(DOCUMENT)
    assert check_at(tmp_path / "keys", key, route, now) == want


def read_refusal(folder: Path, content: str) -> str:
    """Return the message with which a key file of this content is refused."""
    (folder / "keys").write_text(content)
    with pytest.raises(ConfigError) as caught:
        read_key_file(folder / "keys")
    return caught.value.message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("keys: [{name: a}]", "keys.0.key: Field required"),
        ("keys: [{key: marked-key}]", "keys.0.name: Field required"),
        ("keys: [{name: a b, key: marked-key}]", "keys.0.name: must begin with a letter or digit"),
        ("keys: [{name: a, key: marked-key, scopes: [x]}]", "keys.0: has a field that is none of name"),
        ("marked-key: search", "content: has a field that is none of keys"),
        ("keys:\n- marked-key: search", "keys.0: has a field that is none of name, key, routes"),
        ("keys:\n  marked-key: search", "keys: must be a list of 1 to 2000 keys"),
        ("keys: [marked-key]", "keys.0: must be a mapping with name, key"),
        ("keys: []", "keys: must be a list of 1 to 2000 keys"),
        ("keys:", "keys: must be a list of 1 to 2000 keys"),
        (
            "keys: [{name: a, key: marked-key, routes: [embed]}]",
            "keys.0.routes.0: is no path or service",
        ),
        (
            "keys: [{name: a, key: marked-key, routes: []}]",
            "keys.0.routes: must be a list of paths, at least one",
        ),
        (
            "keys: [{name: a, key: marked-key, tokens_per_minute: 0}]",
            "tokens_per_minute: Input should be greater",
        ),
        (
            "keys: [{name: a, key: marked-key, expires: soon}]",
            "keys.0.expires: must be a day",
        ),
        ("keys: [{name: a, key: k, expires: marked-key}]", "keys.0.expires: must be a day"),
        ("keys: [{name: a, key: 'marked-key with blank'}]", "keys.0.key: cannot be sent in an HTTP header"),
        ("keys: [{name: a, key: marked-key}, {name: a, key: k2}]", "several keys named 'a'"),
        ("keys: [{name: a, key: marked-key}, {name: b, key: marked-key}]", "one key under two names"),
        ("keys: [{name: a, key: marked-key}", "is not valid YAML, or has a key twice in line"),
        ("keys: [{name: a, key: 'marked-key}]", "is not valid YAML, or has a key twice in line 1, column"),
        ("keys: [{name: a, key: marked-key, key: other}]", "or has a key twice in line 1, column"),
        ("keys: [{name: a, key: k1}]\nkeys: [{name: b, key: k2}]", "or has a key twice in line 1, column"),
        ("keys: [{name: a, key: marked-key, expires: 0000-01-01}]", "a value that cannot be"),
        ("keys: [{name: a, key: marked-key, expires: 20270101}]", "keys.0.expires: must be a day"),
        ("keys: [{name: a, key: marked-key, requests_per_minute: true}]", "Input should be a valid integer"),
        (
            f"keys: [{{name: a, key: marked-key, tokens_per_minute: 1{'0' * 400}}}]",
            "tokens_per_minute: Input should",
        ),
        ("keys: [{name: a, key: marked-key, routes: [/embd]}]", "routes.0: is no path or service"),
        ("keys: [{name: anonymous, key: marked-key}]", "must not be anonymous"),
        ("version: 1\nkeys: [{name: a, key: marked-key}]", "content: has a field that is none of keys"),
        ("Keys: [{name: a, key: marked-key}]", "content: has a field that is none of keys"),
        ("- {name: a, key: marked-key}", "a mapping with `keys`"),
        ("# nothing", "a mapping with `keys`"),
        ("marked-key\nkeys:\n- {name: a, key: k}", "is not valid YAML"),
        ("[" * 5_000, "is not valid YAML"),
        ("x: &a [1]\ny: *a", "content: has a field that is none of keys"),
    ],
)
def test_a_document_that_is_wrong_is_refused_with_the_field_and_without_the_key(
    tmp_path: Path, content: str, message: str
) -> None:
    refusal = read_refusal(tmp_path, content)
    assert message in refusal
    assert "marked-key" not in refusal
    assert "Tuple" not in refusal


@pytest.mark.parametrize("expires", ["2030-01-01", "2030-01-01T00:00:00", "2030-01-01T01:00:00+01:00"])
def test_a_key_ends_at_the_beginning_of_a_day_of_utc_or_at_a_moment(tmp_path: Path, expires: str) -> None:
    (tmp_path / "keys").write_text(f"keys: [{{name: a, key: marked-key, expires: {expires}}}]")
    assert check_at(tmp_path / "keys", "marked-key", "/embed", "2029-12-31T23:59:59+00:00") == "a"
    assert check_at(tmp_path / "keys", "marked-key", "/embed", "2030-01-01T00:00:00+00:00") == "Unauthorized"


@pytest.mark.parametrize(
    "start", ["# rotated today\n", "---\n", "\ufeff", "\n\n", "%YAML 1.1\n---\n"], ids=repr
)
def test_a_document_may_begin_with_a_comment_or_a_mark(tmp_path: Path, start: str) -> None:
    (tmp_path / "keys").write_text(start + DOCUMENT)
    assert check_at(tmp_path / "keys", "indexer-key", "/rerank") == "RouteForbidden"
    for word in ("#", "-", "keys:", "search", "rotated", "---"):
        assert check_at(tmp_path / "keys", word, "/embed") == "Unauthorized"


def test_a_file_that_was_cut_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("key-1\n" * 200_000)
    with pytest.raises(ConfigError, match="holds more than 1048576 bytes"):
        read_key_file(tmp_path / "keys")


@pytest.mark.parametrize(
    ("content", "want_message"),
    [
        ("Bearer sk-marked", "is the name of an authentication scheme"),
        ("sk-fine, bearer sk-marked", "is the name of an authentication scheme"),
        ('"sk-marked"', "begins or ends with a quote"),
        ("'sk-marked', 'sk-other'", "begins or ends with a quote"),
        ("keys: [{name: a, key: '\"sk-marked\"'}]", "begins or ends with a quote"),
        ("keys: [{name: a, key: Bearer}]", "is the name of an authentication scheme"),
    ],
)
def test_a_header_or_a_quoted_value_in_the_place_of_bare_keys_is_refused_unquoted(
    tmp_path: Path, content: str, want_message: str
) -> None:
    refusal = read_refusal(tmp_path, content)
    assert want_message in refusal
    assert "marked" not in refusal
