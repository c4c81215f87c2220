"""Layers in 16 bit, each norm in the kernel that also adds the residual."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from embedserve_runtime.engines.torch.device_batch import DeviceBatch
from embedserve_runtime.engines.torch.fused.layer import (
    FusedLayer,
    HiddenStates,
    LayerProducts,
    LayerStack,
    ResidualNorms,
)
from embedserve_runtime.engines.torch.fused.operations import (
    ActivatedProduct,
    UnfinishedBranch,
    add_and_normalize,
    embed_batch,
)
from embedserve_runtime.engines.torch.fused.self_attention import FusedSelfAttention, SharedTables
from embedserve_runtime.engines.torch.fused.skinny_gemm import MAX_SKINNY_TOKENS, skinny_linear
from embedserve_runtime.engines.torch.fused.weights import LayerWeights
from embedserve_runtime.engines.torch.parameters import Linear, Normalization, Parameters
from embedserve_runtime.engines.torch.tables import EmbeddingTables, LayerNorms
from embedserve_runtime.model.architecture import Layer

Hidden16 = HiddenStates[Tensor, Tensor]
Layer16 = FusedLayer[Hidden16, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class SixteenBitProducts(LayerProducts[Hidden16, Tensor]):
    """Products in the dtype of the model.

    adds_residual: whether the down product adds the residual, and leaves its own bias to the norm after it.
    """

    weights: LayerWeights
    up: ActivatedProduct
    adds_residual: bool

    def project_qkv(self, hidden: Hidden16) -> Tensor:
        return self.weights.qkv_proj(hidden.rows)

    def project_output(self, attended: Tensor, hidden: Hidden16) -> Tensor:
        return self.weights.output(attended)

    def compute_mlp(self, hidden: Hidden16) -> Tensor:
        inner, down = self.up(hidden.rows), self.weights.down
        if not self.adds_residual:
            return down(inner)
        if len(inner) <= MAX_SKINNY_TOKENS:
            return skinny_linear(inner, down, bias=False, add=hidden.residual)
        return hidden.residual.addmm_(inner, down.weight.T)


@dataclass(frozen=True, slots=True, eq=False)
class PostNorms(ResidualNorms[Hidden16, Tensor]):
    """Norms after the branches. Behind each norm the sum starts anew, so that 16 bit are enough for the residual."""

    norms: LayerNorms
    down: Linear

    def normalize_after_attention(self, branch: Tensor, hidden: Hidden16) -> Hidden16:
        norms = self.norms
        if norms.attention_inner is not None:
            branch = add_and_normalize(branch, norms.attention_inner, residual=hidden.residual)
        if norms.attention is None:
            hidden.residual.add_(branch)
            return hidden
        attended = add_and_normalize(branch, norms.attention, residual=hidden.residual)
        return HiddenStates(attended, attended)

    def normalize_after_mlp(self, branch: Tensor, hidden: Hidden16) -> Hidden16:
        result = add_and_normalize(UnfinishedBranch(branch, self.down.bias), self.norms.mlp)
        return HiddenStates(result, result)


@dataclass(frozen=True, slots=True, eq=False)
class PreNorms(ResidualNorms[Hidden16, Tensor]):
    """Norms before the branches, or around them. The residual is float32: nothing norms it, so its sum grows over all
    layers, and in 16 bit each step would lose digits of all earlier ones. following: the norm that the next layer
    begins with, or the final one."""

    norms: LayerNorms
    following: Normalization | None

    def normalize_after_attention(self, branch: Tensor, hidden: Hidden16) -> Hidden16:
        rows = add_and_norm(hidden.residual, branch, self.norms.attention_post, self.norms.mlp)
        return HiddenStates(rows, hidden.residual)

    def normalize_after_mlp(self, branch: Tensor, hidden: Hidden16) -> Hidden16:
        rows = add_and_norm(hidden.residual, branch, self.norms.mlp_post, self.following)
        return HiddenStates(rows, hidden.residual)


def add_and_norm(
    residual: Tensor, branch: Tensor, post: Normalization | None, norm: Normalization | None
) -> Tensor:
    """Add post(branch) to the residual, in place; return norm(residual), or residual, in the dtype of the branch."""
    branch_input = branch if post is None else UnfinishedBranch(branch, post=post)
    if post is None or norm is None or post.form == norm.form:
        result = add_and_normalize(branch_input, norm, residual=residual, keep=residual)
        return result.to(branch.dtype) if norm is None else result
    add_and_normalize(branch_input, None, residual=residual, keep=residual)
    return add_and_normalize(residual, norm, dtype=branch.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class PostNormEmbeddings:
    """The embeddings before the first layer and the final norm of an encoder whose norms come after the branches."""

    tables: EmbeddingTables
    final_norm: Normalization | None

    def embed(self, batch: DeviceBatch) -> Hidden16:
        hidden = embed_batch(self.tables, batch, self.tables.word_embeddings.dtype)
        return HiddenStates(hidden, hidden)

    def finish(self, hidden: Hidden16, _: DeviceBatch) -> Tensor:
        return hidden.rows if self.final_norm is None else add_and_normalize(hidden.rows, self.final_norm)


@dataclass(frozen=True, slots=True, eq=False)
class PreNormEmbeddings:
    """The embeddings before the first layer, already normalized for it, of an encoder whose norms come before the
    branches. first_norm: of the first layer, or the final one where there is no layer."""

    tables: EmbeddingTables
    first_norm: Normalization | None

    def embed(self, batch: DeviceBatch) -> Hidden16:
        hidden, dtype = embed_batch(self.tables, batch, torch.float32), self.tables.word_embeddings.dtype
        norm = self.first_norm
        return HiddenStates(
            hidden.to(dtype) if norm is None else add_and_normalize(hidden, norm, dtype=dtype), hidden
        )

    def finish(self, hidden: Hidden16, _: DeviceBatch) -> Tensor:
        return hidden.rows


@dataclass(frozen=True, slots=True, eq=False)
class LayerParts16:
    """The weights, attention and products of a 16-bit layer, shared by its forms for many tokens and for few."""

    weights: LayerWeights
    attention: FusedSelfAttention
    up: ActivatedProduct

    @classmethod
    def load(cls, layer: Layer, parameters: Parameters, shared: SharedTables, name: str) -> LayerParts16:
        weights = LayerWeights.load(layer, parameters, name)
        return cls(
            weights,
            FusedSelfAttention(layer.attention, shared, f"{name}.attention"),
            ActivatedProduct(weights.up, weights.mlp.activation, weights.mlp.gated),
        )


def build_post_norm_stack(
    tables: EmbeddingTables, loaded: Sequence[LayerParts16], final_norm: Normalization | None
) -> LayerStack[Hidden16]:
    layers: list[Layer16] = [
        FusedLayer(
            SixteenBitProducts(parts.weights, parts.up, adds_residual=True),
            parts.attention,
            PostNorms(parts.weights.norms, parts.weights.down),
        )
        for parts in loaded
    ]
    io = PostNormEmbeddings(tables, final_norm)
    return LayerStack(io.embed, layers, io.finish)


def build_pre_norm_stack(
    tables: EmbeddingTables, loaded: Sequence[LayerParts16], final_norm: Normalization | None
) -> LayerStack[Hidden16]:
    """Build the layers, each of which ends with the norm that the next one begins with."""
    first, *following = [*(parts.weights.norms.attention for parts in loaded), final_norm]
    layers: list[Layer16] = [
        FusedLayer(
            SixteenBitProducts(parts.weights, parts.up, adds_residual=False),
            parts.attention,
            PreNorms(parts.weights.norms, norm),
        )
        for parts, norm in zip(loaded, following, strict=True)
    ]
    io = PreNormEmbeddings(tables, first)
    return LayerStack(io.embed, layers, io.finish)
