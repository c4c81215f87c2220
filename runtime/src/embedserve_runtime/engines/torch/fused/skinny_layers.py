"""Layers with norms after the branches, for few tokens: each norm is computed by the products that read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from embedserve_runtime.engines.torch.device_batch import DeviceBatch
from embedserve_runtime.engines.torch.fused.layer import (
    FusedLayer,
    HiddenStates,
    LayerProducts,
    LayerStack,
    ResidualNorms,
)
from embedserve_runtime.engines.torch.fused.operations import add_and_normalize, embed_batch
from embedserve_runtime.engines.torch.fused.sixteen_bit import LayerParts16
from embedserve_runtime.engines.torch.fused.skinny_gemm import (
    NormLinear,
    SkinnyDeferredNorm,
    skinny_linear_add_norm,
)
from embedserve_runtime.engines.torch.fused.weights import LayerWeights
from embedserve_runtime.engines.torch.parameters import Normalization
from embedserve_runtime.engines.torch.tables import EmbeddingTables

# The first layer gets a tensor, the embeddings; all others the result of a norm.
SkinnyRows = Tensor | SkinnyDeferredNorm
SkinnyHidden = HiddenStates[SkinnyRows, SkinnyRows]
SkinnyLayer = FusedLayer[SkinnyHidden, SkinnyDeferredNorm]


@dataclass(frozen=True, slots=True, eq=False)
class SkinnyProducts(LayerProducts[SkinnyHidden, SkinnyDeferredNorm]):
    """Products that norm what they read, and end with the residual and the moments of the sums.

    normed_qkv: queries, keys and values of the norm before, None in the first layer. kind: of the activation.
    """

    weights: LayerWeights
    attention_norm: Normalization
    normed_qkv: NormLinear | None
    normed_up: NormLinear
    kind: int

    @classmethod
    def build(cls, loaded: LayerParts16, before: Normalization | None) -> SkinnyProducts:
        """Build those of a layer that `can_run_skinny` accepts. before: the norm that ends the layer before it."""
        weights, attention_norm = loaded.weights, loaded.weights.norms.attention
        assert attention_norm is not None  # `can_run_skinny` says so
        return cls(
            weights,
            attention_norm,
            None if before is None else NormLinear.fold(weights.qkv_proj, before),
            NormLinear.fold(weights.up, attention_norm),
            loaded.up.kind,
        )

    def project_qkv(self, hidden: SkinnyHidden) -> Tensor:
        if isinstance(hidden.rows, Tensor):
            return self.weights.qkv_proj(hidden.rows)
        assert self.normed_qkv is not None  # it is not the first layer
        return self.normed_qkv(hidden.rows)

    def project_output(self, attended: Tensor, hidden: SkinnyHidden) -> SkinnyDeferredNorm:
        return skinny_linear_add_norm(attended, self.weights.output, hidden.residual, self.attention_norm)

    def compute_mlp(self, hidden: SkinnyHidden) -> SkinnyDeferredNorm:
        assert isinstance(hidden.rows, SkinnyDeferredNorm)  # attention came before
        inner = self.normed_up(hidden.rows, self.kind)
        return skinny_linear_add_norm(inner, self.weights.down, hidden.residual, self.weights.norms.mlp)


class DeferredNorms(ResidualNorms[SkinnyHidden, SkinnyDeferredNorm]):
    """Norms that are left to whoever reads their result."""

    def normalize_after_attention(self, branch: SkinnyDeferredNorm, _: SkinnyHidden) -> SkinnyHidden:
        return HiddenStates(branch, branch)

    def normalize_after_mlp(self, branch: SkinnyDeferredNorm, _: SkinnyHidden) -> SkinnyHidden:
        return HiddenStates(branch, branch)


@dataclass(frozen=True, slots=True, eq=False)
class SkinnyIO:
    """The embeddings before the first layer and the last deferred norm, for few tokens."""

    tables: EmbeddingTables

    def embed(self, batch: DeviceBatch) -> SkinnyHidden:
        hidden = embed_batch(self.tables, batch, self.tables.word_embeddings.dtype)
        return HiddenStates(hidden, hidden)

    def finish(self, hidden: SkinnyHidden, _: DeviceBatch) -> Tensor:
        assert isinstance(hidden.rows, SkinnyDeferredNorm)  # there is a layer
        return add_and_normalize(hidden.rows.values, hidden.rows.norm)


def build_skinny_stack(tables: EmbeddingTables, loaded: Sequence[LayerParts16]) -> LayerStack[SkinnyHidden]:
    """Build the layers, at least one, all of which `can_run_skinny` accepts."""
    before = [None, *(parts.weights.norms.mlp for parts in loaded)]
    layers: list[SkinnyLayer] = [
        FusedLayer(SkinnyProducts.build(parts, norm), parts.attention, DeferredNorms())
        for parts, norm in zip(loaded, before, strict=False)
    ]
    io = SkinnyIO(tables)
    return LayerStack(io.embed, layers, io.finish)
