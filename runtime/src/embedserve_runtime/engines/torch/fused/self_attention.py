"""Self-attention between the fused QKV product and the output product: norms of heads, rotary positions, attention."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from embedserve_runtime.engines.torch.attention import RotaryTable, compute_relative_embeddings
from embedserve_runtime.engines.torch.device_batch import DeviceBatch
from embedserve_runtime.engines.torch.disentangled import build_disentangled_term
from embedserve_runtime.engines.torch.fused.attention import FusedAttention, PositionBias
from embedserve_runtime.engines.torch.fused.flash import FlashAttention
from embedserve_runtime.engines.torch.fused.operations import apply_rotary
from embedserve_runtime.engines.torch.fused.support import can_flash_run
from embedserve_runtime.engines.torch.parameters import Normalization, Parameters
from embedserve_runtime.model.architecture import Attention, Encoder, QkNormScope, RelativeBuckets, Rotary
from embedserve_runtime.model.relative import compute_distance_table


class SharedTables:
    """Tables that layers of one form share: rotary angles, biases by distance, relative embeddings."""

    def __init__(self, encoder: Encoder, parameters: Parameters, *, flash: bool = False) -> None:
        self._flash = flash
        self._max_positions = encoder.max_positions
        self.parameters = parameters
        self._rotary_tables: dict[Rotary, RotaryTable] = {}
        self._relative_embeddings = compute_relative_embeddings(encoder, parameters)
        self._learned: dict[RelativeBuckets, Tensor] = {}

    def get_rotary_table(self, rotary: Rotary | None) -> RotaryTable | None:
        if rotary is None:
            return None
        if rotary not in self._rotary_tables:
            table = RotaryTable.build(rotary, self._max_positions, self.parameters)
            self._rotary_tables[rotary] = RotaryTable(table.cos.flatten(1), table.sin.flatten(1))
        return self._rotary_tables[rotary]

    def build_attention(self, description: Attention, name: str, dtype: torch.dtype | None) -> FusedAttention:
        """Build the attention of a layer. dtype: of the result, None for that of the values."""
        term = None
        if self._relative_embeddings is not None:
            term = build_disentangled_term(
                self.parameters, description, self._relative_embeddings, self._max_positions, name
            )
        positions = PositionBias(self._max_positions, self._get_table(description), term)
        flash = FlashAttention(description) if self._flash and can_flash_run(description) else None
        return FusedAttention(description, self.parameters, positions, flash=flash, dtype=dtype)

    def _get_table(self, description: Attention) -> Tensor | None:
        """Return the learned bias by distance. ALiBi, causal order and windows the kernel computes by itself."""
        scheme = description.distance_bias
        if not isinstance(scheme, RelativeBuckets):
            return None
        if scheme not in self._learned:
            buckets = self.parameters.read_float32("relative_bias.weight")
            alone = replace(description, causal=False, window=None)
            table = compute_distance_table(alone, self._max_positions, buckets)
            assert table is not None  # there is a bias
            self._learned[scheme] = self.parameters.copy_array(table)
        return self._learned[scheme]


class FusedSelfAttention:
    """Turns fused queries, keys and values into the result of attention (tokens, heads * head size).

    dtype: the dtype of the result, None for that of the values.
    """

    def __init__(
        self,
        description: Attention,
        shared: SharedTables,
        name: str,
        *,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._heads = (description.heads, description.kv_heads)
        self._rotary = shared.get_rotary_table(description.rotary)
        self._attend = shared.build_attention(description, name, dtype)
        self._norms: tuple[Normalization, Normalization] | None = None
        self._norm_per_head = True
        if description.qk_norm is not None:
            self._norms = (
                shared.parameters.load_norm(description.qk_norm.norm, f"{name}.query_norm"),
                shared.parameters.load_norm(description.qk_norm.norm, f"{name}.key_norm"),
            )
            self._norm_per_head = description.qk_norm.scope is QkNormScope.HEAD
        self._query_width = description.heads * description.head_size
        self._key_end = self._query_width + description.kv_heads * description.head_size

    def __call__(self, qkv: Tensor, batch: DeviceBatch) -> Tensor:
        """Compute attention of `qkv`, the product of queries, keys and values, which is overwritten."""
        if self._norms is not None and not self._norm_per_head:
            queries, keys = qkv[:, : self._query_width], qkv[:, self._query_width : self._key_end]
            queries.copy_(self._norms[0](queries))
            keys.copy_(self._norms[1](keys))
        per_head = self._norms if self._norm_per_head else None
        if self._rotary is not None or per_head is not None:
            apply_rotary(qkv, batch, self._heads, self._rotary, per_head)
        return self._attend(qkv, batch)
