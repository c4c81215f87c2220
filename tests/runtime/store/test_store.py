"""Folders of the store: published as a whole, by several writers, on volumes with and without links; what gc leaves."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from embedserve_runtime.commands.cli import main
from embedserve_runtime.errors import VolumeError, VolumeFull, VolumePermissionDenied, VolumeReadOnly
from embedserve_runtime.store import (
    FetchedFile,
    ModelName,
    ModelReference,
    Store,
    StoredFile,
    find_folder,
    publish_folder,
)
from embedserve_runtime.store.checking import find_damage, remove_damaged
from embedserve_runtime.store.garbage_collector import (
    RetentionPolicy,
    find_garbage,
    list_contents,
    remove_garbage,
)
from embedserve_runtime.store.staging import find_live_writer, open_staging, remove_abandoned_folders
from embedserve_runtime.store.volume import volume_error
from embedserve_runtime.store.writers import SILENT_AFTER_S, Writer

FILES = {"config.json": b'{"a": 1}', "weights/model.safetensors": b"w" * 5000}
NAME = ModelName(source="lab/model", revision="main")
FOREVER = 10**9
LATER = time.time() + 3600


def add(store: Store, files: dict[str, bytes] = FILES, name: ModelName = NAME) -> ModelReference:
    """Add a model as a fetch does it, with the download left out."""
    with open_staging(store.root, name.key[:24]) as staging:
        arrived = []
        for path, content in files.items():
            file = staging.files / "content" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            stored = StoredFile(path=path, size=len(content), sha256=hashlib.sha256(content).hexdigest())
            arrived.append(FetchedFile(stored, file))
        return store.add(staging, arrived, name, "c0ffee", "apache-2.0")


def content_of(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def damage(path: Path, content: bytes) -> None:
    """Write into a file that is read-only, under all its names."""
    path.chmod(0o644)
    path.write_bytes(content)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_a_model_is_found_by_its_name_with_its_files_and_what_they_are(store: Store) -> None:
    reference = add(store)
    assert store.find(NAME) == reference
    assert content_of(store.get_folder(reference.digest)) == FILES
    manifest = store.read_manifest(reference.digest)
    assert (manifest.source, manifest.commit, manifest.licence) == ("lab/model", "c0ffee", "apache-2.0")
    assert {file.path: file.size for file in manifest.files} == {name: len(FILES[name]) for name in FILES}
    assert not list((store.root / "staging").iterdir())


@pytest.mark.parametrize(
    "changes",
    [{"revision": "next"}, {"variant": "onnx/model.onnx"}, {"refresh": "again"}, {"source": "lab/other"}],
    ids=str,
)
def test_a_name_differs_by_all_that_decides_what_is_fetched(store: Store, changes: dict[str, str]) -> None:
    add(store)
    assert store.find(NAME.model_copy(update=changes)) is None


def test_models_share_the_files_that_they_have_in_common(store: Store) -> None:
    first = add(store)
    second = add(store, FILES | {"config.json": b"{}"}, NAME.model_copy(update={"revision": "next"}))
    weights = "weights/model.safetensors"
    inodes = {(store.get_folder(each.digest) / weights).stat().st_ino for each in (first, second)}
    assert len(inodes) == 1


@pytest.mark.parametrize(
    "how_damaged", ["shorter by a byte", "longer by a byte", "gone", "manifest gone", "manifest cut"]
)
def test_a_damaged_model_is_not_found_and_is_made_anew(store: Store, how_damaged: str) -> None:
    reference = add(store)
    weights = store.get_folder(reference.digest) / "weights/model.safetensors"
    manifest = weights.parents[2] / "manifest.json"
    match how_damaged:
        case "shorter by a byte":
            damage(weights, weights.read_bytes()[:-1])
        case "longer by a byte":
            damage(weights, weights.read_bytes() + b"w")
        case "gone":
            weights.unlink()
        case "manifest gone":
            manifest.unlink()
        case _:
            damage(manifest, manifest.read_bytes()[:40])
    assert store.find(NAME) is None
    assert store.find_damage(NAME)
    assert add(store) == reference
    assert store.find(NAME) == reference
    assert content_of(store.get_folder(reference.digest)) == FILES


def test_a_byte_that_has_changed_is_seen_by_verify_and_what_it_removes_is_made_anew(store: Store) -> None:
    reference = add(store)
    assert list(find_damage(store.root)) == []
    damage(store.get_folder(reference.digest) / "weights/model.safetensors", b"w" * 4999 + b"x")
    assert store.find(NAME) is not None, "sizes alone do not show it"
    damaged = list(find_damage(store.root))
    kinds = sorted(each.path.partition("/")[0] for each in damaged)
    assert kinds == ["blobs", "models"]
    assert "weights/model.safetensors has SHA-256" in " ".join(each.problem for each in damaged)
    remove_damaged(store.root, damaged)
    assert store.find(NAME) is None
    add(store)
    assert list(find_damage(store.root)) == []


def test_a_good_file_takes_the_place_of_a_damaged_one_of_the_same_size(store: Store) -> None:
    add(store)
    blob = store.root / "blobs" / hashlib.sha256(FILES["config.json"]).hexdigest()
    damage(blob, b'{"a": 2}')
    second = add(store, {"config.json": FILES["config.json"]}, NAME.model_copy(update={"revision": "next"}))
    assert content_of(store.get_folder(second.digest)) == {"config.json": FILES["config.json"]}


@pytest.fixture
def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without hard links, as object stores and SMB are mounted."""

    def link(*_: object, **__: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "link", link)


