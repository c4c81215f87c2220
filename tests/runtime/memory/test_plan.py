"""The plan of a server's memory: every figure from the model's description, beside what was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from embedserve_runtime.config import RuntimeConfig, load_config
from embedserve_runtime.engines.onnx.attention_blocks import BLOCK_TOKENS
from embedserve_runtime.engines.onnx.engine import describe_engine
from embedserve_runtime.memory.activation_memory import QUERIES_OF_BLOCK, estimate_activations
from embedserve_runtime.memory.load import CONCURRENCY, describe_load
from embedserve_runtime.memory.plan import ServingLoad, plan_memory
from embedserve_runtime.memory.sizes import MIB, describe_sizes, estimate_tokenizer
from tests.support.memory_page import PAGE, render_page
from tests.support.model_shapes import describe_shape
from tests.support.tiny_models import build_card

# Name, tokens of the batch, its longest text, MiB that a run took beyond the loaded model: one batch, ONNX Runtime with
# two threads, two layers with random weights (docs/engineering/memory.md).
MEASURED = (
    ("all-MiniLM-L6-v2", 1_024, 128, 19.3),
    ("all-MiniLM-L6-v2", 4_096, 512, 74.8),
    ("bge-base-en-v1.5", 1_188, 100, 47.8),
    ("bge-base-en-v1.5", 4_096, 512, 149.0),
    ("bge-m3", 1_188, 100, 74.8),
    ("bge-m3", 2_048, 2_048, 109.9),
    ("bge-m3", 8_192, 8_192, 433.5),
    ("Qwen3-Embedding-0.6B", 1_188, 100, 95.5),
    ("Qwen3-Embedding-0.6B", 1_024, 512, 87.2),
    ("Qwen3-Embedding-0.6B", 2_048, 2_048, 162.4),
    ("ModernBERT-base", 1_024, 512, 42.2),
    ("ModernBERT-base", 4_096, 4_096, 152.2),
    ("ModernBERT-base", 8_192, 8_192, 296.3),
    ("nomic-embed-text-v1.5", 1_188, 100, 78.2),
    ("nomic-embed-text-v1.5", 4_096, 4_096, 259.3),
    ("jina-embeddings-v2-base-en", 1_024, 512, 77.5),
    ("jina-embeddings-v2-base-en", 4_096, 4_096, 277.4),
    ("jina-embeddings-v2-base-en", 8_192, 8_192, 534.0),
    ("mdeberta-v3-base", 1_024, 512, 114.4),
    ("all-mpnet-base-v2", 1_024, 512, 78.9),
    ("embeddinggemma-300m", 1_024, 512, 40.3),
    ("embeddinggemma-300m", 2_048, 2_048, 81.1),
)
MIN_SHARE = 0.95
# What the plan has beyond what was measured, at most: a table and the arena's own, which are not always there at once.
MAX_SHARE = 1.4
MAX_BEYOND = 45 * MIB
LOAD = ServingLoad(batch_tokens=2_048, max_length=512)


@pytest.mark.parametrize(("name", "tokens", "longest", "measured"), MEASURED)
def test_a_batch_is_planned_as_it_was_measured(
    tmp_path: Path, name: str, tokens: int, longest: int, measured: float
) -> None:
    sizes = estimate_activations(describe_shape(name, tmp_path, layers=2))
    planned, measured_bytes = sizes.compute_batch_bytes(tokens, longest), measured * MIB
    assert planned >= MIN_SHARE * measured_bytes
    assert planned <= MAX_SHARE * measured_bytes + MAX_BEYOND


@pytest.mark.parametrize(
    "increase",
    [
        {"batch_tokens": 4_096},
        {"max_length": 8_192},
        {"concurrency": 3},
        {"http_workers": 2},
        {"pending_bytes": 64 * MIB},
        {"queue_inputs": 20_000},
        {"cache_bytes": 2**30},
    ],
    ids=lambda increase: next(iter(increase)),
)
def test_whatever_is_served_more_takes_more(tmp_path: Path, increase: dict[str, int]) -> None:
    model = describe_sizes(replace(build_card(), encoder=describe_shape("bge-m3", tmp_path)))
    plan, larger = (plan_memory(model, load) for load in (LOAD, replace(LOAD, **increase)))
    assert larger.total > plan.total
    assert plan.total == sum(part.size for part in plan.parts)
    assert plan.limit >= 1.1 * plan.total


def test_a_model_whose_batches_are_unknown_has_a_plan_that_says_so() -> None:
    model = replace(describe_sizes(build_card()), activations=None)
    plan = plan_memory(model, LOAD)
    assert not plan.is_complete
    assert plan.total > model.process + model.weights


@pytest.mark.parametrize(
    ("kind", "vocabulary", "measured"),
    [("WordPiece", 30_522, 13.8), ("BPE", 151_643, 171.7), ("Unigram", 250_003, 396.6)],
)
def test_a_tokenizer_is_planned_as_it_was_measured(kind: str, vocabulary: int, measured: float) -> None:
    content = f'{{"version": "1.0", "model": {{"type": "{kind}", "vocab": {{"a": 0}}}}}}'.encode()
    assert measured * MIB <= estimate_tokenizer(content, vocabulary) <= 1.2 * measured * MIB


def test_the_plan_knows_the_engine_s_own_figures() -> None:
    assert QUERIES_OF_BLOCK == BLOCK_TOKENS
    assert describe_engine("float32", threads=2).concurrency == CONCURRENCY


def _configure(**groups: dict[str, object]) -> RuntimeConfig:
    return load_config(flags={"model": {"source": "/models/some"}, **groups})


@pytest.mark.parametrize(
    ("config", "cpus", "want"),
    [
        (_configure(), 2, ServingLoad(2_048, 512)),
        (_configure(), 8, ServingLoad(4_096, 512)),
        (_configure(), 64, ServingLoad(16_384, 512)),
        (_configure(), 1, ServingLoad(2_048, 512, concurrency=1)),
        (_configure(batching={"max_batch_tokens": 300}), 8, ServingLoad(300, 512)),
        (_configure(batching={"max_queue_inputs": 10_000}), 2, ServingLoad(2_048, 512, queue_inputs=10_000)),
        (
            _configure(server={"max_pending_bytes": 2**27, "http_workers": 3}, batching={"cache_bytes": 9}),
            2,
            ServingLoad(2_048, 512, http_workers=3, pending_bytes=2**27, cache_bytes=9),
        ),
        (_configure(engine={"threads": 1}), 8, ServingLoad(4_096, 512, concurrency=1)),
    ],
)
def test_a_bound_that_was_changed_counts_in_full(config: RuntimeConfig, cpus: int, want: ServingLoad) -> None:
    assert describe_load(config, 512, "onnx", cpus) == want


def test_the_page_has_the_examples_that_the_function_gives() -> None:
    assert PAGE.read_text(encoding="utf-8") == render_page(), "run `python -m tests.support.memory_page`"
