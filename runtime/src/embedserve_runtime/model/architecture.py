"""The declarative description of an encoder: what a family file returns and what every engine interprets.

Pure data, no tensors. Linear weights keep the checkpoint's layout (out_features, in_features). `parameters` lists
every tensor that a description needs under our own name; `parameter_names` says where a checkpoint keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from embedserve_runtime.model.activations import Activation
from embedserve_runtime.model.canonical import NOT_HASHED
from embedserve_runtime.model.parameter_names import Parameter, ParameterNames, Shape


class NormKind(StrEnum):
    """LAYER: (x - mean) / sqrt(var + eps) * weight + bias. RMS: x / sqrt(mean(x^2) + eps) * weight."""

    LAYER = "layer"
    RMS = "rms"


@dataclass(frozen=True, slots=True)
class Norm:
    """A normalization.

    bias: LAYER only. unit_offset: the stored weight is w - 1 (Gemma).
    """

    kind: NormKind
    eps: float
    bias: bool = True
    unit_offset: bool = False


class NormPlacement(StrEnum):
    """The placement of the norms of a layer, for each of its two branches f.

    POST: x = norm(x + f(x)). PRE: x = x + f(norm(x)). SANDWICH: x = x + post_norm(f(norm(x))).
    """

    POST = "post"
    PRE = "pre"
    SANDWICH = "sandwich"


@dataclass(frozen=True, slots=True)
class AbsolutePositions:
    """A learned table of `rows` positions, of which the first token of a sequence takes row `offset`."""

    rows: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Embeddings:
    """(word row * scale) + position row + row 0 of the token types, then projection and norm.

    token_types: rows of the token-type table, 0 without one.
    width: columns of the three tables; another than the hidden size has a projection to it, parameter
        `embeddings.projection.weight` (hidden, width). None is the hidden size.
    norm_first: where there is a projection: whether the norm, (width,), stands before it, and it has a bias (ELECTRA,
        ALBERT). Else the norm comes after it, and it has none (DeBERTa-v2).
    """

    vocabulary: int
    positions: AbsolutePositions | None
    token_types: int
    norm: Norm | None
    scale: float = 1.0
    width: int | None = None
    norm_first: bool = False


@dataclass(frozen=True, slots=True)
class Rotary:
    """Rotary positions on the first 2 * len(inverse_frequencies) dimensions of each head, in halves (not pairs).

    For position p and frequency f_i: angle p * f_i, applied to dimensions i and i + len(inverse_frequencies); cos and
    sin are multiplied by `scaling`.
    """

    inverse_frequencies: tuple[float, ...]
    scaling: float = 1.0


@dataclass(frozen=True, slots=True)
class Alibi:
    """Adds -slope * |i - j| to the score of query i and key j; one slope a head. Symmetric, as encoders use it."""

    slopes: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RelativeBuckets:
    """Adds a learned bias by bucket of the distance (T5's scheme, bidirectional), one table for all layers.

    Half of the buckets are for keys after the query; in each half, small distances have their own bucket and larger
    ones share buckets logarithmically up to `max_distance`. Parameter `relative_bias.weight` (buckets, heads).
    """

    buckets: int
    max_distance: int


@dataclass(frozen=True, slots=True)
class Disentangled:
    """DeBERTa-v2's content-to-position and position-to-content scores, added to q k^T before `Attention.scale`, which
    therefore is 1 / sqrt(head_size * (1 + number of position terms)).

    span: distances are clamped to [-span, span) after bucketing; the table has 2 * span rows, parameter
        `relative_embeddings.weight` (2 * span, hidden), put through `norm` (parameters `relative_embeddings.norm.*`)
        when there is one.
    buckets: log buckets of the distance, 0 without bucketing; max_distance: where the log scale ends.
    shared_projections: positions go through the layer's own query and key products; else through
        `attention.position_query` and `attention.position_key`.
    """

    span: int
    buckets: int
    max_distance: int
    content_to_position: bool
    position_to_content: bool
    shared_projections: bool
    norm: Norm | None


class QkNormScope(StrEnum):
    """HEAD: each head's query and key on its own, weight (head_size,). ALL: over all heads joined."""

    HEAD = "head"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class QkNorm:
    """Normalizes queries and keys before positions are applied."""

    norm: Norm
    scope: QkNormScope


@dataclass(frozen=True, slots=True)
class Attention:
    """Self-attention: softmax(cap(scale * q k^T) + position terms) v.

    heads, kv_heads: query heads and key/value heads; query head h reads key/value head h // (heads // kv_heads).
    causal: query i sees keys j <= i. window: query i sees keys with |i - j| <= window; None sees all. A query that
    sees no key gets zeros.
    soft_cap: cap(x) = soft_cap * tanh(x / soft_cap); None leaves x as it is.
    value_norm_eps: of an RMS norm without weights of each head's values; None where there is none.
    """

    heads: int
    kv_heads: int
    head_size: int
    scale: float
    qkv_bias: bool
    output_bias: bool
    causal: bool = False
    window: int | None = None
    qk_norm: QkNorm | None = None
    rotary: Rotary | None = None
    distance_bias: Alibi | RelativeBuckets | None = None
    disentangled: Disentangled | None = None
    soft_cap: float | None = None
    value_norm_eps: float | None = None


@dataclass(frozen=True, slots=True)
class Mlp:
    """down(activation(up(x))), or gated: down(activation(gate(x)) * up(x)). Gate and up share `up_bias`."""

    intermediate: int
    activation: Activation
    gated: bool
    up_bias: bool
    down_bias: bool


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of `count` MLPs without gates and biases: sum of w_e * down_e(activation(up_e(x))) over the experts
    that are chosen for the token, + one bias for all.

    w is the softmax over the logits of all experts; the `chosen` largest count, as they are: they sum to less than 1.
    Parameters: `mlp.router.weight` (count, hidden); `mlp.up.weight` (count * intermediate, hidden), expert after
    expert; `mlp.down.weight` of that shape too, so each expert's is transposed: (intermediate, hidden);
    `mlp.bias` (hidden,).
    """

    count: int
    chosen: int
    intermediate: int
    activation: Activation


@dataclass(frozen=True, slots=True)
class Convolution:
    """activation(c(x)) over each sequence alone, with zeros before and after it; `kernel` is odd.

    Token t: sum over o of W[:, :, o] x[t + o - kernel // 2], + bias. Parameters `convolution.weight`
    (hidden, hidden, kernel) and `convolution.bias`.
    """

    kernel: int
    activation: Activation


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """The values that each layer reads of the embeddings beside its input (Gemma's per-layer embeddings).

    Of the embeddings e: s = norm(scale * P e) of each layer, (width,); parameters `layer_inputs.projection.weight`
    (layers * width, hidden), layer after layer, and `layer_inputs.norm.weight`. A layer's output y becomes
    factor * (y + norm(project(activation(gate(y)) * s))); parameters `layer_input.gate.weight` (width, hidden),
    `layer_input.projection.weight` (hidden, width), `layer_input.norm.weight` and `layer_input.factor` (1,).
    norm: RMS.
    """

    width: int
    scale: float
    activation: Activation
    norm: Norm


@dataclass(frozen=True, slots=True)
class Layer:
    """Attention, then MLP, with `norm` placed as `placement` says.

    attention_norm: False where the norm before attention is left out (ModernBERT's first layer).
    inner_norm: POST only: attention's branch f has a norm and a residual of its own, parameters
        `attention.inner_norm.*`: f(x) = inner_norm(x + attention(x)) (JinaBERT's code variant).
    convolution: POST only: the layer's output y becomes norm(y + convolution(x)), parameters `convolution.norm.*`
        (the first layer of DeBERTa-v2 xlarge).
    """

    attention: Attention
    mlp: Mlp | Experts
    placement: NormPlacement
    norm: Norm
    attention_norm: bool = True
    inner_norm: bool = False
    convolution: Convolution | None = None


@dataclass(frozen=True, slots=True)
class Encoder:
    """An encoder, described once. max_positions: the longest sequence that it can take.

    layer_inputs: of layers with norms before or around their branches.
    output: columns of a product without a bias behind the final norm, parameter `output.weight` (output, hidden);
        None without one.
    ignored: what config.json says and is not done since no sequence of up to `max_positions` depends on it, as
    `file: key`.
    """

    family: str = field(metadata=NOT_HASHED)
    hidden_size: int
    max_positions: int
    embeddings: Embeddings
    layers: tuple[Layer, ...]
    final_norm: Norm | None
    parameter_names: ParameterNames = field(metadata=NOT_HASHED)
    ignored: tuple[str, ...] = field(default=(), metadata=NOT_HASHED)
    layer_inputs: LayerInputs | None = None
    output: int | None = None

    @property
    def width(self) -> int:
        """Columns of the final hidden states."""
        return self.output or self.hidden_size

    def parameters(self) -> Iterator[Parameter]:
        """List every tensor that the description needs, with its shape."""
        for name, shape in self._iterate_outer_shapes():
            yield Parameter(name, name, None, shape)
        for number, layer in enumerate(self.layers):
            for name, shape in self._iterate_shapes_of(layer):
                yield Parameter(f"layers.{number}.{name}", f"layers.{{layer}}.{name}", number, shape)

    def _iterate_shapes_of(self, layer: Layer) -> Iterator[tuple[str, Shape]]:
        hidden, inputs = self.hidden_size, self.layer_inputs
        yield from _iterate_layer_shapes(layer, hidden)
        if inputs is not None:
            yield from _iterate_linear_shapes("layer_input.gate", inputs.width, hidden, False)
            yield from _iterate_linear_shapes("layer_input.projection", hidden, inputs.width, False)
            yield from _iterate_norm_shapes("layer_input.norm", hidden, inputs.norm)
            yield "layer_input.factor", (1,)

    def _iterate_outer_shapes(self) -> Iterator[tuple[str, Shape]]:
        hidden, embeddings = self.hidden_size, self.embeddings
        width = embeddings.width or hidden
        yield "embeddings.word.weight", (embeddings.vocabulary, width)
        if embeddings.positions is not None:
            yield "embeddings.position.weight", (embeddings.positions.rows, width)
        if embeddings.token_types:
            yield "embeddings.token_type.weight", (embeddings.token_types, width)
        if width != hidden:
            yield from _iterate_linear_shapes("embeddings.projection", hidden, width, embeddings.norm_first)
        norm_width = width if embeddings.norm_first else hidden
        yield from _iterate_norm_shapes("embeddings.norm", norm_width, embeddings.norm)
        yield from _iterate_norm_shapes("final_norm", hidden, self.final_norm)
        if self.output is not None:
            yield from _iterate_linear_shapes("output", self.output, hidden, False)
        if self.layer_inputs is not None:
            inner = self.layer_inputs.width
            yield from _iterate_linear_shapes(
                "layer_inputs.projection", len(self.layers) * inner, hidden, False
            )
            yield from _iterate_norm_shapes("layer_inputs.norm", inner, self.layer_inputs.norm)
        # One table for all layers: the first layer that has such a term describes it.
        for attention in (layer.attention for layer in self.layers):
            if isinstance(attention.distance_bias, RelativeBuckets):
                yield "relative_bias.weight", (attention.distance_bias.buckets, attention.heads)
                break
            if attention.disentangled is not None:
                yield "relative_embeddings.weight", (2 * attention.disentangled.span, hidden)
                yield from _iterate_norm_shapes(
                    "relative_embeddings.norm", hidden, attention.disentangled.norm
                )
                break


def _iterate_layer_shapes(layer: Layer, hidden: int) -> Iterator[tuple[str, Shape]]:
    attention = layer.attention
    inner, kv_inner = attention.heads * attention.head_size, attention.kv_heads * attention.head_size
    yield from _iterate_linear_shapes("attention.query", inner, hidden, attention.qkv_bias)
    yield from _iterate_linear_shapes("attention.key", kv_inner, hidden, attention.qkv_bias)
    yield from _iterate_linear_shapes("attention.value", kv_inner, hidden, attention.qkv_bias)
    if attention.qk_norm is not None:
        per_head = attention.qk_norm.scope is QkNormScope.HEAD
        yield from _iterate_norm_shapes(
            "attention.query_norm", attention.head_size if per_head else inner, attention.qk_norm.norm
        )
        yield from _iterate_norm_shapes(
            "attention.key_norm", attention.head_size if per_head else kv_inner, attention.qk_norm.norm
        )
    if attention.disentangled is not None and not attention.disentangled.shared_projections:
        if attention.disentangled.position_to_content:
            yield from _iterate_linear_shapes("attention.position_query", inner, hidden, True)
        if attention.disentangled.content_to_position:
            yield from _iterate_linear_shapes("attention.position_key", inner, hidden, True)
    yield from _iterate_linear_shapes("attention.output", hidden, inner, attention.output_bias)
    if layer.inner_norm:
        yield from _iterate_norm_shapes("attention.inner_norm", hidden, layer.norm)
    if layer.attention_norm:
        yield from _iterate_norm_shapes("attention.norm", hidden, layer.norm)
    yield from _iterate_mlp_shapes(layer.mlp, hidden)
    yield from _iterate_norm_shapes("mlp.norm", hidden, layer.norm)
    if layer.convolution is not None:
        yield "convolution.weight", (hidden, hidden, layer.convolution.kernel)
        yield "convolution.bias", (hidden,)
        yield from _iterate_norm_shapes("convolution.norm", hidden, layer.norm)
    if layer.placement is NormPlacement.SANDWICH:
        yield from _iterate_norm_shapes("attention.post_norm", hidden, layer.norm)
        yield from _iterate_norm_shapes("mlp.post_norm", hidden, layer.norm)


def _iterate_mlp_shapes(mlp: Mlp | Experts, hidden: int) -> Iterator[tuple[str, Shape]]:
    if isinstance(mlp, Experts):
        yield "mlp.router.weight", (mlp.count, hidden)
        yield "mlp.up.weight", (mlp.count * mlp.intermediate, hidden)
        yield "mlp.down.weight", (mlp.count * mlp.intermediate, hidden)
        yield "mlp.bias", (hidden,)
        return
    if mlp.gated:
        yield from _iterate_linear_shapes("mlp.gate", mlp.intermediate, hidden, mlp.up_bias)
    yield from _iterate_linear_shapes("mlp.up", mlp.intermediate, hidden, mlp.up_bias)
    yield from _iterate_linear_shapes("mlp.down", hidden, mlp.intermediate, mlp.down_bias)


def _iterate_linear_shapes(
    name: str, out_features: int, in_features: int, bias: bool
) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (out_features, in_features)
    if bias:
        yield f"{name}.bias", (out_features,)


def _iterate_norm_shapes(name: str, size: int, norm: Norm | None) -> Iterator[tuple[str, Shape]]:
    if norm is not None:
        yield f"{name}.weight", (size,)
        if norm.kind is NormKind.LAYER and norm.bias:
            yield f"{name}.bias", (size,)
