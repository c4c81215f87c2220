"""A small writer for ONNX graphs: unique names, nodes in order, initialisers by reference."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

FUSED = "com.microsoft"  # ONNX Runtime's own operators


class GraphWriter:
    """Collects nodes and initialisers. Sub-graphs share the parent's counter, so that all names differ."""

    def __init__(self, counter: Iterator[int] | None = None) -> None:
        self._counter = counter or itertools.count()
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, NDArray[np.generic]] = {}

    def subgraph(self) -> GraphWriter:
        return GraphWriter(self._counter)

    def fresh(self, stem: str) -> str:
        return f"{stem}_{next(self._counter)}"

    def constant(self, name: str, value: NDArray[np.generic]) -> str:
        """Keep `value` under `name`; the caller chooses a name that is used once."""
        self.initializers[name] = np.ascontiguousarray(value)
        return name

    def add(self, operator: str, *inputs: str, domain: str = "", **attributes: object) -> str:
        """Add a node with one output and return the output's name."""
        return self.add_many(operator, *inputs, outputs=1, domain=domain, **attributes)[0]

    def add_many(
        self, operator: str, *inputs: str, outputs: int, domain: str = "", **attributes: object
    ) -> list[str]:
        names = [self.fresh(operator) for _ in range(outputs)]
        self.nodes.append(helper.make_node(operator, list(inputs), names, domain=domain, **attributes))
        return names
