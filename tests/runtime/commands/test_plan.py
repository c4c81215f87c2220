"""`embedserve plan` says before a fetch what a fetch would say, and brings next to nothing."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from e2e.hub import Fault, FaultKind, HubServer
from embedserve_runtime.commands.cli import main
from tests.runtime.api.test_adapter_tasks import save_published
from tests.runtime.model import identity_folders
from tests.runtime.sources.fetch_kit import REPOSITORY
from tests.runtime.sources.test_archives import tar_of
from tests.support.models import copy_of_minilm
from tests.support.onnx_files import table_graph, unknown_family
from tests.support.random_models import save_random_model

Build = Callable[[Path], object]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model_folder = tmp_path / "repositories" / REPOSITORY / "main"
    model_folder.mkdir(parents=True)
    return model_folder


@pytest.fixture
def hub(tmp_path: Path, folder: Path) -> Iterator[HubServer]:
    with HubServer(tmp_path / "repositories") as server:
        yield server


@pytest.fixture
def run(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Mapping[str, Any]]:
    """Run a command and return what it says of the model, as it leaves it to the operator."""
    log = tmp_path / "termination-log"
    log.touch()
    monkeypatch.setenv("EMBEDSERVE_TERMINATION_LOG", str(log))
    monkeypatch.setenv("EMBEDSERVE_MODEL__ENDPOINT", hub.url)

    def run_command(command: str, source: str = REPOSITORY, *flags: str) -> Mapping[str, Any]:
        assert main([command, source, "--store", str(tmp_path / "store"), *flags]) == 0
        described: Mapping[str, Any] = json.loads(log.read_text(encoding="utf-8"))["model"]
        return described

    return run_command


def publish(build: Build, folder: Path) -> None:
    """Build a model elsewhere, and put it where the hub has its repository."""
    work = folder.parents[3] / "work"
    work.mkdir()
    build(work)
    folder.rmdir()
    (work / "saved").rename(folder)


def in_shards(folder: Path) -> None:
    identity_folders.pipeline(folder)
    folder = folder / "saved"
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    names = ["embeddings.word_embeddings.weight"]
    index = {"weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


MODELS: dict[str, Build] = {
    **identity_folders.FOLDERS,
    "in shards": in_shards,
    "token weights": identity_folders.MORE_FOLDERS["token weights"],
    "BGE-M3 with heads of their own": identity_folders.bge_m3,
    "late interaction": identity_folders.multi_vector,
    "a causal reranker": identity_folders.causal_reranker,
    "an adapter beside its weights": identity_folders.with_adapter,
    "a static table": identity_folders.static,
    "adapters of several tasks": lambda folder: save_published(folder).rename(folder / "saved"),
}


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_the_plan_is_that_of_the_fetched_model(
    folder: Path, run: Callable[..., Mapping[str, Any]], build: Build
) -> None:
    publish(build, folder)
    planned = run("plan")
    assert planned["memory"]["fixedBytes"] > 0
    fetched = run("fetch")
    assert planned == {name: fetched[name] for name in ("source", "revision", "sizeBytes", "memory")}


def test_weights_are_not_fetched_for_it(
    folder: Path, hub: HubServer, run: Callable[..., Mapping[str, Any]], tmp_path: Path
) -> None:
    save_random_model("bge-base-en-v1.5", folder, layers=2)
    weights = (folder / "model.safetensors").stat().st_size
    assert run("plan")["sizeBytes"] > weights
    sent_bytes = sum(request.sent_bytes for request in hub.requests if request.path.endswith(".safetensors"))
    assert 0 < sent_bytes < weights / 10
    assert not (tmp_path / "store").exists()


def test_a_header_that_is_longer_than_what_is_asked_for_first_is_read_whole(
    folder: Path, run: Callable[..., Mapping[str, Any]]
) -> None:
    copy_of_minilm(folder.with_name("copy"))
    for path in folder.with_name("copy").iterdir():
        path.rename(folder / path.name)
    weights = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(weights[:8], "little")
    padded = weights[8 : 8 + length] + b" " * (2 << 20)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").write_bytes(
        len(padded).to_bytes(8, "little") + padded + weights[8 + length :]
    )
    assert run("plan")["memory"] == run("fetch")["memory"]


def test_a_folder_is_planned_where_it_is(run: Callable[..., Mapping[str, Any]], tmp_path: Path) -> None:
    copy_of_minilm(tmp_path / "model")
    planned, fetched = run("plan", str(tmp_path / "model")), run("fetch", str(tmp_path / "model"))
    assert planned["memory"] == fetched["memory"]
    assert planned["sizeBytes"] == fetched["sizeBytes"]


def test_of_an_onnx_file_the_size_alone_is_known(folder: Path, run: Callable[..., Mapping[str, Any]]) -> None:
    graph = unknown_family(folder) / "onnx" / "model.onnx"
    table_graph(graph, {"sentence_embedding": ["b", 4]}, external="model.onnx_data")
    planned = run("plan")
    fetched = run("fetch")
    assert planned["memory"] is fetched["memory"] is None
    assert planned["sizeBytes"] == fetched["sizeBytes"]


def test_of_an_archive_its_own_size_alone_is_known(
    folder: Path, hub: HubServer, run: Callable[..., Mapping[str, Any]]
) -> None:
    content = tar_of({"model.safetensors": random.Random(0).randbytes(5_000_000)})
    (folder / "model.tar").write_bytes(content)
    url = f"{hub.url}/{REPOSITORY}/resolve/main/model.tar"
    planned = run("plan", url, "--sha256", hashlib.sha256(content).hexdigest())
    assert (planned["sizeBytes"], planned["memory"]) == (len(content), None)


def test_a_source_that_is_away_for_a_moment_is_asked_again(
    folder: Path, hub: HubServer, run: Callable[..., Mapping[str, Any]]
) -> None:
    publish(identity_folders.pipeline, folder)
    hub.faults.add(Fault(FaultKind.SERVER_ERROR, path="*/model.safetensors", times=1))
    assert run("plan")["memory"]["fixedBytes"] > 0


@pytest.mark.parametrize(
    "content", [b"", b"version https://git-lfs.github.com/spec/v1\noid sha256:0", b"\0" * 64]
)
def test_what_is_no_safetensors_file_is_named(
    folder: Path, run: Callable[..., Mapping[str, Any]], capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    publish(identity_folders.pipeline, folder)
    (folder / "model.safetensors").write_bytes(content)
    assert main(["plan", REPOSITORY]) != 0
    assert "model.safetensors is not a readable safetensors file" in capsys.readouterr().err
