"""An encoder for a GPU in 16 bit: few kernels a layer, nothing that waits for the host, so that a graph can hold it.

Computes what `modules.PackedEncoder` computes, from the same description and parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import torch
from torch import Tensor

from embedserve_runtime.engines.torch.attention import RotaryTable, relative_embeddings
from embedserve_runtime.engines.torch.device_batch import DeviceBatch
from embedserve_runtime.engines.torch.disentangled import disentangled_term
from embedserve_runtime.engines.torch.fused.attention import FusedAttention
from embedserve_runtime.engines.torch.fused.flash import FlashAttention
from embedserve_runtime.engines.torch.fused.operations import (
    ActivatedProduct,
    apply_rotary,
    embed,
    normed,
)
from embedserve_runtime.engines.torch.fused.skinny_gemm import (
    MAX_SKINNY_TOKENS,
    NormLinear,
    SkinnyDeferredNorm,
    skinny_linear,
    skinny_linear_add_norm,
)
from embedserve_runtime.engines.torch.fused.support import can_run_skinny, flash_runs
from embedserve_runtime.engines.torch.parameters import Linear, Normalization, Parameters
from embedserve_runtime.engines.torch.tables import EmbeddingTables, LayerNorms
from embedserve_runtime.model.architecture import (
    Attention,
    Encoder,
    Layer,
    Mlp,
    NormPlacement,
    QkNormScope,
    RelativeBuckets,
    Rotary,
)
from embedserve_runtime.model.relative import distance_table

V = TypeVar("V")


class FusedEncoder:
    """A batch to final hidden states (tokens, hidden), of the layout's tokens."""

    def __init__(self, encoder: Encoder, parameters: Parameters, *, flash: bool = False) -> None:
        """flash: batches that have bounds go through flash-attn-4, in the layers whose form it has."""
        self._tables = EmbeddingTables.of(encoder, parameters)
        shared = SharedTables(encoder, parameters, flash=flash)
        self._layers = [
            FusedLayer(layer, parameters, shared, f"layers.{number}")
            for number, layer in enumerate(encoder.layers)
        ]
        self._final_norm = parameters.optional_norm(encoder.final_norm, "final_norm")
        placements = {layer.placement for layer in encoder.layers}
        self._norms_come_first = NormPlacement.POST not in placements
        self._skinny_layers: list[SkinnyLayer] = []
        if encoder.final_norm is None and all(can_run_skinny(layer) for layer in encoder.layers):
            before = [None, *(layer.norms.mlp for layer in self._layers)]
            self._skinny_layers = [
                layer.to_skinny(norm) for layer, norm in zip(self._layers, before, strict=False)
            ]

    def __call__(self, batch: DeviceBatch) -> Tensor:
        # Where nothing norms the residual, its sum grows over all layers: in 16 bit each step would lose digits of all
        # earlier ones. Behind a norm it starts anew in every layer.
        wide = torch.float32 if self._norms_come_first else self._tables.words.dtype
        hidden = embed_batch(self._tables, batch, wide)
        if self._norms_come_first:
            return self._with_norms_first(hidden, batch)
        if self._skinny_layers and batch.tokens <= MAX_SKINNY_TOKENS:
            return self._run_skinny_layers(hidden, batch)
        for layer in self._layers:
            hidden = layer.with_norms_after(hidden, batch)
        return hidden if self._final_norm is None else normed(hidden, self._final_norm)

    def _run_skinny_layers(self, hidden: Tensor, batch: DeviceBatch) -> Tensor:
        first, *others = self._skinny_layers
        sums = first(hidden, batch)
        for layer in others:
            sums = layer(sums, batch)
        return normed(sums.values, sums.norm)

    def _with_norms_first(self, hidden: Tensor, batch: DeviceBatch) -> Tensor:
        """hidden: float32. Each layer ends with the norm that the next one begins with."""
        dtype = self._tables.words.dtype
        norms = [layer.norms.attention for layer in self._layers] + [self._final_norm]
        given = hidden.to(dtype) if norms[0] is None else normed(hidden, norms[0], dtype=dtype)
        for layer, following in zip(self._layers, norms[1:], strict=True):
            given = layer.with_norms_first(hidden, given, batch, following)
        return given


def embed_batch(tables: EmbeddingTables, batch: DeviceBatch, dtype: torch.dtype) -> Tensor:
    """Return the input of the first layer, (tokens, hidden)."""
    rows = embed(
        batch,
        words=tables.words,
        scale=tables.scale,
        types=tables.types,
        positions=tables.positions,
        first_position=tables.first_position,
        norm=tables.norm if tables.projection is None else None,
        dtype=dtype if tables.projection is None else tables.words.dtype,
    )
    if tables.projection is None:
        return rows
    projected = tables.projection(rows)
    return projected.to(dtype) if tables.norm is None else normed(projected, tables.norm, dtype=dtype)


