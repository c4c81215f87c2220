"""The tensors of a head, found in the checkpoint and checked against the description."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.errors import ModelInvalid
from embedserve_runtime.model.architecture import NormKind
from embedserve_runtime.model.checkpoint import StoredTensors
from embedserve_runtime.model.heads.description import HeadLayer
from embedserve_runtime.model.tensors import ModelTensors, NamedTensor, TensorReader


def read_head_tensors(
    tensors: ModelTensors, checkpoint: StoredTensors, layers: Sequence[HeadLayer]
) -> Iterator[NamedTensor]:
    """Read the tensors as stored, named `head.<number>.<part>`. checkpoint: the encoder's; layers may have files of
    their own.

    Raises ModelInvalid naming what is missing or has another shape.
    """
    for number, layer in enumerate(layers):
        source: TensorReader = tensors.open(layer.file) if layer.file else checkpoint
        name, out = f"head.{number}", layer.out_features
        if layer.rows:
            yield f"{name}.weight", _read_difference(checkpoint, layer)
        else:
            weight = _read_tensor(source, layer.weight, (out, layer.in_features))
            yield f"{name}.weight", weight if layer.divisor == 1.0 else _divide(weight, layer.divisor)
        if layer.bias:
            yield f"{name}.bias", _read_tensor(source, layer.bias, (out,))
        if layer.residual_weight:
            yield f"{name}.residual", _read_tensor(source, layer.residual_weight, (out, layer.in_features))
        if layer.norm is None:
            continue
        if layer.norm_file:
            source = tensors.open(layer.norm_file)
        # gamma and beta are the old spelling.
        weights = [f"{norm}.{part}" for norm in layer.norm_names for part in ("weight", "gamma")]
        yield f"{name}.norm.weight", _read_tensor(source, weights, (out,))
        if layer.norm.kind is NormKind.LAYER and layer.norm.bias:
            biases = [f"{norm}.{part}" for norm in layer.norm_names for part in ("bias", "beta")]
            yield f"{name}.norm.bias", _read_tensor(source, biases, (out,))


def _read_difference(checkpoint: StoredTensors, layer: HeadLayer) -> NDArray[np.generic]:
    """Take one row of the stored weight, or the first less the second, by the divisor; float32, (1, in features)."""
    name = _find_name(checkpoint, layer.weight)
    rows = [checkpoint.read_rows(name, row, row + 1)[0].astype(np.float32) for row in layer.rows]
    if rows[0].shape != (layer.in_features,):
        raise ModelInvalid(
            f"tensor {name} of the model's head has rows of {list(rows[0].shape)}, config.json asks for "
            f"{[layer.in_features]}"
        )
    weight = rows[0] if len(rows) == 1 else rows[0] - rows[1]
    return _divide(weight, layer.divisor)[None]


def _divide(weight: NDArray[np.generic], divisor: float) -> NDArray[np.float32]:
    divided: NDArray[np.float32] = weight.astype(np.float32) / np.float32(divisor)
    return divided


def _read_tensor(source: TensorReader, names: Sequence[str], shape: tuple[int, ...]) -> NDArray[np.generic]:
    name = _find_name(source, names)
    tensor = source.read_tensor(name)
    if tensor.shape != shape:
        raise ModelInvalid(
            f"tensor {name} of the model's head has shape {list(tensor.shape)}, config.json asks for {list(shape)}"
        )
    return tensor


def _find_name(source: TensorReader, names: Sequence[str]) -> str:
    stored = next((name for name in names if name in source.names), None)
    if stored is None:
        raise ModelInvalid(f"the model lacks a tensor of its head: {' or '.join(names)}, by config.json")
    return stored
