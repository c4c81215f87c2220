"""Rewrites a float32 graph, as `engines.onnx.graph` writes it, to another precision.

The graph lies in a folder with its weights in a file next to it. Weights are read, changed and written one by one, so
that a model need not be in memory twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from embedserve_runtime.conversion.quantizing import (
    BlockQuantization,
    StaticQuantization,
    quantize_blocks,
    quantize_static,
)
from embedserve_runtime.engines.onnx.artifacts import MODEL_FILE, WEIGHTS_FILE
from embedserve_runtime.engines.onnx.graph import declare_initializer
from embedserve_runtime.engines.onnx.nodes import FUSED
from embedserve_runtime.engines.onnx.spool import write_weights
from embedserve_runtime.forward.arrays import FloatArray

# Narrower products stay as they are: there is nothing to gain, and a router of experts must not choose others.
MIN_WIDTH = 16
# MatMulNBits: inputs in 8 bit too.
EIGHT_BIT_INPUTS = 4

Array = NDArray[np.generic]
Form = StaticQuantization | BlockQuantization
Named = tuple[str, Array]


@dataclass(frozen=True, slots=True)
class Product:
    """A product with a matrix of the model. value: what is multiplied; weight: the matrix (columns, outputs)."""

    value: str
    weight: str


class FloatGraph:
    """The float32 graph of a folder, and read access to its weights."""

    def __init__(self, folder: Path) -> None:
        self.model = onnx.load(str(folder / MODEL_FILE), load_external_data=False)
        self._file = folder / WEIGHTS_FILE
        self._tensors = {
            tensor.name: tensor
            for tensor in self.model.graph.initializer
            if tensor.data_location == TensorProto.EXTERNAL
        }

    @property
    def names(self) -> list[str]:
        return list(self._tensors)

    def read(self, name: str) -> FloatArray:
        tensor = self._tensors[name]
        offset = next(int(entry.value) for entry in tensor.external_data if entry.key == "offset")
        count = int(np.prod(tensor.dims, dtype=np.int64))
        return np.fromfile(self._file, dtype=np.float32, count=count, offset=offset).reshape(tensor.dims)

    def list_products(self) -> list[Product]:
        """List the matrix products that are wide enough for another precision, in the order of the graph."""
        return [
            Product(node.input[0], node.input[1])
            for node in self.model.graph.node
            if node.op_type in ("MatMul", "Gemm") and self._is_wide(node.input[1])
        ]

    def list_tables(self) -> list[str]:
        """List the matrices that rows are taken from by number."""
        return [
            node.input[0]
            for node in self.model.graph.node
            if node.op_type == "Gather" and node.input[0] in self._tensors and len(node.attribute) == 0
        ]

    def _is_wide(self, name: str) -> bool:
        tensor = self._tensors.get(name)
        return tensor is not None and len(tensor.dims) == 2 and min(tensor.dims) >= MIN_WIDTH


def write_model(
    folder: Path, model: onnx.ModelProto, arrays: Iterator[Named], metadata: Mapping[str, str]
) -> None:
    """Write graph and weights into the new folder. metadata: what the file says about itself."""
    folder.mkdir()
    write_weights(folder / WEIGHTS_FILE, model, arrays)
    helper.set_model_props(model, dict(metadata))
    (folder / MODEL_FILE).write_bytes(model.SerializeToString(deterministic=True))


def convert_weights_to_half(graph: FloatGraph) -> tuple[onnx.ModelProto, Iterator[Named]]:
    """Convert all matrices to float16; products are still computed in float32."""
    rewriter = _Rewriter(graph)
    for name in dict.fromkeys([*(product.weight for product in graph.list_products()), *graph.list_tables()]):
        rewriter.halve(name)
    return rewriter.finish()


def convert_to_plain_products(graph: FloatGraph) -> tuple[onnx.ModelProto, Iterator[Named]]:
    """Convert products to MatMul, with biases added after them, which `session.BFLOAT16_PRODUCTS` acts on. The
    weights stay as they are."""
    rewriter = _Rewriter(graph)
    for product in graph.list_products():
        rewriter.make_plain(product.weight)
    return rewriter.finish()


def convert_to_eight_bit(
    graph: FloatGraph, forms: Mapping[str, Form], greatest: int
) -> tuple[onnx.ModelProto, Iterator[Named]]:
    """Convert products to 8 bit, in the form that is given for their weight, float32 without one; tables in float16.

    greatest: of a static form's weights; 127, or less where sums could overflow.
    """
    rewriter = _Rewriter(graph)
    for name in dict.fromkeys(graph.list_tables()):
        rewriter.halve(name)
    for weight, form in forms.items():
        match form:
            case StaticQuantization():
                rewriter.make_static(weight, form, greatest)
            case BlockQuantization():
                rewriter.make_blocks(weight, form)
    return rewriter.finish()


class _Rewriter:
    """Collects what is to be done, and does it in one pass."""

    def __init__(self, graph: FloatGraph) -> None:
        self._graph = graph
        self._nodes: dict[str, Callable[[onnx.NodeProto], list[onnx.NodeProto]]] = {}
        self._arrays: dict[str, Callable[[], Iterator[Named]]] = {}
        self._new: dict[str, Array] = {}

    def halve(self, name: str) -> None:
        """Keep the matrix in float16. Rows that are taken from it, or the whole of it, become float32 again."""
        half = f"{name}:float16"

        def build_nodes(node: onnx.NodeProto) -> list[onnx.NodeProto]:
            replaced = onnx.NodeProto()
            replaced.CopyFrom(node)
            position = list(node.input).index(name)
            if node.op_type == "Gather":
                replaced.input[position], replaced.output[0] = half, f"{node.output[0]}:float16"
                return [replaced, _cast(replaced.output[0], node.output[0])]
            replaced.input[position] = f"{half}:{node.output[0]}"
            return [_cast(half, replaced.input[position]), replaced]

        self._nodes[name] = build_nodes
        self._declare(name, {half: (np.float16, None)}, lambda weight: {half: weight.astype(np.float16)})

    def make_plain(self, name: str) -> None:
        def build_nodes(node: onnx.NodeProto) -> list[onnx.NodeProto]:
            value, weight, *bias = node.input
            (output,) = node.output
            if not bias:
                return [helper.make_node("MatMul", [value, weight], [output])]
            product = f"{output}:product"
            return [
                helper.make_node("MatMul", [value, weight], [product]),
                helper.make_node("Add", [product, *bias], [output]),
            ]

        self._nodes[name] = build_nodes

    def make_static(self, name: str, form: StaticQuantization, greatest: int) -> None:
        whole, scales = f"{name}:int8", f"{name}:scales"
        scale = self._add_scalar(f"{name}:input_scale", np.float32(form.scale))
        zero = self._add_scalar(f"{name}:input_zero_point", np.uint8(form.zero_point))

        def build_nodes(node: onnx.NodeProto) -> list[onnx.NodeProto]:
            value, output, nodes = node.input[0], node.output[0], []
            if form.factors is not None:
                nodes.append(helper.make_node("Mul", [value, f"{name}:factors"], [f"{output}:smooth"]))
                value = f"{output}:smooth"
            nodes.append(helper.make_node("QuantizeLinear", [value, scale, zero], [f"{output}:quantised"]))
            inputs = [f"{output}:quantised", whole, scale, scales, zero, "", *node.input[2:]]
            nodes.append(helper.make_node("MatMulIntegerToFloat", inputs, [output], domain=FUSED))
            return nodes

        def build_arrays(weight: FloatArray) -> dict[str, Array]:
            values: dict[str, Array] = {}
            values[whole], values[scales] = quantize_static(weight, form, greatest)
            if form.factors is not None:
                values[f"{name}:factors"] = 1 / form.factors
            return values

        outputs = self._get_shape(name)[1]
        kinds: dict[str, tuple[Any, tuple[int, ...] | None]] = {
            whole: (np.int8, None),
            scales: (np.float32, (outputs,)),
        }
        if form.factors is not None:
            kinds[f"{name}:factors"] = (np.float32, form.factors.shape)
        self._nodes[name] = build_nodes
        self._declare(name, kinds, build_arrays)

    def make_blocks(self, name: str, form: BlockQuantization) -> None:
        whole, scales = f"{name}:blocks", f"{name}:scales"
        columns, outputs = self._get_shape(name)
        blocks = -(-columns // form.size)

        def build_nodes(node: onnx.NodeProto) -> list[onnx.NodeProto]:
            attributes = {"K": columns, "N": outputs, "bits": 8, "block_size": form.size}
            inputs = [node.input[0], whole, scales, "", "", *node.input[2:]]
            return [
                helper.make_node(
                    "MatMulNBits",
                    inputs,
                    node.output,
                    domain=FUSED,
                    accuracy_level=EIGHT_BIT_INPUTS,
                    **attributes,
                )
            ]

        def build_arrays(weight: FloatArray) -> dict[str, Array]:
            return dict(zip((whole, scales), quantize_blocks(weight, form), strict=True))

        self._nodes[name] = build_nodes
        shapes: dict[str, tuple[Any, tuple[int, ...] | None]] = {
            whole: (np.uint8, (outputs, blocks, form.size)),
            scales: (np.float32, (outputs, blocks)),
        }
        self._declare(name, shapes, build_arrays)

    def finish(self) -> tuple[onnx.ModelProto, Iterator[Named]]:
        """Return the model, and its weights as they are made."""
        source, model = self._graph.model, onnx.ModelProto()
        model.CopyFrom(source)
        del model.graph.node[:], model.graph.initializer[:]
        for node in source.graph.node:
            changes = [self._nodes[name] for name in node.input if name in self._nodes]
            model.graph.node.extend(changes[0](node) if changes else [node])
        for tensor in source.graph.initializer:
            if tensor.name not in self._arrays:
                model.graph.initializer.append(tensor)
        for name, value in self._new.items():
            inside = value.ndim == 0
            model.graph.initializer.append(
                numpy_helper.from_array(value, name) if inside else declare_initializer(name, value)
            )
        return model, self._stream()

    def _stream(self) -> Iterator[Named]:
        for name in self._graph.names:
            if name in self._arrays:
                yield from self._arrays[name]()
            else:
                yield name, self._graph.read(name)

    def _declare(
        self,
        name: str,
        kinds: Mapping[str, tuple[Any, tuple[int, ...] | None]],
        change: Callable[[FloatArray], Mapping[str, Array]],
    ) -> None:
        """Declare what replaces the weight: name, dtype and shape (None: its own) of each array, and how they are
        made."""
        for new, (dtype, shape) in kinds.items():
            # Of these only dtype and shape are read: no memory is taken.
            self._new[new] = np.broadcast_to(
                np.zeros((), dtype), self._get_shape(name) if shape is None else shape
            )
        self._arrays[name] = lambda: iter(change(self._graph.read(name)).items())

    def _add_scalar(self, name: str, value: np.generic) -> str:
        self._new[name] = np.asarray(value)
        return name

    def _get_shape(self, name: str) -> tuple[int, ...]:
        tensor = next(
            initializer for initializer in self._graph.model.graph.initializer if initializer.name == name
        )
        return tuple(tensor.dims)


def _cast(value: str, output: str) -> onnx.NodeProto:
    return helper.make_node("Cast", [value], [output], to=TensorProto.FLOAT)
