"""ONNX files as repositories ship them: transformers' own BERT exported, and small graphs written by hand."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from transformers import BertForSequenceClassification, BertForTokenClassification, BertModel

from tests.support.models import small_tokenizer

INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
OPSET, IR_VERSION = 18, 8


class _Exported(torch.nn.Module):
    """transformers' layers one after another: its whole model bakes the traced length into the embeddings."""

    def __init__(
        self,
        model: BertModel | BertForSequenceClassification | BertForTokenClassification,
        outputs: Sequence[str],
    ) -> None:
        super().__init__()
        self.model = model
        self.outputs = outputs

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        bert = self.model if isinstance(self.model, BertModel) else self.model.bert
        tables = bert.embeddings
        hidden = tables.word_embeddings(ids) + tables.token_type_embeddings(types)
        hidden = tables.LayerNorm(hidden + tables.position_embeddings(positions))
        hidden_mask = (1.0 - mask[:, None, None, :].float()) * -1e30
        for layer in bert.encoder.layer:
            hidden = layer(hidden, hidden_mask)
        weights = mask[:, :, None].float()
        finished = {
            "last_hidden_state": hidden,
            "token_embeddings": hidden,
            "sentence_embedding": torch.nn.functional.normalize(
                (hidden * weights).sum(1) / weights.sum(1), dim=1
            ),
        }
        if isinstance(self.model, BertForSequenceClassification):
            finished["logits"] = self.model.classifier(bert.pooler(hidden))
        if isinstance(self.model, BertForTokenClassification):
            finished["logits"] = self.model.classifier(hidden)
        return tuple(finished[name] for name in self.outputs)


def export(
    model: BertModel | BertForSequenceClassification | BertForTokenClassification,
    file: Path,
    outputs: Sequence[str] = ("last_hidden_state",),
) -> None:
    """Write the model to `file`, with the outputs named."""
    file.parent.mkdir(parents=True, exist_ok=True)
    ids = torch.ones(2, 5, dtype=torch.long)
    mask = ids.clone()
    mask[1, 3:] = 0
    varying = {name: {0: "batch", 1: "tokens"} for name in INPUTS}
    rows = (
        ("sentence_embedding",)
        if isinstance(model, BertForTokenClassification)
        else ("sentence_embedding", "logits")
    )
    varying |= {name: {0: "batch"} for name in outputs if name in rows}
    varying |= {name: {0: "batch", 1: "tokens"} for name in outputs if name not in varying}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter without another package's help is called old
        torch.onnx.export(
            _Exported(model, outputs).eval(),
            (ids, mask, torch.zeros_like(ids), torch.arange(5).repeat(2, 1)),
            str(file),
            input_names=list(INPUTS),
            output_names=list(outputs),
            dynamic_axes=varying,
            opset_version=OPSET,
            dynamo=False,
        )


def table_graph(
    file: Path,
    outputs: Mapping[str, Sequence[int | str | None] | None],
    *,
    element: int = TensorProto.INT64,
    further: Sequence[tuple[str, int, Sequence[int | str]]] = (),
    external: str | None = None,
    half: bool = False,
    normalized: Literal["states", "rows"] | None = None,
    quantizes: bool = False,
    large_rows: Sequence[int] = (),
) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """A graph whose hidden state of a token is its row of a table. Returns the table.

    outputs: names and declared shapes; those of rank 2 are the states' sum over the real tokens. normalized: what the
    graph divides by its norm. quantizes: states are rounded to 8 bit with one range for the batch. large_rows: of the
    table, whose norm is too large for float16.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    table = np.random.default_rng(3).standard_normal((50, 4), dtype=np.float32)
    table[[*large_rows]] = 40_000
    numbers = np.float16 if half else np.float32
    float_type = TensorProto.FLOAT16 if half else TensorProto.FLOAT
    inputs = [("input_ids", element, ["b", "s"]), ("attention_mask", element, ["b", "s"]), *further]
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["read"]),
        *_write_rounding("read", "rounded", does=quantizes),
        *_write_norm("rounded", "states", "last", does=normalized == "states"),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=float_type),
        helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
        helper.make_node("Mul", ["states", "column"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "middle"], ["totals"], keepdims=0),
        *_write_norm("totals", "sums", "middle", does=normalized == "rows"),
        *(
            helper.make_node(
                "Identity", ["sums" if shape is not None and len(shape) == 2 else "states"], [name]
            )
            for name, shape in outputs.items()
        ),
    ]
    weights = numpy_helper.from_array(table.astype(numbers), "table")
    constants = [
        numpy_helper.from_array(np.array(1e-6, numbers), "eps"),
        *(numpy_helper.from_array(np.array([place]), name) for name, place in (("last", 2), ("middle", 1))),
    ]
    graph = helper.make_graph(
        nodes,
        "table",
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs],
        [helper.make_tensor_value_info(name, float_type, shape) for name, shape in outputs.items()],
        initializer=[weights, *constants],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    if external is None:
        onnx.save(model, str(file))
    else:
        onnx.save(model, str(file), save_as_external_data=True, location=external, size_threshold=100)
    return table


def _write_rounding(source: str, target: str, *, does: bool) -> list[onnx.NodeProto]:
    if not does:
        return [helper.make_node("Identity", [source], [target])]
    parts = ["bytes", "scale", "zero"]
    return [
        helper.make_node("DynamicQuantizeLinear", [source], parts),
        helper.make_node("DequantizeLinear", parts, [target]),
    ]


def _write_norm(source: str, target: str, axis: str, *, does: bool) -> list[onnx.NodeProto]:
    if not does:
        return [helper.make_node("Identity", [source], [target])]
    return [
        helper.make_node("ReduceL2", [source, axis], ["norm"], keepdims=1),
        # ONNX Runtime computes this step in float16, and most others in float32.
        helper.make_node("Max", ["norm", "eps"], ["divisor"]),
        helper.make_node("Div", [source, "divisor"], [target]),
    ]


def unknown_family(folder: Path, **config: object) -> Path:
    """A folder that only an ONNX file can serve."""
    folder.mkdir(parents=True, exist_ok=True)
    small_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "novel", "hidden_size": 4} | config))
    return folder
