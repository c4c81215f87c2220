"""Writes ONNX graphs: unique names, nodes in order, initializers by reference."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterator
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

FUSED = "com.microsoft"  # ONNX Runtime's own operators


class GraphWriter:
    """Collects nodes and initializers. Sub-graphs share counter and initializers, so that all names differ.

    stem: what all names of values begin with.
    """

    def __init__(self, parent: GraphWriter | None = None, *, stem: str = "") -> None:
        self._stem: str = parent._stem if parent else stem
        self._counter: Iterator[int] = parent._counter if parent else itertools.count()
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, NDArray[np.generic]] = parent.initializers if parent else {}

    def open_subgraph(self) -> GraphWriter:
        return GraphWriter(self)

    def continue_later(self) -> GraphWriter:
        """Return a writer of nodes that come later in the same graph."""
        return GraphWriter(self)

    def make_name(self, stem: str) -> str:
        return f"{self._stem}{stem}_{next(self._counter)}"

    def add_constant(self, name: str, value: NDArray[np.generic]) -> str:
        """Keep `value` under `name`. A name stands for one value: asking again gives the same initializer."""
        if name not in self.initializers:
            self.initializers[name] = np.asarray(value, order="C")
        return name

    def add_integers(self, *values: int) -> str:
        """Add a one-dimensional int64 constant."""
        return self.add_constant(f"integers:{','.join(map(str, values))}", np.array(values, dtype=np.int64))

    def add_scalar(self, value: int) -> str:
        """Add an int64 constant without dimensions."""
        return self.add_constant(f"scalar:{value}", np.array(value, dtype=np.int64))

    def add(self, operator: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node with one output and return the output's name."""
        return self.add_many(operator, *inputs, outputs=1, domain=domain, **attributes)[0]

    def add_named(self, operator: str, output: str, *inputs: str, **attributes: Any) -> None:
        """Add a node whose output has this name."""
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))

    def add_many(
        self,
        operator: str,
        *inputs: str,
        outputs: int,
        domain: str = "",
        unused: Container[int] = (),
        **attributes: Any,
    ) -> list[str]:
        """Add a node with several outputs; those numbered in `unused` get no name and are not computed."""
        names = ["" if number in unused else self.make_name(operator) for number in range(outputs)]
        self.nodes.append(helper.make_node(operator, list(inputs), names, domain=domain, **attributes))
        return names


def build_branch(body: GraphWriter, value: str, name: str) -> onnx.GraphProto:
    """Build a graph without inputs that gives `value`."""
    output = helper.make_tensor_value_info(value, TensorProto.FLOAT, None)
    return helper.make_graph(body.nodes, name, [], [output])


def add_loop(
    graph: GraphWriter, count: str, write_item: Callable[[GraphWriter, str], str], *, axis: int, name: str
) -> str:
    """Add a loop of `count` rounds; its result is what the rounds give, end to end along `axis`.

    count: int64 without dimensions, at least 1. write_item: writes a round's nodes into the body, given the number of
    the round, int64 without dimensions; returns what it gives, float32. name: of the loop's body.
    """
    body = graph.open_subgraph()
    number, keep_going, collected = (
        body.make_name("number"),
        body.make_name("keep_going"),
        body.make_name("collected"),
    )
    grown = body.add("SequenceInsert", collected, write_item(body, number))
    still = body.add("Identity", keep_going)
    nodes = helper.make_graph(
        body.nodes,
        name,
        [
            helper.make_tensor_value_info(number, TensorProto.INT64, []),
            helper.make_tensor_value_info(keep_going, TensorProto.BOOL, []),
            helper.make_tensor_sequence_value_info(collected, TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info(still, TensorProto.BOOL, []),
            helper.make_tensor_sequence_value_info(grown, TensorProto.FLOAT, None),
        ],
    )
    results = graph.add("Loop", count, "", graph.add("SequenceEmpty"), body=nodes)
    return graph.add("ConcatFromSequence", results, axis=axis)
