"""Describes parts that several families share: activation names, the layer of BERT, and maps of parameter names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from embedserve_runtime.errors import UnsupportedArchitecture
from embedserve_runtime.model.activations import Activation
from embedserve_runtime.model.architecture import (
    Attention,
    Experts,
    Layer,
    Mlp,
    Norm,
    NormKind,
    NormPlacement,
)
from embedserve_runtime.model.parameter_names import TensorSource

Sources = dict[str, tuple[TensorSource, ...]]

# Names that config.json uses (transformers' ACT2FN) for activations that we have.
ACTIVATIONS = {
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_fast": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "relu": Activation.RELU,
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "tanh": Activation.TANH,
}


def read_activation(path: Path, field: str, name: str) -> Activation:
    """Return the activation of a name. Raises UnsupportedArchitecture naming file and field."""
    if name not in ACTIVATIONS:
        raise unsupported_error(path, field, name)
    return ACTIVATIONS[name]


def unsupported_error(path: Path, field: str, value: object) -> UnsupportedArchitecture:
    return UnsupportedArchitecture(f"{path}: {field} = {value!r} is not supported")


def compute_head_size(path: Path, hidden_size: int, heads: int) -> int:
    """Compute the size of a head, hidden_size / heads. Raises UnsupportedArchitecture when it is not whole."""
    if hidden_size % heads:
        raise unsupported_error(path, "num_attention_heads", heads)
    return hidden_size // heads


def describe_attention(path: Path, hidden_size: int, heads: int, *, bias: bool = True) -> Attention:
    """Describe BERT's attention: each head has keys and values of its own, and its scores are divided by the root of
    its size. Raises UnsupportedArchitecture when the heads do not share the hidden size evenly."""
    return describe_attention_of_size(compute_head_size(path, hidden_size, heads), heads, bias=bias)


def describe_attention_of_size(size: int, heads: int, *, bias: bool = True) -> Attention:
    """Describe heads whose size is not hidden_size / heads."""
    return Attention(heads, heads, size, scale=size**-0.5, qkv_bias=bias, output_bias=bias)


def describe_mlp(path: Path, field: str, name: str, intermediate: int) -> Mlp:
    """Describe BERT's MLP: no gate, two biases.

    field, name: the key of config.json for the activation, and what it says.
    """
    return Mlp(intermediate, read_activation(path, field, name), gated=False, up_bias=True, down_bias=True)


def layer_norm(eps: float) -> Norm:
    return Norm(NormKind.LAYER, eps)


def describe_post_norm_layer(attention: Attention, mlp: Mlp | Experts, norm: Norm) -> Layer:
    """Describe BERT's layer, with both norms after the addition."""
    return Layer(attention, mlp, NormPlacement.POST, norm)


def map_tensor(ours: str, *theirs: str) -> Sources:
    return {ours: tuple(TensorSource(name) for name in theirs)}


def map_linear(ours: str, *theirs: str, part: int = 0, parts: int = 1, transpose: bool = False) -> Sources:
    """Map the weight and bias of a product; with `parts`, one of the equal row blocks of a fused one."""
    return {
        f"{ours}.weight": tuple(TensorSource(f"{name}.weight", part, parts, transpose) for name in theirs),
        f"{ours}.bias": tuple(TensorSource(f"{name}.bias", part, parts) for name in theirs),
    }


def map_norm(ours: str, *theirs: str) -> Sources:
    """Map the weight and bias of a norm, spelled as today (weight, bias) or as in old checkpoints (gamma, beta)."""
    return {
        f"{ours}.weight": tuple(
            TensorSource(f"{name}.{part}") for name in theirs for part in ("weight", "gamma")
        ),
        f"{ours}.bias": tuple(TensorSource(f"{name}.{part}") for name in theirs for part in ("bias", "beta")),
    }


# Types of layers, as config.json's `layer_types` names them.
FULL, SLIDING = "full_attention", "sliding_attention"


def check_layer_types(path: Path, layer_types: list[str], layers: int) -> list[str]:
    """Return `layer_types` as given. Raises UnsupportedArchitecture when a type is unknown or the count is wrong."""
    if len(layer_types) != layers or not set(layer_types) <= {FULL, SLIDING}:
        raise unsupported_error(path, "layer_types", layer_types)
    return layer_types


def refuse(path: Path, fields: Iterable[tuple[str, object, object]]) -> None:
    """Raise UnsupportedArchitecture for the first (field, value, only value that is supported) that differs."""
    for field, value, supported in fields:
        if value != supported:
            raise unsupported_error(path, field, value)


def merge_sources(*sources: Sources) -> Sources:
    """Merge maps of parameters: where several name one parameter, its sources are tried in their order."""
    joined: Sources = {}
    for sources_of in sources:
        for ours, theirs in sources_of.items():
            joined[ours] = joined.get(ours, ()) + theirs
    return joined


def map_query_key_value(fused: str, *attentions: str) -> Sources:
    """Map the products of queries, keys and values to a fused one, and where it is not there, to products of their own.

    fused: the name of the one that has the rows of all three, in this order. attentions: the names of the modules in
    which their own products are called `q_proj`, `k_proj` and `v_proj`, tried in their order.
    """
    names = ("query", "key", "value")
    return merge_sources(
        *(
            map_linear(f"layers.{{layer}}.attention.{name}", fused, part=part, parts=3)
            for part, name in enumerate(names)
        ),
        *(
            map_linear(
                f"layers.{{layer}}.attention.{name}", *(f"{prefix}.{name[0]}_proj" for prefix in attentions)
            )
            for name in names
        ),
    )
