"""Self-attention over packed tokens: fused QKV product, query/key norms, rotary positions, a kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from embedserve_runtime.engines.torch.disentangled import build_disentangled_term
from embedserve_runtime.engines.torch.kernels import (
    DistanceTerm,
    GroupedKernel,
    Kernel,
    KernelKind,
    ScoreTerm,
    VarlenKernel,
)
from embedserve_runtime.engines.torch.packing import PackedTokens
from embedserve_runtime.engines.torch.parameters import Linear, Normalization, Parameters
from embedserve_runtime.model.architecture import Attention, Encoder, QkNormScope, RelativeBuckets, Rotary
from embedserve_runtime.model.relative import compute_distance_table


@dataclass(frozen=True, slots=True, eq=False)
class RotaryTable:
    """The cosines and sines of rotary positions, float32, (positions or tokens, 1, frequencies)."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def build(cls, rotary: Rotary, max_positions: int, parameters: Parameters) -> RotaryTable:
        frequencies = np.array(rotary.inverse_frequencies, dtype=np.float32)
        angles = (np.arange(max_positions, dtype=np.float32)[:, None] * frequencies)[:, None]
        scaling = np.float32(rotary.scaling)
        return cls(
            parameters.copy_array(np.cos(angles) * scaling), parameters.copy_array(np.sin(angles) * scaling)
        )

    def select(self, positions: Tensor) -> RotaryTable:
        return RotaryTable(self.cos[positions], self.sin[positions])

    def apply(self, value: Tensor) -> Tensor:
        """Rotate the first dimensions of each head, in halves; in float32, since 16-bit angles move far tokens."""
        half = self.cos.shape[-1]
        first, second = value[..., :half].float(), value[..., half : 2 * half].float()
        rotated = torch.cat(
            (first * self.cos - second * self.sin, second * self.cos + first * self.sin), dim=-1
        ).to(value.dtype)
        if 2 * half == value.shape[-1]:
            return rotated
        return torch.cat((rotated, value[..., 2 * half :]), dim=-1)


class SelfAttention:
    """Self-attention with its output product: packed (tokens, hidden) to packed (tokens, hidden)."""

    def __init__(self, description: Attention, parameters: Parameters, kernel: Kernel, name: str) -> None:
        self._heads = description.heads
        self._kv_heads = description.kv_heads
        self._head_size = description.head_size
        self._kernel = kernel
        names = [f"{name}.{part}" for part in ("query", "key", "value")]
        self._qkv_proj: Linear = parameters.load_linear(names, description.qkv_bias)
        self._output: Linear = parameters.load_linear([f"{name}.output"], description.output_bias)
        self._query_norm: Normalization | None = None
        self._key_norm: Normalization | None = None
        self._norm_per_head = True
        self._value_norm_eps = description.value_norm_eps
        if description.qk_norm is not None:
            self._query_norm = parameters.load_norm(description.qk_norm.norm, f"{name}.query_norm")
            self._key_norm = parameters.load_norm(description.qk_norm.norm, f"{name}.key_norm")
            self._norm_per_head = description.qk_norm.scope is QkNormScope.HEAD

    def __call__(self, hidden: Tensor, tokens: PackedTokens, rotary: RotaryTable | None) -> Tensor:
        qkv = self._qkv_proj(hidden).view(-1, self._heads + 2 * self._kv_heads, self._head_size)
        keys_end = self._heads + self._kv_heads
        query, key, value = qkv[:, : self._heads], qkv[:, self._heads : keys_end], qkv[:, keys_end:]
        query, key = self._normalize(query, self._query_norm), self._normalize(key, self._key_norm)
        if self._value_norm_eps is not None:
            wide = functional.rms_norm(value.float(), (self._head_size,), eps=self._value_norm_eps)
            value = wide.to(value.dtype)
        if rotary is not None:
            query, key = rotary.apply(query), rotary.apply(key)
        return self._output(self._kernel(query, key, value, tokens).flatten(1))

    def _normalize(self, value: Tensor, norm: Normalization | None) -> Tensor:
        if norm is None:
            return value
        return norm(value) if self._norm_per_head else norm(value.flatten(1)).view(value.shape)


class AttentionKernels:
    """Builds the attention kernel of each layer; layers of one form share its tables."""

    def __init__(self, encoder: Encoder, parameters: Parameters, kind: KernelKind) -> None:
        self._encoder = encoder
        self._parameters = parameters
        self._kind = kind
        self._distances: dict[tuple[object, ...], DistanceTerm | None] = {}
        self._relative_embeddings = compute_relative_embeddings(encoder, parameters)

    def get_kernel(self, description: Attention, name: str) -> Kernel:
        if self._kind is KernelKind.VARLEN:
            return VarlenKernel(description)
        terms: list[ScoreTerm] = []
        distance = self._get_distance_term(description)
        if distance is not None:
            terms.append(distance)
        if self._relative_embeddings is not None:
            positions = build_disentangled_term(
                self._parameters, description, self._relative_embeddings, self._encoder.max_positions, name
            )
            if positions is not None:
                terms.append(positions)
        return GroupedKernel(description, tuple(terms))

    def _get_distance_term(self, description: Attention) -> DistanceTerm | None:
        form = (description.causal, description.window, description.distance_bias)
        if form not in self._distances:
            learned = isinstance(description.distance_bias, RelativeBuckets)
            buckets = self._parameters.read_float32("relative_bias.weight") if learned else None
            table = compute_distance_table(description, self._encoder.max_positions, buckets)
            self._distances[form] = (
                None
                if table is None
                else DistanceTerm(self._parameters.copy_array(table, self._parameters.dtype))
            )
        return self._distances[form]


def compute_relative_embeddings(encoder: Encoder, parameters: Parameters) -> Tensor | None:
    """Return DeBERTa's table of relative positions after its norm, None where no layer has such a term."""
    schemes = [layer.attention.disentangled for layer in encoder.layers]
    scheme = next((scheme for scheme in schemes if scheme is not None), None)
    if scheme is None:
        return None
    embeddings = parameters.load_tensor("relative_embeddings.weight")
    if scheme.norm is None:
        return embeddings
    return parameters.load_norm(scheme.norm, "relative_embeddings.norm")(embeddings)
