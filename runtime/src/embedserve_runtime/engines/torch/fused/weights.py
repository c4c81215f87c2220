"""Loads the weights of the products and norms of a layer, from which all its forms are built."""

from __future__ import annotations

from dataclasses import dataclass

from embedserve_runtime.engines.torch.parameters import Linear, Parameters
from embedserve_runtime.engines.torch.tables import LayerNorms
from embedserve_runtime.model.architecture import Layer, Mlp


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """The weights of a layer.

    qkv_proj: the fused queries, keys and values. up: gate before up where the MLP is gated.
    """

    qkv_proj: Linear
    output: Linear
    up: Linear
    down: Linear
    norms: LayerNorms
    mlp: Mlp

    @classmethod
    def load(cls, layer: Layer, parameters: Parameters, name: str) -> LayerWeights:
        mlp = layer.mlp
        assert isinstance(mlp, Mlp)  # `find_fused_obstacle` names the others
        qkv_proj = [f"{name}.attention.{part}" for part in ("query", "key", "value")]
        up = [f"{name}.mlp.gate", f"{name}.mlp.up"] if mlp.gated else [f"{name}.mlp.up"]
        return cls(
            qkv_proj=parameters.load_linear(qkv_proj, layer.attention.qkv_bias),
            output=parameters.load_linear([f"{name}.attention.output"], layer.attention.output_bias),
            up=parameters.load_linear(up, mlp.up_bias),
            down=parameters.load_linear([f"{name}.mlp.down"], mlp.down_bias),
            norms=LayerNorms.load(layer, parameters, name),
            mlp=mlp,
        )
