"""An encoder for a GPU in 16 bit: few kernels a layer, nothing that waits for the host, so that a graph can hold it.

Computes what `modules.PackedEncoder` computes, from the same description and parameters.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor
from torch.nn import functional

from embedserve_runtime.engines.torch.attention import Turn, relative_embeddings
from embedserve_runtime.engines.torch.device_batch import DeviceBatch
from embedserve_runtime.engines.torch.disentangled import disentangled_term
from embedserve_runtime.engines.torch.fused.attention import FusedAttention
from embedserve_runtime.engines.torch.fused.operations import ActivatedProduct, embed, normed, turn_heads
from embedserve_runtime.engines.torch.parameters import Linear, Normalization, Parameters
from embedserve_runtime.model.architecture import (
    Attention,
    Encoder,
    Layer,
    Mlp,
    Norm,
    NormPlacement,
    QkNormScope,
    RelativeBuckets,
    Rotary,
)
from embedserve_runtime.model.relative import distance_table


class FusedEncoder:
    """A batch to final hidden states (tokens, hidden), of the layout's tokens."""

    def __init__(self, encoder: Encoder, parameters: Parameters) -> None:
        description = encoder.embeddings
        self._words = parameters.tensor("embeddings.word.weight")
        self._scale = description.scale
        self._types = parameters.tensor("embeddings.token_type.weight") if description.token_types else None
        self._positions: Tensor | None = None
        self._first_position = 0
        if description.positions is not None:
            self._positions = parameters.tensor("embeddings.position.weight")
            self._first_position = description.positions.offset
        self._norm = _optional(parameters, description.norm, "embeddings.norm")
        shared = _Shared(encoder, parameters)
        self._layers = [
            FusedLayer(layer, parameters, shared, f"layers.{number}")
            for number, layer in enumerate(encoder.layers)
        ]
        self._final_norm = _optional(parameters, encoder.final_norm, "final_norm")

    def __call__(self, batch: DeviceBatch) -> Tensor:
        hidden = embed(
            *(batch, self._words, self._scale, self._types),
            *(self._positions, self._first_position, self._norm),
        )
        for layer in self._layers:
            hidden = layer(hidden, batch)
        return hidden if self._final_norm is None else normed(hidden, self._final_norm)


class _Shared:
    """Tables that layers of one form share: rotary angles, biases by distance, relative embeddings."""

    def __init__(self, encoder: Encoder, parameters: Parameters) -> None:
        self._max_tokens = encoder.max_tokens
        self._parameters = parameters
        self._turns: dict[Rotary, Turn] = {}
        self._relative_embeddings = relative_embeddings(encoder, parameters)
        self._learned: dict[RelativeBuckets, Tensor] = {}

    def turn(self, rotary: Rotary | None) -> Turn | None:
        if rotary is None:
            return None
        if rotary not in self._turns:
            table = Turn.table(rotary, self._max_tokens, self._parameters)
            self._turns[rotary] = Turn(table.cos.flatten(1), table.sin.flatten(1))
        return self._turns[rotary]

    def attention(self, description: Attention, name: str) -> FusedAttention:
        term = None
        if self._relative_embeddings is not None:
            term = disentangled_term(
                self._parameters, description, self._relative_embeddings, self._max_tokens, name
            )
        table = self._table(description)
        return FusedAttention(description, self._parameters, table, self._max_tokens, term)

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
    """One layer. Sums into the residual happen inside products where nothing else has to be done to the branch."""

    def __init__(self, layer: Layer, parameters: Parameters, shared: _Shared, name: str) -> None:
        attention = f"{name}.attention"
        self._placement = layer.placement
        self._attention = FusedSelfAttention(layer.attention, parameters, shared, attention)
        self._mlp = FusedMlp(layer.mlp, parameters, f"{name}.mlp")
        before = layer.norm if layer.attention_norm else None
        inner = layer.norm if layer.inner_norm else None
        post = layer.norm if layer.placement is NormPlacement.SANDWICH else None
        self._attention_inner_norm = _optional(parameters, inner, f"{attention}.inner_norm")
        self._attention_norm = _optional(parameters, before, f"{attention}.norm")
        self._attention_post_norm = _optional(parameters, post, f"{attention}.post_norm")
        self._mlp_norm = parameters.norm(layer.norm, f"{name}.mlp.norm")
        self._mlp_post_norm = _optional(parameters, post, f"{name}.mlp.post_norm")

    def __call__(self, hidden: Tensor, batch: DeviceBatch) -> Tensor:
        """`hidden` is overwritten."""
        if self._placement is NormPlacement.POST:
            return self._norms_after(hidden, batch)
        given = hidden if self._attention_norm is None else normed(hidden, self._attention_norm)
        attended, output = self._attention(given, batch), self._attention.output
        between = self._join(hidden, attended, output, self._attention_post_norm, self._mlp_norm)
        assert between is not None
        self._join(hidden, self._mlp.inner(between), self._mlp.down, self._mlp_post_norm, None)
        return hidden

    def _norms_after(self, hidden: Tensor, batch: DeviceBatch) -> Tensor:
        branch = self._attention.output(self._attention(hidden, batch))
        if self._attention_inner_norm is not None:
            branch = normed(branch, self._attention_inner_norm, residual=hidden)
        if self._attention_norm is None:
            hidden.add_(branch)
        else:
            hidden = normed(branch, self._attention_norm, residual=hidden)
        down = self._mlp.down
        total = hidden.addmm_(self._mlp.inner(hidden), down.weight.T)
        return normed(total, self._mlp_norm, bias=down.bias)

    @staticmethod
    def _join(
        hidden: Tensor, inner: Tensor, product: Linear, post: Normalization | None, norm: Normalization | None
    ) -> Tensor | None:
        """hidden += post(product(inner)), in place; gives norm(hidden) if there is a norm."""
        if post is None and product.bias is None:
            hidden.addmm_(inner, product.weight.T)
            return None if norm is None else normed(hidden, norm)
        branch = functional.linear(inner, product.weight)
        result = normed(branch, norm, residual=hidden, bias=product.bias, post=post, keep=hidden)
        return None if norm is None else result


