"""A folder of the Hub's client library is served as it lies, for example on a volume that a notebook has filled."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from huggingface_hub import snapshot_download

from e2e.hub import HubServer
from embedserve_runtime.config import ModelSettings
from embedserve_runtime.errors import EmbedserveError, ModelFileMissing, ModelNotFound
from embedserve_runtime.model.reading import read_card
from embedserve_runtime.sources import open_model
from tests.support.models import small_minilm

REPO = "lab/minilm"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the real client library caches two revisions of a model, the older one fetched last."""
    root = tmp_path_factory.mktemp("hub")
    for revision in ("main", "v1"):
        small_minilm(root / "repositories" / REPO / revision)
    (root / "repositories" / REPO / "v1" / "README.md").write_text("another commit")
    with HubServer(root / "repositories") as server:
        for revision in ("main", "v1"):
            snapshot_download(REPO, revision=revision, cache_dir=root / "cache", endpoint=server.url)
    return root / "cache"


@pytest.fixture
def folder(cache: Path, tmp_path: Path) -> Path:
    copied = tmp_path / "cache"
    shutil.copytree(cache, copied, symlinks=True)
    cached = copied / "models--lab--minilm"
    for age, ref in enumerate(("v1", "main")):
        os.utime(cached / "refs" / ref, ns=(0, (10 - age) * 10**9))
    return cached


def commit_of(folder: Path, ref: str) -> str:
    return (folder / "refs" / ref).read_text().strip()


def open_folder(folder: Path) -> str:
    """Open the model in a folder and describe it; returns its revision."""
    settings = ModelSettings(source=str(folder))
    located = open_model(settings)
    assert read_card(located.folder, located.revision, settings).vector_space
    assert located.size > 0
    return located.revision


def test_the_commit_of_the_latest_ref_is_served(folder: Path) -> None:
    assert commit_of(folder, "main") != commit_of(folder, "v1")
    assert open_folder(folder) == commit_of(folder, "v1")
    os.utime(folder / "refs" / "main", ns=(0, 20 * 10**9))
    assert open_folder(folder) == commit_of(folder, "main")


def test_without_refs_the_only_snapshot_is_served(folder: Path) -> None:
    main = commit_of(folder, "main")
    shutil.rmtree(folder / "snapshots" / commit_of(folder, "v1"))
    shutil.rmtree(folder / "refs")
    assert open_folder(folder) == main


def test_a_link_that_leads_nowhere_is_named(folder: Path) -> None:
    snapshot = folder / "snapshots" / commit_of(folder, "v1")
    blob = (snapshot / "tokenizer.json").readlink()
    (snapshot / "tokenizer.json").resolve().unlink()
    with pytest.raises(ModelFileMissing) as caught:
        open_folder(folder)
    assert "tokenizer.json is a link to" in caught.value.message
    assert str(blob) in caught.value.message


def remove_snapshots(folder: Path) -> Path:
    for snapshot in (folder / "snapshots").iterdir():
        shutil.rmtree(snapshot)
    return folder


def remove_refs(folder: Path) -> Path:
    shutil.rmtree(folder / "refs")
    return folder


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        pytest.param(remove_snapshots, ModelFileMissing, "refs/v1 stands for the commit", id="no snapshot"),
        pytest.param(remove_refs, ModelNotFound, "2 snapshots and without refs", id="two snapshots"),
        pytest.param(
            lambda folder: folder.parent, ModelNotFound, "models--lab--minilm", id="the whole cache"
        ),
    ],
)
def test_what_is_no_model_is_said_with_what_to_name(
    folder: Path, change: object, error: type[EmbedserveError], message: str
) -> None:
    assert callable(change)
    with pytest.raises(error) as caught:
        open_folder(change(folder))
    assert message in caught.value.message