@pytest.mark.usefixtures("no_links")
def test_without_links_a_model_takes_its_room_once(store: Store) -> None:
    reference = add(store)
    assert content_of(store.get_folder(reference.digest)) == FILES
    assert content_of(store.root / "blobs") == {}
    assert list(find_damage(store.root)) == []


def test_a_store_is_read_where_it_may_not_be_written(store: Store) -> None:
    reference = add(store)
    before = {path: path.stat().st_mtime_ns for path in store.root.rglob("*")}
    assert Store(store.root).find(NAME) == reference
    assert find_folder(store.root, "models", "nothing") is None
    assert {path: path.stat().st_mtime_ns for path in store.root.rglob("*")} == before


def test_a_published_folder_has_what_was_filled_in_and_is_filled_once(tmp_path: Path) -> None:
    filled = []

    def fill(folder: Path) -> None:
        filled.append(folder)
        (folder / "model.onnx").write_bytes(b"graph")

    folder = publish_folder(tmp_path, "artifacts", "abc", fill)
    assert folder == tmp_path / "artifacts" / "abc" == publish_folder(tmp_path, "artifacts", "abc", fill)
    assert (folder / "model.onnx").read_bytes() == b"graph"
    assert len(filled) == 1


def test_a_failure_while_filling_leaves_nothing(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "model.onnx").write_bytes(b"half")
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        publish_folder(tmp_path, "artifacts", "abc", fill)
    assert find_folder(tmp_path, "artifacts", "abc") is None
    assert content_of(tmp_path) == {}


def test_an_onnx_file_cut_by_one_byte_is_noticed_and_made_anew(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "model.onnx").write_bytes(b"graph")

    folder = publish_folder(tmp_path, "artifacts", "abc", fill)
    damage(folder / "model.onnx", b"grap")
    assert find_folder(tmp_path, "artifacts", "abc") is None
    publish_folder(tmp_path, "artifacts", "abc", fill)
    assert (folder / "model.onnx").read_bytes() == b"graph"


