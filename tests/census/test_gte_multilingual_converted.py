"""gte-multilingual-base converted: the file with `logits` and `last_hidden_state`, and the gate of token weights."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from embedserve_runtime.config import RuntimeConfig, load_config
from embedserve_runtime.conversion.benchmark import Benchmark, tokenize_corpus
from embedserve_runtime.conversion.converting import convert
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import ModelOutput, OutputKind, SparseVector
from embedserve_runtime.heads.dense import normalize
from embedserve_runtime.heads.sparse import write_out
from embedserve_runtime.loading.runners import load_runner
from embedserve_runtime.parity.corpus import read_parity_texts
from embedserve_runtime.parity.measures import compare
from embedserve_runtime.runners.base import Runner
from embedserve_runtime.tokenizing import TextTokenizer
from tests.census.gte_multilingual import Built, build_gte_multilingual
from tests.runtime.pipelines.folders import CUT
from tests.support.distorted_runners import DistortedRunner
from tests.support.tolerances import FP32_MAX_ABS_DIFF

BOTH = OutputKind.DENSE | OutputKind.SPARSE
OUTPUTS = ["logits", "last_hidden_state"]
TEXTS = ["the river", "naïve Straße вода the the river", "北京 本 the", "42 unknown☃ the quantum river"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build_gte_multilingual(tmp_path_factory.mktemp("model"), "new")


def config_of(source: Path, store: Path, **onnx: Any) -> RuntimeConfig:
    return load_config(
        flags={
            "model": {"source": str(source), "store": store, "outputs": ["dense", "sparse"]},
            "engine": {"threads": 1},
            "onnx": {"precision": ["float32"], "outputs": OUTPUTS, **onnx},
        }
    )


def convert_into(config: RuntimeConfig) -> Path:
    """Convert the model; give the artifact's folder."""
    return config.model.store / "artifacts" / str(convert(config)["artifact"])


def both_of(runner: Runner) -> tuple[Any, Any]:
    tokens = TextTokenizer.from_card(runner.card).encode(TEXTS, "", CUT)
    made = runner.run(PackedBatch.pack(tokens), BOTH)
    assert made.dense is not None
    assert made.sparse is not None
    ids = np.arange(runner.card.sparse_width, dtype=np.int32)
    return normalize(made.dense), write_out(made.sparse, ids)


def test_the_standard_file_gives_the_logits_and_the_states_of_transformers(
    built: Built, tmp_path: Path
) -> None:
    folder = convert_into(config_of(built.folder, tmp_path))
    session = onnxruntime.InferenceSession(
        str(folder / "float32" / "standard.onnx"), providers=["CPUExecutionProvider"]
    )
    fed = built.tokenizer(TEXTS, padding=True, return_tensors="np")
    feeds = {name: fed[name].astype(np.int64) for name in ("input_ids", "attention_mask")}
    logits, states = session.run(OUTPUTS, feeds)
    assert {value.name for value in session.get_outputs()} == {*OUTPUTS}
    for number, text in enumerate(TEXTS):
        with torch.no_grad():
            want = built.model(torch.tensor([built.tokenizer(text)["input_ids"]]), output_hidden_states=True)
        real = feeds["attention_mask"][number].astype(bool)
        assert np.abs(logits[number][real] - want.logits[0].numpy()).max() <= FP32_MAX_ABS_DIFF
        assert np.abs(states[number][real] - want.hidden_states[-1][0].numpy()).max() <= FP32_MAX_ABS_DIFF


def test_a_second_conversion_writes_the_same_bytes(built: Built, tmp_path: Path) -> None:
    contents = []
    for store in ("one", "two"):
        folder = convert_into(config_of(built.folder, tmp_path / store))
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "report.json")
        contents.append({path.relative_to(folder): path.read_bytes() for path in files})
    del contents[0][Path("manifest.json")], contents[1][Path("manifest.json")]  # has the report's digest
    assert contents[0] == contents[1]
    assert Path("float32/standard.onnx") in contents[0]


def test_the_artifact_and_the_standard_file_are_served_with_both_outputs(
    built: Built, tmp_path: Path
) -> None:
    config = config_of(built.folder, tmp_path / "store")
    plain = both_of(load_runner(config_of(built.folder, tmp_path / "none", convert="Never")))
    folder = convert_into(config)
    repository = tmp_path / "repository"
    shutil.copytree(built.folder, repository, ignore=shutil.ignore_patterns("*.safetensors"))
    (repository / "onnx").mkdir()
    for name in ("standard.onnx", "weights"):
        shutil.copy(folder / "float32" / name, repository / "onnx")
    model = {"source": str(repository), "onnx_file": "onnx/standard.onnx", "outputs": ["dense", "sparse"]}
    for runner in (load_runner(config), load_runner(load_config(flags={"model": model}))):
        for found, want in zip(both_of(runner), plain, strict=True):
            assert np.abs(found - want).max() <= FP32_MAX_ABS_DIFF


@dataclass(frozen=True, kw_only=True)
class LargerWeights(DistortedRunner):
    """A runner whose token weights of odd ids are larger than they should be, and whose vectors are right."""

    factor: float

    def run(self, batch: PackedBatch, outputs: OutputKind) -> ModelOutput:
        made = self.exact.run(batch, outputs)
        assert made.sparse is not None
        factors = [np.where(one.indices % 2, np.float32(self.factor), np.float32(1)) for one in made.sparse]
        larger = [
            SparseVector(one.indices, one.values * factor)
            for one, factor in zip(made.sparse, factors, strict=True)
        ]
        return ModelOutput(dense=made.dense, sparse=larger)


def test_the_gate_compares_token_weights_and_the_order_of_scores(built: Built, tmp_path: Path) -> None:
    runner = load_runner(config_of(built.folder, tmp_path))
    benchmark = Benchmark(runner.card, tokenize_corpus(runner.card, read_parity_texts()))
    reference = benchmark.run(runner).outputs
    same, far = (
        compare(reference, benchmark.run(LargerWeights(exact=runner, factor=factor)).outputs)
        for factor in (1, 3)
    )
    assert (same.min_cosine, same.rank_agreement) == pytest.approx((1, 1))
    assert far.min_cosine < 0.97
    assert far.rank_agreement < 0.9995
