"""The feed-forward part of a layer on packed tokens (tokens, hidden): an MLP, plain, gated or a mixture of experts, and
the convolution."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from embedserve_runtime.engines.torch.activations import ACTIVATIONS
from embedserve_runtime.engines.torch.packing import PackedTokens
from embedserve_runtime.engines.torch.parameters import Parameters
from embedserve_runtime.model.architecture import Convolution, Experts, Mlp


class PackedMlp:
    """down(activation(up(x))), or down(activation(gate(x)) * up(x)) with gate and up as one product."""

    def __init__(self, mlp: Mlp, parameters: Parameters, name: str) -> None:
        inner = [f"{name}.gate", f"{name}.up"] if mlp.gated else [f"{name}.up"]
        self._inner = parameters.load_linear(inner, mlp.up_bias)
        self._down = parameters.load_linear([f"{name}.down"], mlp.down_bias)
        self._gated = mlp.gated
        self._activation = ACTIVATIONS[mlp.activation]

    def __call__(self, value: Tensor) -> Tensor:
        inner = self._inner(value)
        if not self._gated:
            return self._down(self._activation(inner))
        gate, up = inner.chunk(2, dim=-1)
        return self._down(self._activation(gate) * up)


class PackedExperts:
    """Each expert runs once, on the tokens that chose it. How many those are, the host must know."""

    def __init__(self, experts: Experts, parameters: Parameters, name: str) -> None:
        shape = (experts.count, experts.intermediate, -1)
        # In float32 whatever the dtype: of two experts that are nearly alike another one would be chosen.
        self._router = parameters.load_tensor(f"{name}.router.weight", torch.float32)
        self._up = parameters.load_tensor(f"{name}.up.weight").view(shape)
        self._down = parameters.load_tensor(f"{name}.down.weight").view(shape)
        self._bias = parameters.load_tensor(f"{name}.bias")
        self._chosen = experts.chosen
        self._activation = ACTIVATIONS[experts.activation]

    def __call__(self, value: Tensor) -> Tensor:
        shares, picked = functional.linear(value.float(), self._router).softmax(-1).topk(self._chosen, dim=-1)
        # A choice is numbered token * chosen + rank.
        picked = picked.flatten()
        order = picked.argsort(stable=True)
        counts: list[int] = torch.bincount(picked, minlength=len(self._up)).tolist()
        groups = torch.split(value[order // self._chosen], counts)
        results = [
            self._activation(tokens @ up.T) @ down
            for tokens, up, down in zip(groups, self._up, self._down, strict=True)
        ]
        rows = torch.empty((len(order), value.shape[1]), dtype=value.dtype, device=value.device)
        rows[order] = torch.cat(results)
        weighed = rows.view(len(value), self._chosen, -1) * shares[..., None].to(value.dtype)
        return weighed.sum(dim=1) + self._bias


class PackedConvolution:
    """Each token's neighbors side by side, then one product.

    A neighbor counts when its position is as far from the token's as it lies from it: the positions of every
    sequence begin anew, so what is beyond a border never does.
    """

    def __init__(self, convolution: Convolution, parameters: Parameters, name: str) -> None:
        weight = parameters.load_tensor(f"{name}.weight")
        self._weight = weight.permute(0, 2, 1).flatten(1).contiguous()
        self._bias = parameters.load_tensor(f"{name}.bias")
        self._kernel = convolution.kernel
        self._activation = ACTIVATIONS[convolution.activation]

    def __call__(self, value: Tensor, tokens: PackedTokens) -> Tensor:
        half, count = self._kernel // 2, len(value)
        padded = functional.pad(value, (0, 0, half, half))
        positions = functional.pad(tokens.positions, (half, half), value=-half - 1)
        pieces = []
        for offset in range(self._kernel):
            real = positions[offset : offset + count] == tokens.positions + (offset - half)
            pieces.append(padded[offset : offset + count] * real[:, None])
        joined = functional.linear(torch.cat(pieces, dim=1), self._weight, self._bias)
        return self._activation(joined)


def build_mlp(mlp: Mlp | Experts, parameters: Parameters, name: str) -> PackedMlp | PackedExperts:
    if isinstance(mlp, Experts):
        return PackedExperts(mlp, parameters, name)
    return PackedMlp(mlp, parameters, name)