class SharedTables:
    """Tables that layers of one form share: rotary angles, biases by distance, relative embeddings."""

    def __init__(self, encoder: Encoder, parameters: Parameters, *, flash: bool = False) -> None:
        self._flash = flash
        self._max_tokens = encoder.max_tokens
        self._parameters = parameters
        self._rotary_tables: dict[Rotary, RotaryTable] = {}
        self._relative_embeddings = relative_embeddings(encoder, parameters)
        self._learned: dict[RelativeBuckets, Tensor] = {}

    def rotary_table(self, rotary: Rotary | None) -> RotaryTable | None:
        if rotary is None:
            return None
        if rotary not in self._rotary_tables:
            table = RotaryTable.build(rotary, self._max_tokens, self._parameters)
            self._rotary_tables[rotary] = RotaryTable(table.cos.flatten(1), table.sin.flatten(1))
        return self._rotary_tables[rotary]

    def attention(self, description: Attention, name: str, dtype: torch.dtype | None) -> FusedAttention:
        """dtype: of the result, None for that of the values."""
        term = None
        if self._relative_embeddings is not None:
            term = disentangled_term(
                self._parameters, description, self._relative_embeddings, self._max_tokens, name
            )
        table = self._table(description)
        flash = FlashAttention(description) if self._flash and flash_runs(description) else None
        return FusedAttention(
            description, self._parameters, table, self._max_tokens, term, flash=flash, dtype=dtype
        )

    def _table(self, description: Attention) -> Tensor | None:
        """Learned bias by distance. ALiBi, causal order and windows the kernel computes by itself."""
        scheme = description.distance_bias
        if not isinstance(scheme, RelativeBuckets):
            return None
        if scheme not in self._learned:
            buckets = self._parameters.float32("relative_bias.weight")
            alone = replace(description, causal=False, window=None)
            table = distance_table(alone, self._max_tokens, buckets)
            assert table is not None  # there is a bias
            self._learned[scheme] = self._parameters.array(table)
        return self._learned[scheme]


class FusedLayer:
    """One layer. Where the norms come after, the sum of residual and MLP happens inside the product."""

    def __init__(self, layer: Layer, parameters: Parameters, shared: SharedTables, name: str) -> None:
        attention = f"{name}.attention"
        names = [f"{attention}.{part}" for part in ("query", "key", "value")]
        joint = parameters.linear(names, layer.attention.qkv_bias)
        self._attention: FusedSelfAttention[Tensor] = FusedSelfAttention(
            layer.attention, parameters, shared, attention, joint
        )
        self._joint = joint
        self._output = parameters.linear([f"{attention}.output"], layer.attention.output_bias)
        assert isinstance(layer.mlp, Mlp)  # `why_not_fused` names the others
        self._mlp = FusedMlp(layer.mlp, parameters, f"{name}.mlp")
        self.norms = LayerNorms.of(layer, parameters, name)

    def to_skinny(self, before: Normalization | None) -> SkinnyLayer:
        """Return this layer for few tokens, if `can_run_skinny` accepts it. before: the norm that ends the layer before
        it, if any."""
        assert self.norms.attention is not None  # `can_run_skinny` says so
        return SkinnyLayer(
            attention=self._attention,
            joint=None if before is None else NormLinear.of(self._joint, before),
            output=self._output,
            attention_norm=self.norms.attention,
            up=NormLinear.of(self._mlp.inner.linear, self.norms.attention),
            kind=self._mlp.inner.kind,
            down=self._mlp.down,
            norm=self.norms.mlp,
        )

    def with_norms_after(self, hidden: Tensor, batch: DeviceBatch) -> Tensor:
        """The layer's output; `hidden` is overwritten."""
        branch = self._output(self._attention(hidden, batch))
        if self.norms.attention_inner is not None:
            branch = normed(branch, self.norms.attention_inner, residual=hidden)
        if self.norms.attention is None:
            hidden.add_(branch)
        else:
            hidden = normed(branch, self.norms.attention, residual=hidden)
        down, inner = self._mlp.down, self._mlp.inner(hidden)
        if len(hidden) <= MAX_SKINNY_TOKENS:
            total = skinny_linear(inner, down, bias=False, add=hidden)
        else:
            total = hidden.addmm_(inner, down.weight.T)
        return normed(total, self.norms.mlp, bias=down.bias)

    def with_norms_first(
        self, hidden: Tensor, given: Tensor, batch: DeviceBatch, following: Normalization | None
    ) -> Tensor:
        """Adds the layer's branches to `hidden`, in place, and gives norm `following` of it, or it in 16 bit without.

        given: `hidden` behind the layer's first norm.
        """
        branch = self._output(self._attention(given, batch))
        between = add_and_norm(hidden, branch, self.norms.attention_post, self.norms.mlp)
        return add_and_norm(hidden, self._mlp.down(self._mlp.inner(between)), self.norms.mlp_post, following)


