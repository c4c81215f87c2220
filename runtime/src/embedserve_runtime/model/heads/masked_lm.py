"""Masked-LM heads, which sparse (SPLADE) vectors come from: from `architectures` of config.json to the layers.

Sources: the `...ForMaskedLM` classes of transformers, and for "New" and "JinaBert" the code next to their checkpoints.
The decoder is tied to the word embeddings unless the checkpoint has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from embedserve_runtime.errors import UnsupportedArchitecture
from embedserve_runtime.model.activations import Activation
from embedserve_runtime.model.architecture import Norm, NormKind
from embedserve_runtime.model.heads.classifiers import describe_modernbert_layer
from embedserve_runtime.model.heads.config import HeadSource, add_norm, describe_layer
from embedserve_runtime.model.heads.description import HeadLayer

SUFFIX = "ForMaskedLM"
Layers = tuple[HeadLayer, ...]


def _list_word_embeddings(source: HeadSource) -> tuple[str, ...]:
    names = source.encoder.parameter_names
    sources = names.sources["embeddings.word.weight"]
    return tuple(prefix + source.tensor for prefix in names.prefixes for source in sources)


def _describe_decoder(source: HeadSource, name: str, *bias: str) -> HeadLayer:
    return HeadLayer(
        in_features=source.width,
        out_features=source.encoder.embeddings.vocabulary,
        weight=(
            f"{name}.weight",
            *(_list_word_embeddings(source) if source.config.tie_word_embeddings else ()),
        ),
        bias=bias,
    )


def _list_biases(source: HeadSource, head: str) -> tuple[str, str]:
    """List the names of the bias. transformers adds the decoder's bias, and ties it to the head's where the weights are
    tied too. So where they are not, a checkpoint may hold two different ones."""
    own, decoder_bias = f"{head}.bias", f"{head}.decoder.bias"
    return (own, decoder_bias) if source.config.tie_word_embeddings else (decoder_bias, own)


def _describe_bert(source: HeadSource, norm: str = "LayerNorm") -> Layers:
    predictions = "cls.predictions"
    dense = describe_layer(
        source.hidden,
        source.width,
        f"{predictions}.transform.dense",
        activation=source.read_activation("hidden_act"),
    )
    return (
        add_norm(dense, source.describe_layer_norm(), f"{predictions}.transform.{norm}"),
        _describe_decoder(source, f"{predictions}.decoder", *_list_biases(source, predictions)),
    )


def _describe_nomic(source: HeadSource) -> Layers:
    return _describe_bert(source, norm="layer_norm")


def _describe_deberta(source: HeadSource) -> Layers:
    if source.config.legacy:
        return _describe_bert(source)
    head = "lm_predictions.lm_head"
    dense = source.describe_square_layer(
        source.read_activation("hidden_act"),
        f"{head}.dense",
        norm=source.describe_layer_norm(),
        norm_name=f"{head}.LayerNorm",
    )
    return dense, HeadLayer(
        source.hidden, source.encoder.embeddings.vocabulary, _list_word_embeddings(source), (f"{head}.bias",)
    )


def _describe_roberta(source: HeadSource) -> Layers:
    return _describe_lm_head(source, Activation.GELU, "lm_head.layer_norm")  # GELU whatever hidden_act says


def _describe_gte(source: HeadSource) -> Layers:
    return _describe_lm_head(source, Activation.GELU, "lm_head.norm", "lm_head.layer_norm")


def _describe_new(source: HeadSource) -> Layers:
    return _describe_lm_head(source, source.read_activation("hidden_act"), "lm_head.norm")


def _describe_lm_head(source: HeadSource, activation: Activation, *norms: str) -> Layers:
    dense = source.describe_square_layer(activation, "lm_head.dense", norm=source.describe_layer_norm())
    return (
        HeadLayer(
            dense.in_features, dense.out_features, dense.weight, dense.bias, activation, dense.norm, norms
        ),
        _describe_decoder(source, "lm_head.decoder", *_list_biases(source, "lm_head")),
    )


def _describe_distilbert(source: HeadSource) -> Layers:
    return (
        source.describe_square_layer(
            source.read_activation("activation"),
            "vocab_transform",
            norm=Norm(NormKind.LAYER, 1e-12),  # fixed in the source
            norm_name="vocab_layer_norm",
        ),
        _describe_decoder(source, "vocab_projector", "vocab_projector.bias"),
    )


def _describe_modernbert(source: HeadSource) -> Layers:
    bias = ("decoder.bias",) if source.config.decoder_bias else ()
    return describe_modernbert_layer(source), _describe_decoder(source, "decoder", *bias)


MASKED_LMS: Mapping[str, Callable[[HeadSource], Layers]] = MappingProxyType(
    {
        "Bert": _describe_bert,
        "Camembert": _describe_roberta,
        "DebertaV2": _describe_deberta,
        "DistilBert": _describe_distilbert,
        "Gte": _describe_gte,
        "JinaBert": _describe_bert,
        "MPNet": _describe_roberta,
        "ModernBert": _describe_modernbert,
        "New": _describe_new,
        "NomicBert": _describe_nomic,
        "Roberta": _describe_roberta,
        "XLMRoberta": _describe_roberta,
    }
)


def describe_masked_lm_layers(source: HeadSource, architecture: str) -> Layers:
    """Describe the transform and the decoder. Raises UnsupportedArchitecture."""
    layers = MASKED_LMS.get(architecture.removesuffix(SUFFIX)) if architecture.endswith(SUFFIX) else None
    if layers is None:
        raise UnsupportedArchitecture(
            f"{source.path}: sparse vectors come from a masked-LM head, and {architecture or 'no architecture'} has "
            f"none that is supported; supported: {', '.join(f'{name}{SUFFIX}' for name in MASKED_LMS)}"
        )
    return layers(source)
