"""Says what a model takes in memory in the form that the operator plans its pods by.

The operator knows the settings of the pods, and they change without a new fetch; so a fetch reports the terms of
`plan.plan_memory` that depend on the model alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from embedserve_runtime.memory.sizes import ModelSizes


def describe_model_memory(sizes: ModelSizes, max_length: int) -> Mapping[str, int] | None:
    """Return the terms of the plan; None where batches are not known, as for a bundled graph.

    max_length: tokens of the longest text that the model takes.
    """
    activations = sizes.activations
    if activations is None:
        return None
    return {
        "fixedBytes": sizes.process + sizes.weights + sizes.tables + sizes.tokenizer,
        "loadingBytes": sizes.loading,
        "batchBytes": activations.fixed,
        "tokenBytes": activations.token,
        "scoreBytes": activations.table,
        "longTokenBytes": activations.long_token,
        "resultNumbers": sizes.columns,
        "maxLength": max_length,
    }