def add_and_norm(
    hidden: Tensor, branch: Tensor, post: Normalization | None, norm: Normalization | None
) -> Tensor:
    """hidden += post(branch), in place; gives norm(hidden), or hidden, in the dtype of the branch."""
    if post is None or norm is None or post.form == norm.form:
        result = normed(branch, norm, residual=hidden, post=post, keep=hidden)
        return result.to(branch.dtype) if norm is None else result
    normed(branch, None, residual=hidden, post=post, keep=hidden)
    return normed(hidden, norm, dtype=branch.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class SkinnyLayer:
    """A layer with norms after, for few tokens: each norm is computed by the products that read it.

    joint: queries, keys and values of the norm before; None in the first layer, which gets hidden states.
    """

    attention: FusedSelfAttention[Tensor]
    joint: NormLinear | None
    output: Linear
    attention_norm: Normalization
    up: NormLinear
    kind: int
    down: Linear
    norm: Normalization

    def __call__(self, given: Tensor | SkinnyDeferredNorm, batch: DeviceBatch) -> SkinnyDeferredNorm:
        if isinstance(given, SkinnyDeferredNorm):
            assert self.joint is not None  # it is not the first
            context = self.attention.of_joint(self.joint(given), batch)
        else:
            context = self.attention(given, batch)
        between = skinny_linear_add_norm(context, self.output, given, self.attention_norm)
        return skinny_linear_add_norm(self.up(between, self.kind), self.down, between, self.norm)


class FusedSelfAttention(Generic[V]):
    """(tokens, hidden) to (tokens, heads * head size); the output product follows."""

    def __init__(
        self,
        description: Attention,
        parameters: Parameters,
        shared: SharedTables,
        name: str,
        joint: Callable[[V], Tensor],
        *,
        dtype: torch.dtype | None = None,
    ) -> None:
        """joint: the product that makes queries, keys and values, side by side. dtype: of the result, None for
        that of values."""
        self._heads = (description.heads, description.kv_heads)
        self._joint = joint
        self._rotary = shared.rotary_table(description.rotary)
        self._attend = shared.attention(description, name, dtype)
        self._norms: tuple[Normalization, Normalization] | None = None
        self._norm_per_head = True
        if description.qk_norm is not None:
            self._norms = (
                parameters.norm(description.qk_norm.norm, f"{name}.query_norm"),
                parameters.norm(description.qk_norm.norm, f"{name}.key_norm"),
            )
            self._norm_per_head = description.qk_norm.scope is QkNormScope.HEAD
        self._query_width = description.heads * description.head_size
        self._key_end = self._query_width + description.kv_heads * description.head_size

    def __call__(self, value: V, batch: DeviceBatch) -> Tensor:
        return self.of_joint(self._joint(value), batch)

    def of_joint(self, joint: Tensor, batch: DeviceBatch) -> Tensor:
        """From the product of queries, keys and values, which is overwritten."""
        if self._norms is not None and not self._norm_per_head:
            queries, keys = joint[:, : self._query_width], joint[:, self._query_width : self._key_end]
            queries.copy_(self._norms[0](queries))
            keys.copy_(self._norms[1](keys))
        per_head = self._norms if self._norm_per_head else None
        if self._rotary is not None or per_head is not None:
            apply_rotary(joint, batch, self._heads, self._rotary, per_head)
        return self._attend(joint, batch)


class FusedMlp:
    """`inner` gives activation(up(x)) or activation(gate(x)) * up(x); `down` is the product that follows."""

    def __init__(self, mlp: Mlp, parameters: Parameters, name: str) -> None:
        names = [f"{name}.gate", f"{name}.up"] if mlp.gated else [f"{name}.up"]
        self.inner = ActivatedProduct(parameters.linear(names, mlp.up_bias), mlp.activation, mlp.gated)
        self.down = parameters.linear([f"{name}.down"], mlp.down_bias)
