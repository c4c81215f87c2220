"""ONNX files that a repository ships, where the file alone would give other vectors than the folder's authors meant, or
other ones beside other texts: the rest of the pipeline is run, texts are run alone, or it is an error."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from safetensors.torch import save_file

from embedserve_runtime.commands.cli import main
from embedserve_runtime.config import load_config
from embedserve_runtime.errors import ModelInvalid, NotFinite, UnsupportedArchitecture
from embedserve_runtime.forward.arrays import Int32Array
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.loading.runners import load_runner
from embedserve_runtime.model.bundled_onnx import BundledOnnx
from embedserve_runtime.service.postprocessing import postprocess_dense
from embedserve_runtime.service.types import EmbedQuery
from tests.runtime.heads.head_runner import sequences
from tests.runtime.pipelines.test_onnx_files import HIDDEN, card_of, given, results_of, runner_of
from tests.support.models import small_tokenizer, tiny_bert
from tests.support.onnx_files import export, table_graph, unknown_family
from tests.support.tolerances import FP32_MAX_ABS_DIFF

Shape = list[int | str | None]
POOLED: dict[str, Shape | None] = {"sentence_embedding": ["b", 4]}


def write_dense(folder: Path, *widths: int) -> list[torch.nn.Linear]:
    """Write modules.json with mean pooling, Dense modules with tanh from width to width, and Normalize; return their
    layers."""
    kinds = ["Transformer", "Pooling", *["Dense"] * (len(widths) - 1), "Normalize"]
    folders = [f"{number}_{kind}" if number else "" for number, kind in enumerate(kinds)]
    lines = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, path) in enumerate(zip(kinds, folders, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(lines))
    for path in folders[1:-1]:
        (folder / path).mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    torch.manual_seed(4)
    layers = []
    for number, (width, out) in enumerate(pairwise(widths), start=2):
        layer = torch.nn.Linear(width, out)
        home = folder / f"{number}_Dense"
        (home / "config.json").write_text(json.dumps({"in_features": width, "out_features": out}))
        save_file(
            {f"linear.{name}": value.detach() for name, value in layer.named_parameters()},
            home / "model.safetensors",
        )
        layers.append(layer)
    return layers


def batch_of(ids: list[Int32Array]) -> PackedBatch:
    return PackedBatch.pack(ids)


SMALL_IDS = [ids % 50 for ids in sequences()]


@pytest.mark.parametrize(
    ("widths", "outputs", "first"),
    [
        pytest.param((4, 3), POOLED, 0, id="what was pooled goes through the Dense module"),
        pytest.param((5, 4, 3), POOLED, 1, id="what went through the first goes through the second"),
        pytest.param((5, 4), POOLED, 1, id="what went through all is used as it comes"),
        pytest.param((4,), POOLED, 0, id="a folder without Dense modules"),
    ],
)
def test_dense_modules_that_are_not_in_the_file_are_run_behind_it(
    widths: tuple[int, ...], outputs: dict[str, Shape | None], first: int, tmp_path: Path
) -> None:
    table = table_graph(unknown_family(tmp_path) / "model.onnx", outputs)
    layers = write_dense(tmp_path, *widths)
    runner = runner_of(tmp_path)
    want = torch.from_numpy(np.stack([table[ids].sum(axis=0) for ids in SMALL_IDS]))
    with torch.no_grad():
        for layer in layers[first:]:
            want = torch.tanh(layer(want))
    got = given(runner.run(batch_of(SMALL_IDS), OutputKind.DENSE).dense)
    assert np.abs(got - want.numpy()).max() <= FP32_MAX_ABS_DIFF
    assert (runner.card.pipeline.full_dimensions, runner.card.pipeline.normalize) == (widths[-1], True)


@pytest.mark.parametrize(
    ("widths", "outputs"),
    [
        pytest.param((4, 4), {**POOLED, **HIDDEN}, id="a Dense module that keeps the width"),
        pytest.param((4, 3), {"sentence_embedding": ["b", "d"], **HIDDEN}, id="a width that is not declared"),
    ],
)
def test_hidden_states_are_pooled_where_a_width_does_not_tell_what_is_in_the_file(
    widths: tuple[int, ...], outputs: dict[str, Shape | None], tmp_path: Path
) -> None:
    table = table_graph(unknown_family(tmp_path) / "model.onnx", outputs)
    (layer,) = write_dense(tmp_path, *widths)
    pooled = torch.from_numpy(np.stack([table[ids].mean(axis=0) for ids in SMALL_IDS]))
    with torch.no_grad():
        want = torch.tanh(layer(pooled)).numpy()
    got = given(runner_of(tmp_path).run(batch_of(SMALL_IDS), OutputKind.DENSE).dense)
    assert np.abs(got - want).max() <= FP32_MAX_ABS_DIFF


@pytest.mark.parametrize(
    ("widths", "shape", "message"),
    [
        pytest.param(
            (5, 3),
            ["b", 4],
            "sentence_embedding is 4 wide, .* make vectors of 5, then 3",
            id="no step is as wide",
        ),
        pytest.param((5,), ["b", 4], "is 4 wide, .* make vectors of 5;", id="another width than is pooled"),
        pytest.param((4, 4), ["b", 4], "is 4 wide, which does not tell whether", id="two steps are as wide"),
        pytest.param((4, 3), ["b", "d"], "is of no declared width", id="a width that is not declared"),
    ],
)
def test_a_file_whose_vectors_are_no_step_of_the_pipeline_is_refused(
    widths: tuple[int, ...], shape: Shape, message: str, tmp_path: Path
) -> None:
    table_graph(unknown_family(tmp_path, hidden_size=widths[0]) / "model.onnx", {"sentence_embedding": shape})
    write_dense(tmp_path, *widths)
    with pytest.raises(UnsupportedArchitecture, match=message):
        card_of(tmp_path)


def test_vectors_that_a_file_has_cut_are_served_where_the_setting_cuts_to_that_width(tmp_path: Path) -> None:
    table_graph(unknown_family(tmp_path, hidden_size=5) / "model.onnx", POOLED)
    write_dense(tmp_path, 5)
    card = card_of(tmp_path, dimensions=4)
    assert (card.pipeline.dimensions, card.pipeline.dense) == (4, ())


def test_the_former_identity_is_not_given_to_vectors_that_go_through_a_dense_module_now(
    tmp_path: Path,
) -> None:
    table_graph(unknown_family(tmp_path) / "model.onnx", POOLED)
    assert card_of(tmp_path).former_vector_space is not None
    write_dense(tmp_path, 4, 3)
    assert card_of(tmp_path).former_vector_space is None


@pytest.fixture(scope="module")
def int8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT whose file ONNX Runtime's quantizer has written: one range for each activation of a batch."""
    folder = tmp_path_factory.mktemp("int8")
    export(tiny_bert(folder), folder / "plain.onnx")
    quantize_dynamic(folder / "plain.onnx", folder / "model_int8.onnx", weight_type=QuantType.QInt8)
    small_tokenizer(folder)
    return folder


