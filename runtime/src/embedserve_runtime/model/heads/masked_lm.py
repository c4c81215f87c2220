"""Masked-LM heads, which sparse (SPLADE) vectors come from: from `architectures` of config.json to the layers.

Sources: the `...ForMaskedLM` classes of transformers, and for "New" and "JinaBert" the code beside their checkpoints.
The decoder is tied to the word embeddings unless the checkpoint has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from embedserve_runtime.errors import UnsupportedArchitecture
from embedserve_runtime.model.activations import Activation
from embedserve_runtime.model.architecture import Norm, NormKind
from embedserve_runtime.model.heads.classifiers import modernbert_head
from embedserve_runtime.model.heads.config import HeadSource, layer
from embedserve_runtime.model.heads.description import HeadLayer

SUFFIX = "ForMaskedLM"
Layers = tuple[HeadLayer, ...]


def _word_embeddings(source: HeadSource) -> tuple[str, ...]:
    names = source.encoder.parameter_names
    words = names.sources["embeddings.word.weight"]
    return tuple(prefix + word.tensor for prefix in names.prefixes for word in words)


def _decoder(source: HeadSource, name: str, *bias: str) -> HeadLayer:
    return HeadLayer(
        in_features=source.width,
        out_features=source.encoder.embeddings.vocabulary,
        weight=(f"{name}.weight", *(_word_embeddings(source) if source.config.tie_word_embeddings else ())),
        bias=bias,
    )


def _biases(source: HeadSource, head: str) -> tuple[str, str]:
    """transformers adds the decoder's bias, and ties it to the head's where the weights are tied too. So where they are
    not, a checkpoint may hold two different ones."""
    own, of_decoder = f"{head}.bias", f"{head}.decoder.bias"
    return (own, of_decoder) if source.config.tie_word_embeddings else (of_decoder, own)


def _bert(source: HeadSource, norm: str = "LayerNorm") -> Layers:
    predictions = "cls.predictions"
    return (
        layer(
            source.hidden,
            source.width,
            f"{predictions}.transform.dense",
            activation=source.activation("hidden_act"),
            norm=source.layer_norm(),
            norm_name=f"{predictions}.transform.{norm}",
        ),
        _decoder(source, f"{predictions}.decoder", *_biases(source, predictions)),
    )


def _nomic(source: HeadSource) -> Layers:
    return _bert(source, norm="layer_norm")


def _deberta(source: HeadSource) -> Layers:
    if source.config.legacy:
        return _bert(source)
    head = "lm_predictions.lm_head"
    dense = source.square(
        source.activation("hidden_act"),
        f"{head}.dense",
        norm=source.layer_norm(),
        norm_name=f"{head}.LayerNorm",
    )
    return dense, HeadLayer(
        source.hidden, source.encoder.embeddings.vocabulary, _word_embeddings(source), (f"{head}.bias",)
    )


def _roberta(source: HeadSource) -> Layers:
    return _lm_head(source, Activation.GELU, "lm_head.layer_norm")  # GELU whatever hidden_act says


def _gte(source: HeadSource) -> Layers:
    return _lm_head(source, Activation.GELU, "lm_head.norm", "lm_head.layer_norm")


def _new(source: HeadSource) -> Layers:
    return _lm_head(source, source.activation("hidden_act"), "lm_head.norm")


def _lm_head(source: HeadSource, activation: Activation, *norms: str) -> Layers:
    dense = source.square(activation, "lm_head.dense", norm=source.layer_norm())
    return (
        HeadLayer(
            dense.in_features, dense.out_features, dense.weight, dense.bias, activation, dense.norm, norms
        ),
        _decoder(source, "lm_head.decoder", *_biases(source, "lm_head")),
    )


def _distilbert(source: HeadSource) -> Layers:
    return (
        source.square(
            source.activation("activation"),
            "vocab_transform",
            norm=Norm(NormKind.LAYER, 1e-12),  # fixed in the source
            norm_name="vocab_layer_norm",
        ),
        _decoder(source, "vocab_projector", "vocab_projector.bias"),
    )


def _modernbert(source: HeadSource) -> Layers:
    bias = ("decoder.bias",) if source.config.decoder_bias else ()
    return modernbert_head(source), _decoder(source, "decoder", *bias)


MASKED_LMS: Mapping[str, Callable[[HeadSource], Layers]] = MappingProxyType(
    {
        "Bert": _bert,
        "Camembert": _roberta,
        "DebertaV2": _deberta,
        "DistilBert": _distilbert,
        "Gte": _gte,
        "JinaBert": _bert,
        "MPNet": _roberta,
        "ModernBert": _modernbert,
        "New": _new,
        "NomicBert": _nomic,
        "Roberta": _roberta,
        "XLMRoberta": _roberta,
    }
)


def masked_lm_layers(source: HeadSource, architecture: str) -> Layers:
    """Transform and decoder. Raises UnsupportedArchitecture."""
    layers = MASKED_LMS.get(architecture.removesuffix(SUFFIX)) if architecture.endswith(SUFFIX) else None
    if layers is None:
        raise UnsupportedArchitecture(
            f"{source.path}: sparse vectors come from a masked-LM head, and {architecture or 'no architecture'} has "
            f"none that is supported; supported: {', '.join(f'{name}{SUFFIX}' for name in MASKED_LMS)}"
        )
    return layers(source)
