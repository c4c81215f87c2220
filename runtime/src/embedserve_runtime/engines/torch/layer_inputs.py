"""Computes what layers read of the embeddings beside their inputs (`model.architecture.LayerInputs`), on packed
tokens."""

from __future__ import annotations

from torch import Tensor

from embedserve_runtime.engines.torch.activations import ACTIVATIONS
from embedserve_runtime.engines.torch.parameters import Parameters
from embedserve_runtime.model.architecture import LayerInputs


class PackedLayerInputs:
    """Computes the layer input of each layer from the embeddings."""

    def __init__(self, inputs: LayerInputs, parameters: Parameters) -> None:
        self._width, self._scale = inputs.width, inputs.scale
        self._projection = parameters.load_linear(["layer_inputs.projection"], bias=False)
        self._norm = parameters.load_norm(inputs.norm, "layer_inputs.norm")

    def __call__(self, embeddings: Tensor) -> tuple[Tensor, ...]:
        """Compute a tensor for each layer, (tokens, hidden) to (tokens, width)."""
        projected = self._projection(embeddings) * self._scale
        return self._norm(projected.view(len(embeddings), -1, self._width)).unbind(1)


class PackedLayerInput:
    """One layer's branch, which mixes what it reads of the embeddings into its output. name: of the parameters."""

    def __init__(self, inputs: LayerInputs, parameters: Parameters, name: str) -> None:
        self._activate = ACTIVATIONS[inputs.activation]
        self._gate = parameters.load_linear([f"{name}.gate"], bias=False)
        self._projection = parameters.load_linear([f"{name}.projection"], bias=False)
        self._norm = parameters.load_norm(inputs.norm, f"{name}.norm")
        self._factor = parameters.load_tensor(f"{name}.factor")

    def __call__(self, output: Tensor, layer_input: Tensor) -> Tensor:
        """Mix the layer input into the output of attention and MLP. output: (tokens, hidden). layer_input: (tokens,
        width)."""
        mixed = self._projection(self._activate(self._gate(output)) * layer_input)
        return (output + self._norm(mixed)) * self._factor
