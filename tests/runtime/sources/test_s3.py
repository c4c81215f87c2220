"""Models on a real S3 server, which is built once from its Go module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from obstore.store import S3Store

from e2e.cluster.binaries import build_s3
from e2e.cluster.layout import Layout
from e2e.cluster.progress import Progress
from e2e.s3 import KEYS, S3Server
from embedserve_runtime.config import ModelSettings
from embedserve_runtime.errors import EmbedserveError, ModelAccessDenied, ModelNotFound, SourceUnavailable
from embedserve_runtime.sources import fetch_model, partial
from tests.runtime.sources.fetch_kit import (
    QUICK,
    REPOSITORY,
    assert_fetched,
    content_of,
    fetch,
    write_repository,
)

pytestmark = pytest.mark.thorough
SIZE = 7_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    folder = tmp_path_factory.mktemp("s3")
    (folder / "root" / "models").mkdir(parents=True)
    program = build_s3(Layout.of_user(), Progress())
    with S3Server(program, folder / "root", folder / "log") as running:
        yield running


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


def upload(server: S3Server, prefix: str, name: str, content: bytes) -> None:
    store = S3Store(
        "models", prefix=prefix, config={"endpoint": server.url}, client_options={"allow_http": True}
    )
    obstore.put(store, name, content, use_multipart=len(content) > 6_000_000)


@pytest.fixture
def files(server: S3Server, keys: None, tmp_path: Path) -> dict[str, bytes]:
    files = write_repository(tmp_path / "repositories", SIZE)
    for path in (tmp_path / "repositories" / REPOSITORY / "main").rglob("*"):
        if path.is_file():
            name = path.relative_to(tmp_path / "repositories" / REPOSITORY / "main").as_posix()
            upload(server, "team/minilm", name, path.read_bytes())
    return files


@pytest.fixture
def settings(server: S3Server, tmp_path: Path) -> ModelSettings:
    return ModelSettings(source="s3://models/team/minilm", s3_endpoint=server.url, store=tmp_path / "store")


def changed(settings: ModelSettings, **update: object) -> ModelSettings:
    return ModelSettings.model_validate({**settings.model_dump(), **update})


def test_the_files_that_a_model_needs_are_fetched_from_under_a_prefix(
    settings: ModelSettings, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partial, "SEGMENT", 1_000_000)
    fetch(settings)
    assert_fetched(settings, files)


def test_a_changed_object_is_fetched_when_that_is_asked_for(
    settings: ModelSettings, files: dict[str, bytes], server: S3Server
) -> None:
    first = fetch_model(settings, retry_policy=QUICK)
    upload(server, "team/minilm", "tokenizer.json", b"{}")
    assert fetch_model(settings, retry_policy=QUICK) == first
    second = fetch_model(changed(settings, refresh="1"), retry_policy=QUICK)
    assert content_of(second.folder) == files | {"tokenizer.json": b"{}"}
    assert first.revision != second.revision


REFUSED: dict[str, tuple[dict[str, object], dict[str, str], type[EmbedserveError], str]] = {
    "no such bucket": ({"source": "s3://nothing/a"}, {}, ModelNotFound, "s3://nothing/a: NoSuchBucket"),
    "no such prefix": ({"source": "s3://models/nothing"}, {}, ModelNotFound, "has no objects: check"),
    "unknown key": (
        {},
        {"AWS_ACCESS_KEY_ID": "nobody"},
        ModelAccessDenied,
        "may not be listed with these keys",
    ),
    "wrong secret": ({}, {"AWS_SECRET_ACCESS_KEY": "wrong"}, ModelAccessDenied, "SignatureDoesNotMatch"),
    "no server": ({"s3_endpoint": "http://127.0.0.1:9"}, {}, SourceUnavailable, "cannot be listed"),
}


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_fetched_is_named(
    settings: ModelSettings, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    update, env, want, message = REFUSED[case]
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(want, match=message) as caught:
        fetch(changed(settings, **update))
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in str(caught.value)
