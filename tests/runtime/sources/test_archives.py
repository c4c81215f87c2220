"""Models from archives at a URL: what is read of them, and what is refused before a byte of it is used."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.hub import Fault, FaultKind, HubServer
from embedserve_runtime.config import ModelSettings, load_config
from embedserve_runtime.errors import ConfigError, EmbedserveError, HashMismatch, ModelInvalid, ModelNotFound
from tests.runtime.sources.fetch_kit import (
    REPOSITORY,
    WEIGHTS,
    assert_fetched,
    fetch,
    is_good,
    write_repository,
)

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


@pytest.fixture
def files(tmp_path: Path) -> dict[str, bytes]:
    return write_repository(tmp_path / "repositories", 50_000)


@pytest.fixture
def hub(tmp_path: Path, files: dict[str, bytes]) -> Iterator[HubServer]:
    with HubServer(tmp_path / "repositories") as server:
        yield server


def tar_of(entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in entries.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def zip_of(entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def served(hub: HubServer, name: str, content: bytes, store: Path) -> ModelSettings:
    """Settings for an archive that the server has."""
    (hub.hub.repositories.root / REPOSITORY / "main" / name).write_bytes(content)
    url = f"{hub.url}/{REPOSITORY}/resolve/main/{name}"
    return ModelSettings(source=url, sha256=hashlib.sha256(content).hexdigest(), store=store)


KINDS: dict[str, Callable[[dict[str, bytes]], bytes]] = {
    "model.tar": tar_of,
    "model.tar.gz": lambda entries: gzip.compress(tar_of(entries)),
    "model.tgz": lambda entries: gzip.compress(tar_of(entries)),
    "model.tar.xz": lambda entries: lzma.compress(tar_of(entries), preset=0),
    "model.tar.zst": lambda entries: zstd.compress(tar_of(entries)),
    "model.zip": zip_of,
}


@pytest.mark.parametrize(
    ("name", "top"),
    [*((name, "minilm/") for name in KINDS), ("model.tar", ""), ("model.zip", ""), ("model.tar", "./")],
)
def test_what_a_model_needs_is_read_from_each_kind_of_archive(
    hub: HubServer, tmp_path: Path, files: dict[str, bytes], name: str, top: str
) -> None:
    entries = {f"{top}{path}": content for path, content in {**files, "NOTES.md": b"no"}.items()}
    settings = served(hub, name, KINDS[name](entries), tmp_path / "store")
    fetch(settings)
    assert_fetched(settings, files)


def test_the_query_of_a_url_is_not_shown_and_another_signature_is_no_other_model(
    hub: HubServer, tmp_path: Path, files: dict[str, bytes]
) -> None:
    signed = served(hub, "model.tar", tar_of(files), tmp_path / "store")
    signature = "X-Amz-Signature=" + 8 * "PLANTED"

    def with_query(query: str, name: str = "model.tar") -> ModelSettings:
        return signed.model_copy(update={"source": f"{signed.source.replace('model.tar', name)}?{query}"})

    with pytest.raises(ModelNotFound) as caught:
        fetch(with_query(signature, "none.tar").model_copy(update={"store": tmp_path / "other"}))
    assert "PLANTED" not in str(caught.value)
    assert with_query(signature).source_name == signed.source
    assert [secret.get_secret_value() for secret in with_query(signature).url_secrets] == [8 * "PLANTED"]
    assert with_query("part=2").url_secrets == ()
    fetch(with_query(signature))
    assert_fetched(signed, files)
    (hub.hub.repositories.root / REPOSITORY / "main" / "model.tar").unlink()
    fetch(with_query("X-Amz-Signature=another"))


def test_an_archive_with_another_hash_is_not_unpacked(
    hub: HubServer, tmp_path: Path, files: dict[str, bytes]
) -> None:
    settings = served(hub, "model.tar", tar_of(files), tmp_path / "store")
    (hub.hub.repositories.root / REPOSITORY / "main" / "model.tar").write_bytes(
        tar_of({**files, WEIGHTS: b"other"})
    )
    with pytest.raises(
        HashMismatch, match=f"model.tar is not what it should be.*should be sha256 {settings.sha256}"
    ):
        fetch(settings)
    assert not is_good(settings, files)


def test_a_byte_that_is_wrong_once_is_fetched_again(
    hub: HubServer, tmp_path: Path, files: dict[str, bytes]
) -> None:
    settings = served(hub, "model.tar", tar_of(files), tmp_path / "store")
    hub.faults.add(Fault(FaultKind.CORRUPT, amount=1000, times=1))
    fetch(settings)
    assert_fetched(settings, files)


def link_in_tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        entry = tarfile.TarInfo("config.json")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(entry)
    return buffer.getvalue()


def link_in_zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        entry = zipfile.ZipInfo("config.json")
        entry.external_attr = 0o120777 << 16
        archive.writestr(entry, "/etc/passwd")
    return buffer.getvalue()


REFUSED: dict[str, tuple[str, bytes, type[EmbedserveError], str]] = {
    "path above": (
        "a.tar",
        tar_of({"../config.json": b"{}"}),
        ModelInvalid,
        "leads out of the model's folder",
    ),
    "path above, in the middle": ("a.tar", tar_of({"x/../../y": b""}), ModelInvalid, "leads out"),
    "absolute path": ("a.tar", tar_of({"/etc/config.json": b"{}"}), ModelInvalid, "leads out"),
    "path above in a zip": ("a.zip", zip_of({"../config.json": b"{}"}), ModelInvalid, "leads out"),
    "link": ("a.tar", link_in_tar(), ModelInvalid, "config.json is a link or a device"),
    "link in a zip": ("a.zip", link_in_zip(), ModelInvalid, "config.json is a link or a device"),
    "not an archive": ("a.tar.gz", b"<html>sign in</html>", ModelInvalid, "cannot be read as its name says"),
    "not a zip": ("a.zip", b"<html>sign in</html>", ModelInvalid, "cannot be read as its name says"),
    "cut": ("a.tar.zst", zstd.compress(tar_of({"config.json": b"{}"}))[:-9], ModelInvalid, "cannot be read"),
    "no model": ("a.tar", tar_of({"README.md": b""}), ModelNotFound, "holds no model files"),
    "another kind of file": ("a.rar", b"Rar!", ModelInvalid, "its name must end in .tar, .tar.gz"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_model_in_an_archive_is_refused(hub: HubServer, tmp_path: Path, case: str) -> None:
    name, content, want, message = REFUSED[case]
    settings = served(hub, name, content, tmp_path / "store")
    with pytest.raises(want, match=message):
        fetch(settings)
    assert not is_good(settings, {})


def test_an_archive_that_is_not_there_is_named(hub: HubServer, tmp_path: Path) -> None:
    source = f"{hub.url}/{REPOSITORY}/resolve/main/gone.tar"
    with pytest.raises(ModelNotFound, match=r"gone.tar does not exist: HTTP 404"):
        fetch(ModelSettings(source=source, sha256="0" * 64, store=tmp_path / "store"))


SETTINGS: dict[str, tuple[dict[str, str], str]] = {
    "no hash": ({"source": "https://host/a.tar"}, "model.sha256 is missing"),
    "a hash that is none": ({"source": "https://host/a.tar", "sha256": "abc"}, "model.sha256"),
    "a hash for a repository": ({"source": "lab/a", "sha256": "0" * 64}, "belongs to an https:// source"),
    "an S3 server for a repository": (
        {"source": "lab/a", "s3_endpoint": "http://s3"},
        "belongs to an s3:// source",
    ),
}


@pytest.mark.parametrize(("model", "message"), SETTINGS.values(), ids=SETTINGS.keys())
def test_settings_that_do_not_fit_the_source_stop_the_start(model: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(flags={"model": model})
