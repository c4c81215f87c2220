"""API keys in a file: the keys that it holds now are taken, in whatever way it was replaced."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import SecretStr

from embedserve_runtime.api.api_keys import LOOK_SECONDS, ApiKeys, read_key_file
from embedserve_runtime.errors import ApiKeysMissing, ConfigError, EmbedserveError, Unauthorized


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def is_taken(keys: ApiKeys, key: str) -> bool:
    try:
        keys.check({b"authorization": f"Bearer {key}".encode()})
    except Unauthorized:
        return False
    return True


def swap_link(folder: Path, content: str) -> None:
    """As the kubelet updates a mounted Secret: a link to a folder is replaced by one to a new folder."""
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
    clock.now += LOOK_SECONDS
    assert [is_taken(keys, key) for key in ("old-key", "new-key-1", "new-key-2")] == [False, True, True]


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
            clock.now += LOOK_SECONDS
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


def test_with_a_file_that_is_not_there_nobody_is_let_in(tmp_path: Path) -> None:
    keys = ApiKeys(file=tmp_path / "api-keys")
    assert keys
    with pytest.raises(Unauthorized):
        keys.check({})


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
