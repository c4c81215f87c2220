"""Loads what the plain and the fused torch encoder share: embedding tables, and the norms of a layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from embedserve_runtime.engines.torch.parameters import Linear, Normalization, Parameters
from embedserve_runtime.model.architecture import Encoder, Layer, NormPlacement


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingTables:
    """Rows (entries, width) of token ids, positions and token types; None for what the encoder does not have.

    first_position: row of a text's first token. projection: from the width of the rows to that of the layers.
    norm_first: whether the norm stands before the projection.
    """

    word_embeddings: Tensor
    scale: float
    positions: Tensor | None
    first_position: int
    types: Tensor | None
    projection: Linear | None
    norm: Normalization | None
    norm_first: bool

    @classmethod
    def load(cls, encoder: Encoder, parameters: Parameters) -> EmbeddingTables:
        description = encoder.embeddings
        positions, width = description.positions, description.width
        return cls(
            word_embeddings=parameters.load_tensor("embeddings.word.weight"),
            scale=description.scale,
            positions=None if positions is None else parameters.load_tensor("embeddings.position.weight"),
            first_position=0 if positions is None else positions.offset,
            types=parameters.load_tensor("embeddings.token_type.weight") if description.token_types else None,
            projection=parameters.load_linear(["embeddings.projection"], bias=description.norm_first)
            if width not in (None, encoder.hidden_size)
            else None,
            norm=parameters.load_optional_norm(description.norm, "embeddings.norm"),
            norm_first=description.norm_first,
        )


@dataclass(frozen=True, slots=True, eq=False)
class LayerNorms:
    """The norms of a layer by where they stand; None where the description has none.

    attention: before it, or with norms after, of its sum with the residual. attention_inner: before that sum's own.
    """

    attention: Normalization | None
    attention_inner: Normalization | None
    attention_post: Normalization | None
    mlp: Normalization
    mlp_post: Normalization | None

    @classmethod
    def load(cls, layer: Layer, parameters: Parameters, name: str) -> LayerNorms:
        post = layer.norm if layer.placement is NormPlacement.SANDWICH else None
        optional = parameters.load_optional_norm
        return cls(
            attention=optional(layer.norm if layer.attention_norm else None, f"{name}.attention.norm"),
            attention_inner=optional(
                layer.norm if layer.inner_norm else None, f"{name}.attention.inner_norm"
            ),
            attention_post=optional(post, f"{name}.attention.post_norm"),
            mlp=parameters.load_norm(layer.norm, f"{name}.mlp.norm"),
            mlp_post=optional(post, f"{name}.mlp.post_norm"),
        )