def test_a_text_has_one_value_beside_any_texts_in_a_file_with_one_range_for_a_batch(int8: Path) -> None:
    runner = runner_of(int8, onnx_file="model_int8.onnx")
    together = given(results_of(runner, OutputKind.DENSE).dense)
    alone = [given(runner.run(batch_of([ids]), OutputKind.DENSE).dense)[0] for ids in sequences()]
    np.testing.assert_array_equal(together, np.stack(alone))


def test_log_and_facts_and_inspect_say_that_texts_are_run_alone(
    int8: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO):
        runner = runner_of(int8, onnx_file="model_int8.onnx")
    assert "each text is run alone" in caplog.text
    assert runner.engine.max_sequences == 1
    assert runner_of(int8, onnx_file="plain.onnx").engine.max_sequences is None
    assert main(["inspect", str(int8), "--onnx-file", "model_int8.onnx"]) == 0
    assert "Batching       each text is run alone: DynamicQuantizeLinear" in capsys.readouterr().out
    assert main(["inspect", str(int8), "--onnx-file", "plain.onnx"]) == 0
    assert "Batching" not in capsys.readouterr().out


def nest_nodes(file: Path) -> None:
    """Move the quantizing node into a branch of an If."""
    model = onnx.load(str(file))
    nodes = {node.op_type: node for node in model.graph.node}
    inner = nodes["DynamicQuantizeLinear"]
    branch = helper.make_graph(
        [inner], "branch", [], [helper.make_empty_tensor_value_info(name) for name in inner.output]
    )
    position = list(model.graph.node).index(inner)
    model.graph.node.remove(inner)
    model.graph.node.insert(
        position,
        helper.make_node("If", ["always"], list(inner.output), then_branch=branch, else_branch=branch),
    )
    model.graph.initializer.append(helper.make_tensor("always", onnx.TensorProto.BOOL, [], [True]))
    onnx.save(model, str(file))


