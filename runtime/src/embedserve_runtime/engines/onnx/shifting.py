"""Moves each row of a table by its own number, which turns columns that stand for distances into keys, and back."""

from __future__ import annotations

from embedserve_runtime.engines.onnx.nodes import GraphWriter


def shift_rows(graph: GraphWriter, values: str, rows: str, width: str) -> str:
    """Shift each row by its number, (a, b, rows, width) to (a, b, rows, width - 1): entry (i, j) is (i, j - i + rows -
    1), for all j up to width - rows; those after them have no meaning. rows, width: int64 (1,).

    Read row after row that is index i * (width - 1) + j + rows - 1: rows of width - 1 from index rows - 1 on.
    """
    constant = graph.add_integers(1)
    narrow = graph.add("Sub", width, constant)
    flat = graph.add("Reshape", values, graph.add_integers(0, 0, -1))
    start = graph.add("Sub", rows, constant)
    end = graph.add("Add", start, graph.add("Mul", rows, narrow))
    cut = graph.add("Slice", flat, start, end, graph.add_integers(2))
    return graph.add("Reshape", cut, graph.add("Concat", graph.add_integers(0, 0), rows, narrow, axis=0))
