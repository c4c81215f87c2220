"""A small writer for ONNX graphs: unique names, nodes in order, initialisers by reference."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

FUSED = "com.microsoft"  # ONNX Runtime's own operators


class GraphWriter:
    """Collects nodes and initialisers. Sub-graphs share counter and initialisers, so that all names differ.

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
        """Keep `value` under `name`. A name stands for one value: asking again gives the same initialiser."""
        if name not in self.initializers:
            self.initializers[name] = np.asarray(value, order="C")
        return name

    def add_integers(self, *values: int) -> str:
        """A one-dimensional int64 constant."""
        return self.add_constant(f"integers:{','.join(map(str, values))}", np.array(values, dtype=np.int64))

    def add_scalar(self, value: int) -> str:
        """An int64 constant without dimensions."""
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
