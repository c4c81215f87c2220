"""The sample repositories: each fails, or works, for the reason that it is named for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import snapshot_download

from e2e.hub import HubServer, samples


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    root = tmp_path_factory.mktemp("repositories")
    samples.write_samples(root)
    with HubServer(root) as server:
        yield server


def _snapshot(hub: HubServer, repository: str, folder: Path) -> Path:
    return Path(snapshot_download(repository, endpoint=hub.url, local_dir=folder, token=False))


def _without(folder: Path, *names: str) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and ".cache" not in path.parts)
    return {path.name: path.read_bytes() for path in files if path.name not in names}


def test_minilm_is_the_real_model(hub: HubServer, tmp_path: Path) -> None:
    assert _without(_snapshot(hub, samples.MINILM, tmp_path)) == _without(samples.model_folder())


def test_one_repository_lacks_only_the_tokenizer(hub: HubServer, tmp_path: Path) -> None:
    got = _without(_snapshot(hub, samples.NO_TOKENIZER, tmp_path))
    assert got == _without(samples.model_folder(), *samples.TOKENIZER_FILES)


def test_one_repository_differs_only_in_its_architecture(hub: HubServer, tmp_path: Path) -> None:
    folder = _snapshot(hub, samples.UNKNOWN_ARCHITECTURE, tmp_path)
    got, real = (json.loads((each / "config.json").read_text()) for each in (folder, samples.model_folder()))
    assert {key for key in real if got[key] != real[key]} == {"architectures", "model_type"}
    pooling = "config.json"  # There are two files of this name; the other one is compared by the first test.
    assert _without(folder, pooling) == _without(samples.model_folder(), pooling)


def test_samples_can_be_moved(tmp_path: Path) -> None:
    samples.write_samples(tmp_path / "before")
    (tmp_path / "before").rename(tmp_path / "after")
    config = tmp_path / "after" / samples.GATED / samples.BRANCH / "config.json"
    assert config.read_bytes() == (samples.model_folder() / "config.json").read_bytes()
