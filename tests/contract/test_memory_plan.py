"""The memory that the operator gives a pod is what the runtime plans for it, of one model and one set of settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from embedserve_operator.api.status import ModelMemory
from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.manifests.memory import compute_planned_memory
from embedserve_operator.observe.reports import ReportedModel, read_model_report
from embedserve_runtime.config import load_config
from embedserve_runtime.memory.load import describe_load
from embedserve_runtime.memory.plan import plan_memory
from embedserve_runtime.memory.report import describe_model_memory
from embedserve_runtime.memory.sizes import MIB, ModelSizes, describe_sizes
from tests.operator.builders import Cluster, hub_spec, resource
from tests.support.model_shapes import describe_shape
from tests.support.tiny_models import build_card

STEP = 64 * MIB
SHAPES = ("all-MiniLM-L6-v2", "bge-m3", "ModernBERT-base", "Qwen3-Embedding-0.6B", "mdeberta-v3-base")
SPECS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "a large budget": {"batching": {"maxBatchTokens": 16_384}},
    "a small budget": {"batching": {"maxBatchTokens": 256}},
    "a long queue and a cache": {"batching": {"maxQueueInputs": 50_000, "cacheBytes": 2**28}},
    "short texts": {"model": {"maxLength": 128}},
}


def describe(name: str, folder: Path) -> tuple[ModelSizes, int]:
    encoder = describe_shape(name, folder)
    return describe_sizes(replace(build_card(), encoder=encoder)), encoder.max_positions


def report(sizes: ModelSizes, max_length: int) -> ModelMemory:
    """What the operator knows of a model once it was fetched."""
    reported = {"source": "acme/docs", "memory": describe_model_memory(sizes, max_length)}
    memory = read_model_report(ReportedModel.parse(reported)).memory
    assert memory is not None
    return memory


@pytest.mark.parametrize("cpus", [1, 2, 8, 64])
@pytest.mark.parametrize("fields", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("name", SHAPES)
def test_the_limit_of_a_pod_is_that_of_the_runtimes_plan(
    tmp_path: Path, name: str, fields: dict[str, Any], cpus: int
) -> None:
    sizes, max_length = describe(name, tmp_path)
    manifest = resource(hub_spec(**fields))
    spec = EmbeddingServiceSpec.model_validate(manifest["spec"])
    file = tmp_path / "runtime.yaml"
    (config,) = [one for one in Cluster(manifest).plan().children if one["kind"] == "ConfigMap"]
    file.write_text(config["data"]["runtime.yaml"], encoding="utf-8")
    longest = min(max_length, spec.model.max_length or max_length)
    load = describe_load(load_config(file), longest, "onnx", cpus)
    planned = plan_memory(sizes, load).limit
    limit = compute_planned_memory(report(sizes, max_length), spec, cpus)
    assert planned <= limit < planned + STEP + MIB


def test_a_model_whose_batches_are_not_known_has_no_plan(tmp_path: Path) -> None:
    sizes, max_length = describe(SHAPES[0], tmp_path)
    assert describe_model_memory(replace(sizes, activations=None), max_length) is None
    assert read_model_report(ReportedModel.parse({"source": "acme/docs", "memory": None})).memory is None


@pytest.mark.parametrize("broken", [{}, {"fixedBytes": "much"}, {"fixedBytes": 1, "maxLength": 512}, [1]])
def test_a_plan_that_cannot_be_read_is_none(broken: object) -> None:
    assert read_model_report(ReportedModel.parse({"source": "acme/docs", "memory": broken})).memory is None