def test_of_many_writers_of_one_folder_each_has_a_whole_one(tmp_path: Path) -> None:
    together = threading.Barrier(6)
    contents: list[bytes] = []

    def fill(folder: Path) -> None:
        (folder / "model.onnx").write_bytes(b"graph" * 1000)
        together.wait()

    def write() -> None:
        contents.append((publish_folder(tmp_path, "artifacts", "abc", fill) / "model.onnx").read_bytes())

    threads = [threading.Thread(target=write) for _ in range(together.parties)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert contents == [b"graph" * 1000] * together.parties
    assert not list((tmp_path / "staging").iterdir())


KILLED = """
import os, signal, sys
from pathlib import Path
from embedserve_runtime.store.staging import open_staging
with open_staging(Path(sys.argv[1]), "key") as staging:
    (staging.files / "half").write_bytes(b"half of it")
    (staging.folder / "building").mkdir()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_writer_left_is_taken_over_by_the_next_one_of_the_same_thing(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert find_live_writer(tmp_path, "key") is None
    with open_staging(tmp_path, "other"):
        assert len(list((tmp_path / "staging").iterdir())) == 2, "another thing's leftovers stay for an hour"
    with open_staging(tmp_path, "key") as staging:
        assert (staging.files / "half").read_bytes() == b"half of it"
        assert len(list((tmp_path / "staging").iterdir())) == 1
    assert not list((tmp_path / "staging").iterdir())


def test_a_live_writer_is_never_swept(tmp_path: Path) -> None:
    with open_staging(tmp_path, "key") as staging:
        assert remove_abandoned_folders(tmp_path, 0.0) == []
        assert find_live_writer(tmp_path, "key") == staging.folder


HERE = Writer.current()
LIVES: dict[str, tuple[Writer, float, bool]] = {
    "this process": (HERE, FOREVER, False),
    "its PID has another process now": (HERE.model_copy(update={"started": "1"}), 0.0, True),
    "no such process": (HERE.model_copy(update={"pid": 2**22 + 1}), 0.0, True),
    "it said that it ended": (HERE.model_copy(update={"released": True}), 0.0, True),
    "another container, heard of": (HERE.model_copy(update={"namespace": "pid:[1]"}), 1.0, False),
    "another container, silent": (HERE.model_copy(update={"namespace": "pid:[1]"}), SILENT_AFTER_S + 1, True),
    "another node, heard of": (HERE.model_copy(update={"boot": "b", "pid": 2**22 + 1}), 1.0, False),
    "another node, silent": (HERE.model_copy(update={"boot": "b"}), SILENT_AFTER_S + 1, True),
}


@pytest.mark.parametrize(("writer", "silent_s", "want"), LIVES.values(), ids=LIVES.keys())
def test_a_writer_is_dead_by_the_process_table_where_it_can_be_seen_and_else_by_silence(
    writer: Writer, silent_s: float, want: bool
) -> None:
    assert writer.is_dead(silent_s) is want


VOLUME_ERRORS: dict[str, tuple[int, type[VolumeError], str]] = {
    "full": (errno.ENOSPC, VolumeFull, "is full.*MB are free.*store gc"),
    "quota": (errno.EDQUOT, VolumeFull, "is full"),
    "read-only": (errno.EROFS, VolumeReadOnly, "mounted read-only and the model is not in it"),
    "permission": (errno.EACCES, VolumePermissionDenied, "may not be written by user .*fsGroup"),
    "other": (errno.EIO, VolumeError, "cannot be used"),
}


@pytest.mark.parametrize(("number", "want", "message"), VOLUME_ERRORS.values(), ids=VOLUME_ERRORS.keys())
def test_errors_of_a_volume_say_what_to_do(
    tmp_path: Path, number: int, want: type[VolumeError], message: str
) -> None:
    error = volume_error(tmp_path, OSError(number, os.strerror(number)))
    assert type(error) is want
    with pytest.raises(want, match=message):
        raise error


OTHER = ModelName(source="lab/other", revision="v1")


@pytest.fixture
def full(store: Store) -> dict[str, str]:
    """Digests by name: two models, one of them without a name, and an artifact of each."""
    digests = {"kept": add(store).digest, "other": add(store, {"config.json": b"{}"}, OTHER).digest}
    digests["unnamed"] = add(store, {"config.json": b"[]"}, OTHER).digest
    (store.root / "refs" / f"{OTHER.key}.json").unlink()
    with open_staging(store.root, "again") as staging:
        store.write_reference(staging, ModelReference(name=OTHER, commit="c0ffee", digest=digests["other"]))

    def fill(folder: Path) -> None:
        (folder / "model.onnx").write_bytes(b"graph")

    for name in ("kept", "unnamed"):
        publish_folder(store.root, "artifacts", f"of-{name}", fill, made_from=f"sha256:{digests[name]}")
    return digests


GARBAGE: dict[str, tuple[RetentionPolicy, set[str]]] = {
    "young things stay": (RetentionPolicy([], references=True, younger_than_s=FOREVER), set()),
    "what has no name goes, with its artifact": (
        RetentionPolicy([], references=True, younger_than_s=60),
        {"unnamed", "of-unnamed"},
    ),
    "what is kept by its digest stays": (
        RetentionPolicy(["sha256:{unnamed}"], references=True, younger_than_s=60),
        set(),
    ),
    "an artifact kept by its name stays without its model": (
        RetentionPolicy(["of-unnamed"], references=True, younger_than_s=60),
        {"unnamed"},
    ),
    "only what is named": (
        RetentionPolicy(["lab/model"], references=False, younger_than_s=60),
        {"other", "unnamed", "of-unnamed"},
    ),
    "only what is named at its revision": (
        RetentionPolicy(["lab/other@v1", "lab/model@next"], references=False, younger_than_s=60),
        {"kept", "of-kept", "unnamed", "of-unnamed"},
    ),
    "nothing is named": (
        RetentionPolicy([], references=False, younger_than_s=60),
        {"kept", "of-kept", "other", "unnamed", "of-unnamed"},
    ),
}


@pytest.mark.parametrize(("policy", "want"), GARBAGE.values(), ids=GARBAGE.keys())
def test_gc_removes_what_nothing_in_use_stands_for(
    store: Store, full: dict[str, str], policy: RetentionPolicy, want: set[str]
) -> None:
    policy = RetentionPolicy(
        [name.format(**full) for name in policy.names], policy.references, policy.younger_than_s
    )
    remove_garbage(store.root, find_garbage(list_contents(store.root, LATER), policy), 0.0)
    remaining = {path.name for kind in ("models", "artifacts") for path in (store.root / kind).iterdir()}
    everything = {*full.values(), "of-kept", "of-unnamed"}
    assert everything - remaining == {full.get(name, name) for name in want}
    assert list(find_damage(store.root)) == []
    for name, model in ((NAME, "kept"), (OTHER, "other")):
        assert (store.find(name) is None) == (model in want)
    needed = {
        file.sha256 for digest in remaining & set(full.values()) for file in store.read_manifest(digest).files
    }
    assert {path.name for path in (store.root / "blobs").iterdir()} == needed


def test_gc_takes_names_from_a_file_and_removes_nothing_where_it_cannot_be_read(
    store: Store, full: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "in-use"
    command = ["store", "gc", "--store", str(store.root), "--only-keep", "--older-than", "0s"]
    assert main([*command, "--keep-from", str(listed)]) == os.EX_CONFIG
    assert "the names to keep" in capsys.readouterr().err
    assert store.find(NAME) is not None
    listed.write_text(f"sha256:{full['kept']}\n")
    assert main([*command, "--keep-from", str(listed)]) == 0
    assert store.find(NAME) is not None
    assert store.find(OTHER) is None


def test_gc_leaves_a_file_that_a_live_writer_has_just_linked(store: Store) -> None:
    add(store)
    policy = RetentionPolicy([], references=False, younger_than_s=60)
    with open_staging(store.root, "live") as staging:
        blob = next(iter((store.root / "blobs").iterdir()))
        os.link(blob, staging.files / "mine")
        remove_garbage(store.root, find_garbage(list_contents(store.root, LATER), policy), 0.0)
        assert [path.name for path in (store.root / "blobs").iterdir()] == [blob.name]
        assert (staging.files / "mine").exists()
