"""The tensors of a head, found in the checkpoint and checked against the description."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.errors import ModelInvalid
from embedserve_runtime.model.architecture import NormKind
from embedserve_runtime.model.checkpoint import Checkpoint
from embedserve_runtime.model.heads.description import HeadLayer

NamedTensor = tuple[str, NDArray[np.generic]]


def head_tensors(checkpoint: Checkpoint, layers: Sequence[HeadLayer]) -> Iterator[NamedTensor]:
    """As stored, as `head.<number>.<part>`. Raises ModelInvalid naming what is missing or has another shape."""
    for number, layer in enumerate(layers):
        name, out = f"head.{number}", layer.out_features
        yield f"{name}.weight", _tensor(checkpoint, layer.weight, (out, layer.in_features))
        if layer.bias:
            yield f"{name}.bias", _tensor(checkpoint, layer.bias, (out,))
        if layer.norm is None:
            continue
        # gamma and beta are the old spelling.
        weights = [f"{norm}.{part}" for norm in layer.norm_names for part in ("weight", "gamma")]
        yield f"{name}.norm.weight", _tensor(checkpoint, weights, (out,))
        if layer.norm.kind is NormKind.LAYER and layer.norm.bias:
            biases = [f"{norm}.{part}" for norm in layer.norm_names for part in ("bias", "beta")]
            yield f"{name}.norm.bias", _tensor(checkpoint, biases, (out,))


def _tensor(checkpoint: Checkpoint, names: Sequence[str], shape: tuple[int, ...]) -> NDArray[np.generic]:
    found = next((name for name in names if name in checkpoint.names), None)
    if found is None:
        raise ModelInvalid(f"the checkpoint lacks a tensor of the model's head: {' or '.join(names)}")
    tensor = checkpoint.raw(found)
    if tensor.shape != shape:
        raise ModelInvalid(
            f"tensor {found} of the model's head has shape {list(tensor.shape)}, config.json asks for {list(shape)}"
        )
    return tensor
