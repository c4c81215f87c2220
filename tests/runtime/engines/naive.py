"""The description of an encoder read literally, in float64 and one sequence at a time: the reference for forms.

Written for reading next to `model/architecture.py`, not for speed; shares no code with the engines.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.model.activations import Activation
from embedserve_runtime.model.architecture import (
    Alibi,
    Attention,
    Convolution,
    Disentangled,
    Encoder,
    Experts,
    Layer,
    Mlp,
    Norm,
    NormKind,
    NormPlacement,
    QkNormScope,
    RelativeBuckets,
    Rotary,
)

Float64 = NDArray[np.float64]

_erf = np.vectorize(math.erf)
ACTIVATIONS: dict[Activation, Callable[[Float64], Float64]] = {
    Activation.GELU: lambda x: x * 0.5 * (1 + _erf(x / math.sqrt(2))),
    Activation.GELU_TANH: lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    Activation.RELU: lambda x: np.maximum(x, 0),
    Activation.SILU: lambda x: x / (1 + np.exp(-x)),
    Activation.TANH: np.tanh,
}


@dataclass(frozen=True, slots=True)
class Naive:
    """seen: of the sequence that is computed, how many leading tokens attention sees."""

    encoder: Encoder
    values: dict[str, Float64]
    seen: int = 0

    def hidden_states(self, batch: PackedBatch) -> FloatArray:
        parts = np.split(batch.token_ids, batch.cu_seqlens[1:-1])
        attended = batch.lengths if batch.attended_lengths is None else batch.attended_lengths
        sequences = [
            replace(self, seen=int(seen))._sequence(part) for part, seen in zip(parts, attended, strict=True)
        ]
        return np.concatenate(sequences).astype(np.float32)

    def _sequence(self, ids: NDArray[np.integer]) -> Float64:
        embeddings, values = self.encoder.embeddings, self.values
        x = values["embeddings.word.weight"][ids] * embeddings.scale
        if embeddings.positions is not None:
            x = x + values["embeddings.position.weight"][embeddings.positions.offset + np.arange(len(ids))]
        if embeddings.token_types:
            x = x + values["embeddings.token_type.weight"][0]
        if embeddings.norm_first:
            x = self._norm(x, embeddings.norm, "embeddings.norm")
        if embeddings.width is not None:
            x = self._linear(x, "embeddings.projection")
        if not embeddings.norm_first:
            x = self._norm(x, embeddings.norm, "embeddings.norm")
        layer_inputs = self._layer_inputs(x)
        for number, layer in enumerate(self.encoder.layers):
            x = self._layer(x, layer, f"layers.{number}")
            if self.encoder.layer_inputs is not None:
                x = self._add_layer_input(x, layer_inputs[:, number], f"layers.{number}.layer_input")
        x = self._norm(x, self.encoder.final_norm, "final_norm")
        return x if self.encoder.output is None else self._linear(x, "output")

    def _layer_inputs(self, embeddings: Float64) -> Float64:
        """(tokens, layers, width)."""
        inputs = self.encoder.layer_inputs
        if inputs is None:
            return embeddings
        projected = inputs.scale * self._linear(embeddings, "layer_inputs.projection")
        by_layer = projected.reshape(len(embeddings), len(self.encoder.layers), inputs.width)
        return self._norm(by_layer, inputs.norm, "layer_inputs.norm")

    def _add_layer_input(self, x: Float64, layer_input: Float64, name: str) -> Float64:
        inputs = self.encoder.layer_inputs
        assert inputs is not None
        gate = ACTIVATIONS[inputs.activation](self._linear(x, f"{name}.gate"))
        mixed = self._linear(gate * layer_input, f"{name}.projection")
        return self.values[f"{name}.factor"] * (x + self._norm(mixed, inputs.norm, f"{name}.norm"))

    def _layer(self, x: Float64, layer: Layer, name: str) -> Float64:
        def norm(value: Float64, part: str) -> Float64:
            return self._norm(value, layer.norm, f"{name}.{part}")

        if layer.placement is NormPlacement.POST:
            branch = self._attention(x, layer.attention, f"{name}.attention")
            if layer.inner_norm:
                branch = norm(x + branch, "attention.inner_norm")
            attended = norm(x + branch, "attention.norm")
            output = norm(attended + self._mlp(attended, layer.mlp, f"{name}.mlp"), "mlp.norm")
            if layer.convolution is None:
                return output
            return norm(output + self._convolution(x, layer.convolution, name), "convolution.norm")
        sandwich = layer.placement is NormPlacement.SANDWICH
        normed = norm(x, "attention.norm") if layer.attention_norm else x
        branch = self._attention(normed, layer.attention, f"{name}.attention")
        x = x + (norm(branch, "attention.post_norm") if sandwich else branch)
        branch = self._mlp(norm(x, "mlp.norm"), layer.mlp, f"{name}.mlp")
        return x + (norm(branch, "mlp.post_norm") if sandwich else branch)

    def _convolution(self, x: Float64, convolution: Convolution, name: str) -> Float64:
        weight, half = self.values[f"{name}.convolution.weight"], convolution.kernel // 2
        summed = np.tile(self.values[f"{name}.convolution.bias"], (len(x), 1))
        for token in range(len(x)):
            for neighbour in range(max(0, token - half), min(len(x), token + half + 1)):
                summed[token] += weight[:, :, neighbour - token + half] @ x[neighbour]
        return ACTIVATIONS[convolution.activation](summed)

    def _experts(self, x: Float64, experts: Experts, name: str) -> Float64:
        shape = (experts.count, experts.intermediate, x.shape[1])
        up, down = (self.values[f"{name}.{part}.weight"].reshape(shape) for part in ("up", "down"))
        powers = np.exp(x @ self.values[f"{name}.router.weight"].T)
        shares = powers / powers.sum(axis=1, keepdims=True)
        summed = np.tile(self.values[f"{name}.bias"], (len(x), 1))
        for token in range(len(x)):
            for expert in np.argsort(-shares[token])[: experts.chosen]:
                inner = ACTIVATIONS[experts.activation](up[expert] @ x[token])
                summed[token] += shares[token, expert] * (inner @ down[expert])
        return summed

    def _mlp(self, x: Float64, mlp: Mlp | Experts, name: str) -> Float64:
        if isinstance(mlp, Experts):
            return self._experts(x, mlp, name)
        inner = self._linear(x, f"{name}.up")
        if mlp.gated:
            inner = ACTIVATIONS[mlp.activation](self._linear(x, f"{name}.gate")) * inner
        else:
            inner = ACTIVATIONS[mlp.activation](inner)
        return self._linear(inner, f"{name}.down")

    def _attention(self, x: Float64, attention: Attention, name: str) -> Float64:
        query = self._heads(x, attention, f"{name}.query")
        key = self._heads(x, attention, f"{name}.key")
        value = self._linear(x, f"{name}.value").reshape(len(x), attention.kv_heads, attention.head_size)
        if attention.value_norm_eps is not None:
            value = value / np.sqrt((value**2).mean(-1, keepdims=True) + attention.value_norm_eps)
        if attention.rotary is not None:
            query, key = rotated(query, attention.rotary), rotated(key, attention.rotary)
        attended = np.empty((len(x), attention.heads, attention.head_size))
        for head in range(attention.heads):
            shared = head // (attention.heads // attention.kv_heads)
            scores = query[:, head] @ key[:, shared].T
            if attention.disentangled is not None:
                scores = scores + self._disentangled(query, key, attention, head, name)
            scores = attention.scale * scores
            if attention.soft_cap is not None:
                scores = attention.soft_cap * np.tanh(scores / attention.soft_cap)
            scores = scores + self._by_distance(attention, head, len(x))
            scores[:, self.seen :] = -np.inf
            weights = np.exp(scores - np.maximum(scores.max(axis=1, keepdims=True), -1e300))
            # A query that sees no key gets zeros.
            attended[:, head] = (
                weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300) @ value[:, shared]
            )
        return self._linear(attended.reshape(len(x), -1), f"{name}.output")

    def _heads(self, x: Float64, attention: Attention, name: str) -> Float64:
        """Queries or keys, (tokens, heads, head_size), normed."""
        joined = self._linear(x, name)
        scheme = attention.qk_norm
        if scheme is not None and scheme.scope is QkNormScope.ALL:
            joined = self._norm(joined, scheme.norm, f"{name}_norm")
        split = joined.reshape(len(x), -1, attention.head_size)
        if scheme is not None and scheme.scope is QkNormScope.HEAD:
            split = self._norm(split, scheme.norm, f"{name}_norm")
        return split

    def _by_distance(self, attention: Attention, head: int, length: int) -> Float64:
        added = np.zeros((length, length))
        for i in range(length):
            for j in range(length):
                match attention.distance_bias:
                    case Alibi(slopes):
                        added[i, j] = -slopes[head] * abs(i - j)
                    case RelativeBuckets() as scheme:
                        row = bucket_of(j - i, scheme)
                        added[i, j] = self.values["relative_bias.weight"][row, head]
                too_far = attention.window is not None and abs(i - j) > attention.window
                if too_far or (attention.causal and j > i):
                    added[i, j] = -np.inf
        return added

    def _disentangled(
        self, query: Float64, key: Float64, attention: Attention, head: int, name: str
    ) -> Float64:
        scheme = attention.disentangled
        assert scheme is not None
        table = self._norm(self.values["relative_embeddings.weight"], scheme.norm, "relative_embeddings.norm")
        own = "" if scheme.shared_projections else "position_"
        shape = (len(table), attention.heads, attention.head_size)
        positions = np.arange(len(query))
        rows = rows_of(positions[:, None] - positions[None, :], scheme)
        scores = np.zeros(rows.shape)
        if scheme.content_to_position:
            position_key = self._linear(table, f"{name}.{own}key").reshape(shape)[:, head]
            scores += np.take_along_axis(query[:, head] @ position_key.T, rows, axis=1)
        if scheme.position_to_content:
            position_query = self._linear(table, f"{name}.{own}query").reshape(shape)[:, head]
            scores += np.take_along_axis(key[:, head] @ position_query.T, rows.T, axis=1).T
        return scores

    def _linear(self, x: Float64, name: str) -> Float64:
        product: Float64 = x @ self.values[f"{name}.weight"].T
        return product + self.values[f"{name}.bias"] if f"{name}.bias" in self.values else product

    def _norm(self, x: Float64, norm: Norm | None, name: str) -> Float64:
        if norm is None:
            return x
        weight: Float64 = self.values[f"{name}.weight"] + float(norm.unit_offset)
        if norm.kind is NormKind.RMS:
            root: Float64 = np.sqrt((x**2).mean(-1, keepdims=True) + norm.eps)
            return x / root * weight
        centred = x - x.mean(-1, keepdims=True)
        normed: Float64 = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + norm.eps) * weight
        return normed + self.values[f"{name}.bias"] if norm.bias else normed


def bucket_of(distance: int, scheme: RelativeBuckets) -> int:
    """The row of a learned bias, by transformers. distance: key - query."""
    bucket = MPNetEncoder.relative_position_bucket(
        torch.tensor([distance]), num_buckets=scheme.buckets, max_distance=scheme.max_distance
    )
    return int(bucket[0])


def rows_of(distances: NDArray[np.integer], scheme: Disentangled) -> NDArray[np.int64]:
    """The rows of the relative embeddings, by transformers. distances: query - key."""
    positions = torch.from_numpy(distances)
    if scheme.buckets:
        positions = make_log_bucket_position(positions, scheme.buckets, scheme.max_distance)
    rows: NDArray[np.int64] = torch.clamp(positions + scheme.span, 0, 2 * scheme.span - 1).long().numpy()
    return rows


def rotated(heads: Float64, rotary: Rotary) -> Float64:
    """(tokens, heads, head_size), by complex numbers: dimension i is the real part, i + half the imaginary one."""
    half = len(rotary.inverse_frequencies)
    angles = np.arange(len(heads))[:, None, None] * np.array(rotary.inverse_frequencies)
    turned = (heads[..., :half] + 1j * heads[..., half : 2 * half]) * np.exp(1j * angles) * rotary.scaling
    return np.concatenate((turned.real, turned.imag, heads[..., 2 * half :]), axis=-1)
