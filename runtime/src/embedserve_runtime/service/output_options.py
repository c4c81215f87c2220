"""Refuses options of outputs that a request does not ask for: they would be ignored silently."""

from __future__ import annotations

from embedserve_runtime.errors import InvalidInput
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.service.output_names import OUTPUT_NAMES
from embedserve_runtime.service.types import EmbedQuery


def check_output_options(query: EmbedQuery) -> None:
    """Raise InvalidInput for an option of an output that is not among those of the query."""
    if query.outputs is OutputKind.DENSE and (query.top_k, query.threshold, query.pool_factor) == (
        None,
        0,
        None,
    ):
        return  # most requests
    outputs = query.outputs if query.spans is None else query.outputs | OutputKind.DENSE
    options = (
        ("dimensions", query.dimensions is not None, OutputKind.DENSE),
        ("normalize", query.normalize is False, OutputKind.DENSE),
        ("top_k", query.top_k is not None, OutputKind.SPARSE),
        ("threshold", query.threshold > 0, OutputKind.SPARSE),
        ("pool_factor", query.pool_factor is not None, OutputKind.MULTI_VECTOR),
    )
    for name, is_set, output in options:
        if is_set and output not in outputs:
            raise InvalidInput(f"`{name}` is for {OUTPUT_NAMES[output]}, which are not among the outputs")