def move_into_function(file: Path) -> None:
    """Move the quantizing node into a function of the file."""
    model = onnx.load(str(file))
    (inner,) = [node for node in model.graph.node if node.op_type == "DynamicQuantizeLinear"]
    opset = list(model.opset_import)
    model.functions.append(
        helper.make_function("own", "Quantize", list(inner.input), list(inner.output), [inner], opset)
    )
    call = helper.make_node("Quantize", list(inner.input), list(inner.output), domain="own")
    position = list(model.graph.node).index(inner)
    model.graph.node.remove(inner)
    model.graph.node.insert(position, call)
    model.opset_import.append(helper.make_opsetid("own", 1))
    onnx.save(model, str(file))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda file: None, id="in the graph"),
        pytest.param(nest_nodes, id="in a branch"),
        pytest.param(move_into_function, id="in a function"),
    ],
)
def test_operators_with_one_range_for_a_batch_are_found_wherever_they_are(
    change: Callable[[Path], None], tmp_path: Path
) -> None:
    file = unknown_family(tmp_path) / "model.onnx"
    table_graph(file, HIDDEN, quantizes=True)
    change(file)
    backbone = card_of(tmp_path).backbone
    assert isinstance(backbone, BundledOnnx)
    assert backbone.batch_quantizers == ("DynamicQuantizeLinear",)
    runner = runner_of(tmp_path)
    together = given(runner.run(batch_of(SMALL_IDS), OutputKind.DENSE).dense)
    alone = given(runner.run(batch_of(SMALL_IDS[:1]), OutputKind.DENSE).dense)
    np.testing.assert_array_equal(together[0], alone[0])


def move_to_parent(file: Path) -> str:
    shutil.move(file.parent / "w.bin", file.parent.parent / "w.bin")
    return "../w.bin"


def keep_absolute(file: Path) -> str:
    return str(file.parent / "w.bin")


def link_elsewhere(file: Path) -> str:
    elsewhere = file.parent.parent / "elsewhere"
    elsewhere.mkdir()
    shutil.move(file.parent / "w.bin", elsewhere / "w.bin")
    (file.parent / "w.bin").symlink_to(elsewhere / "w.bin")
    return "w.bin"


@pytest.mark.parametrize("move_weights", [move_to_parent, keep_absolute, link_elsewhere])
def test_inspect_refuses_a_file_with_weights_outside_its_folder_in_the_words_of_serve(
    move_weights: Callable[[Path], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = unknown_family(tmp_path) / "onnx" / "model.onnx"
    table_graph(file, HIDDEN, external="w.bin")
    model = onnx.load(str(file), load_external_data=False)
    location = move_weights(file)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    onnx.save(model, str(file))
    with pytest.raises(ModelInvalid, match=r"its weights .*w.bin lie outside its folder") as refused:
        load_runner(load_config(flags={"model": {"source": str(tmp_path)}}))
    assert main(["inspect", str(tmp_path)]) == 1
    assert refused.value.message in capsys.readouterr().err


def test_weights_in_a_folder_beside_the_file_and_in_a_cache_of_links_are_read(tmp_path: Path) -> None:
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshot"
    table_graph(unknown_family(folder) / "model.onnx", HIDDEN, external="w.bin")
    blobs.mkdir()
    for name in ("model.onnx", "w.bin"):
        shutil.move(folder / name, blobs / name)
        (folder / name).symlink_to(blobs / name)
    assert runner_of(folder).card.outputs & OutputKind.DENSE


LARGE = 7


@pytest.mark.parametrize(
    ("outputs", "normalized"),
    [pytest.param(POOLED, "rows", id="of a vector"), pytest.param(HIDDEN, "states", id="of a hidden state")],
)
def test_zeros_that_float16_makes_of_what_overflows_are_an_error_for_that_text(
    outputs: dict[str, Shape | None], normalized: Literal["rows", "states"], tmp_path: Path
) -> None:
    """A norm of 80,000 is beyond 65,504, and what is divided by infinity is 0."""
    file = unknown_family(tmp_path) / "model.onnx"
    table_graph(file, outputs, half=True, normalized=normalized, large_rows=[LARGE])
    runner = runner_of(tmp_path)
    texts = [np.array([3, 4], np.int32), np.array([LARGE], np.int32), np.array([5], np.int32)]
    dense = given(runner.run(batch_of(texts), OutputKind.DENSE).dense)
    assert np.isfinite(dense).all(axis=1).tolist() == [True, False, True]
    with pytest.raises(NotFinite):
        postprocess_dense(runner.card, dense[1:2], EmbedQuery(["a text"]))