class FusedSelfAttention:
    """(tokens, hidden) to (tokens, heads * head size); `output` is the product that follows."""

    def __init__(self, description: Attention, parameters: Parameters, shared: _Shared, name: str) -> None:
        self._heads, self._kv_heads = description.heads, description.kv_heads
        self._joint = parameters.linear(
            [f"{name}.{part}" for part in ("query", "key", "value")], description.qkv_bias
        )
        self.output = parameters.linear([f"{name}.output"], description.output_bias)
        self._turn = shared.turn(description.rotary)
        self._attend = shared.attention(description, name)
        self._query_norm: Normalization | None = None
        self._key_norm: Normalization | None = None
        self._norm_per_head = True
        if description.qk_norm is not None:
            self._query_norm = parameters.norm(description.qk_norm.norm, f"{name}.query_norm")
            self._key_norm = parameters.norm(description.qk_norm.norm, f"{name}.key_norm")
            self._norm_per_head = description.qk_norm.scope is QkNormScope.HEAD
        self._query_width = description.heads * description.head_size
        self._key_end = self._query_width + description.kv_heads * description.head_size

    def __call__(self, value: Tensor, batch: DeviceBatch) -> Tensor:
        joint = self._joint(value)
        head_norms = (self._query_norm, self._key_norm) if self._norm_per_head else (None, None)
        if self._query_norm is not None and self._key_norm is not None and not self._norm_per_head:
            queries, keys = joint[:, : self._query_width], joint[:, self._query_width : self._key_end]
            queries.copy_(self._query_norm(queries))
            keys.copy_(self._key_norm(keys))
        if self._turn is not None or head_norms[0] is not None:
            turn_heads(joint, batch, self._heads, self._kv_heads, self._turn, *head_norms)
        return self._attend(joint, batch)


class FusedMlp:
    """`inner` gives activation(up(x)) or activation(gate(x)) * up(x); `down` is the product that follows."""

    def __init__(self, mlp: Mlp, parameters: Parameters, name: str) -> None:
        names = [f"{name}.gate", f"{name}.up"] if mlp.gated else [f"{name}.up"]
        self.inner = ActivatedProduct(parameters.linear(names, mlp.up_bias), mlp.activation, mlp.gated)
        self.down = parameters.linear([f"{name}.down"], mlp.down_bias)


def _optional(parameters: Parameters, norm: Norm | None, name: str) -> Normalization | None:
    return None if norm is None else parameters.norm(norm, name)
