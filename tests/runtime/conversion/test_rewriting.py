"""Graphs of every family in other precisions against their float32 graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from embedserve_runtime.conversion.calibration import build_probing_engine, observe_ranges
from embedserve_runtime.conversion.quantizing import BlockQuantization, choose_static
from embedserve_runtime.conversion.rewriting import (
    FloatGraph,
    Named,
    convert_to_eight_bit,
    convert_to_plain_products,
    convert_weights_to_half,
    write_model,
)
from embedserve_runtime.cpu.features import compute_max_static_weight, detect_instruction_set
from embedserve_runtime.engines.onnx.engine import OnnxEngine, describe_engine
from embedserve_runtime.engines.onnx.graph import build
from embedserve_runtime.engines.onnx.session import BFLOAT16_PRODUCTS, build_session_options
from embedserve_runtime.engines.onnx.spool import drain_arrays
from embedserve_runtime.forward.cosines import compute_cosines
from embedserve_runtime.model import families
from embedserve_runtime.model.checkpoint import Checkpoint, Weights
from embedserve_runtime.model.folder import read_folder
from tests.runtime.engines import cases
from tests.runtime.engines.case import Case
from tests.support.tolerances import EIGHT_BIT_MIN_COSINE, HALF_WEIGHTS_MIN_COSINE

Rewritten = tuple[onnx.ModelProto, Iterator[Named]]
# The first row of each family: what makes the others differ is not touched here.
FIRST = tuple({case.name.split(",")[0]: case for case in reversed(cases.CASES)}.values())
# Families whose products differ most from each other; the rest takes a while.
QUICK = ("bert", "modernbert", "nomic v2", "deberta", "qwen3")
CASES = [
    pytest.param(case, id=case.name, marks=[] if case.name.split(",")[0] in QUICK else [pytest.mark.thorough])
    for case in FIRST
]


# How many tokens amplify any rounding by their random weights, in half precision as in 8 bit, and how many times the
# others' error theirs may be. Gemma 2 norms each branch once more, so that a branch of small numbers counts as others.
AMPLIFIED = {"ministral3, causal": (3, 2), "gemma2, causal, window of 6": (4, 5)}


def static(graph: FloatGraph, folder: Path, case: Case) -> Rewritten:
    encoder = families.describe(read_folder(folder.parent))
    engine = build_probing_engine(folder, encoder, graph.list_products(), threads=1)
    ranges = observe_ranges(engine, graph.list_products(), case.sequences())
    largest = compute_max_static_weight(detect_instruction_set())
    forms = {name: choose_static(graph.read(name), inputs, largest)[0] for name, inputs in ranges.items()}
    assert len(forms) >= 4
    return convert_to_eight_bit(graph, forms, largest)


def blocks(graph: FloatGraph, folder: Path, case: Case) -> Rewritten:
    del folder, case
    return convert_to_eight_bit(
        graph, {product.weight: BlockQuantization(32) for product in graph.list_products()}, 127
    )


def half(graph: FloatGraph, folder: Path, case: Case) -> Rewritten:
    del folder, case
    return convert_weights_to_half(graph)


REWRITERS: dict[str, tuple[Callable[[FloatGraph, Path, Case], Rewritten], float]] = {
    "static": (static, EIGHT_BIT_MIN_COSINE),
    "blocks": (blocks, EIGHT_BIT_MIN_COSINE),
    "half": (half, HALF_WEIGHTS_MIN_COSINE),
}


@pytest.mark.parametrize("rewriter", REWRITERS)
@pytest.mark.parametrize("case", CASES)
def test_hidden_states_stay_close(case: Case, rewriter: str, tmp_path: Path) -> None:
    case.build(tmp_path)
    encoder = families.describe(read_folder(tmp_path))
    model, arrays = build(encoder, Weights(encoder, Checkpoint.open(tmp_path)))
    write_model(tmp_path / "float32", model, drain_arrays(arrays), {})
    rewrite, least = REWRITERS[rewriter]
    graph = FloatGraph(tmp_path / "float32")
    write_model(tmp_path / rewriter, *rewrite(graph, tmp_path / "float32", case), {})
    want, have = (
        OnnxEngine.load(encoder, tmp_path / name / "model.onnx", describe_engine(name, 1)).forward(
            case.batch()
        )
        for name in ("float32", rewriter)
    )
    cosines = compute_cosines(want, have)
    if rewriter == "static":
        # Fewer levels of weights: the error's square grows with that of the step.
        least = 1 - (1 - least) * (127 / compute_max_static_weight(detect_instruction_set())) ** 2
    count, factor = AMPLIFIED.get(case.name, (0, 1))
    assert np.sort(cosines)[count] >= least
    assert cosines.min() >= 1 - factor * (1 - least)
    assert cosines.min() < 1, "another precision gives other numbers"


def test_a_graph_names_its_operators_and_what_it_is(tmp_path: Path) -> None:
    cases.BERT[0].build(tmp_path)
    encoder = families.describe(read_folder(tmp_path))
    model, arrays = build(encoder, Weights(encoder, Checkpoint.open(tmp_path)))
    write_model(tmp_path / "float32", model, drain_arrays(arrays), {"embedserve.precision": "float32"})
    graph = onnx.load(str(tmp_path / "float32" / "model.onnx"))
    assert {opset.domain: opset.version for opset in graph.opset_import} == {"": 23, "com.microsoft": 1}
    assert {entry.key: entry.value for entry in graph.metadata_props} == {"embedserve.precision": "float32"}


def test_products_for_bfloat16_stay_apart_from_their_biases_in_the_session(tmp_path: Path) -> None:
    case = next(case for case in FIRST if case.name.startswith("bert"))
    case.build(tmp_path)
    encoder = families.describe(read_folder(tmp_path))
    model, arrays = build(encoder, Weights(encoder, Checkpoint.open(tmp_path)))
    write_model(tmp_path / "float32", model, drain_arrays(arrays), {})
    graph = FloatGraph(tmp_path / "float32")
    write_model(tmp_path / "bfloat16", *convert_to_plain_products(graph), {})
    products = len(graph.list_products())
    optimized = tmp_path / "bfloat16" / "optimized.onnx"
    # As the session's own clean-up leaves it: products of Gemm are not made in bfloat16 anywhere.
    entries = BFLOAT16_PRODUCTS | {"session.optimized_model_external_initializers_file_name": "optimized"}
    options = build_session_options(1)
    options.optimized_model_filepath = str(optimized)
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    onnxruntime.InferenceSession(
        str(tmp_path / "bfloat16" / "model.onnx"), options, providers=["CPUExecutionProvider"]
    )
    operators = [node.op_type for node in onnx.load(optimized, load_external_data=False).graph.node]
    assert (operators.count("MatMul"), operators.count("Gemm")) == (products, 0)
    want, have = (
        OnnxEngine.load(encoder, tmp_path / name / "model.onnx", describe_engine(name, 1)).forward(
            case.batch()
        )
        for name in ("float32", "bfloat16")
    )
    assert compute_cosines(want, have).min() >= HALF_WEIGHTS_MIN_COSINE
