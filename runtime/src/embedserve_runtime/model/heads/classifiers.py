"""Sequence classifiers, one function a shape: from `architectures` of config.json to a `ClassifierHead`.

Sources: the `...ForSequenceClassification` classes of transformers, and for "New" and "JinaBert" the code next to
their checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from embedserve_runtime.errors import ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.model.activations import Activation
from embedserve_runtime.model.architecture import Norm, NormKind
from embedserve_runtime.model.families.common import unsupported_error
from embedserve_runtime.model.heads.config import HeadSource, describe_layer
from embedserve_runtime.model.heads.description import ClassifierHead, HeadLayer, ScoreFunction
from embedserve_runtime.model.heads.own_pooling import find_own_pooling
from embedserve_runtime.model.pipeline import Pooling

SUFFIX = "ForSequenceClassification"
Shape = tuple[Pooling, tuple[HeadLayer, ...]]

SCORES_BY_CLASS = {
    "torch.nn.modules.linear.Identity": ScoreFunction.IDENTITY,
    "torch.nn.modules.activation.Sigmoid": ScoreFunction.SIGMOID,
    "torch.nn.modules.activation.Softmax": ScoreFunction.SOFTMAX,
}


def _describe_with_pooler(source: HeadSource, labels: int) -> Shape:
    """Describe a classifier behind BERT's pooler, which belongs to the encoder and has its prefix."""
    names = [f"{prefix}pooler.dense" for prefix in source.encoder.parameter_names.prefixes]
    return Pooling.CLS, (
        source.describe_square_layer(Activation.TANH, *names),
        describe_layer(source.hidden, labels, "classifier"),
    )


def _describe_in_classifier(source: HeadSource, labels: int) -> Shape:
    return Pooling.CLS, (
        source.describe_square_layer(Activation.TANH, "classifier.dense"),
        describe_layer(source.hidden, labels, "classifier.out_proj"),
    )


def _describe_electra(source: HeadSource, labels: int) -> Shape:
    return Pooling.CLS, (
        source.describe_square_layer(Activation.GELU, "classifier.dense"),  # GELU whatever hidden_act says
        describe_layer(source.hidden, labels, "classifier.out_proj"),
    )


def _describe_albert(source: HeadSource, labels: int) -> Shape:
    """Describe a classifier behind ALBERT's pooler, a product of its own, without BERT's `dense`."""
    names = [f"{prefix}pooler" for prefix in source.encoder.parameter_names.prefixes]
    return Pooling.CLS, (
        source.describe_square_layer(Activation.TANH, *names),
        describe_layer(source.hidden, labels, "classifier"),
    )


def _describe_distilbert(source: HeadSource, labels: int) -> Shape:
    return Pooling.CLS, (
        source.describe_square_layer(Activation.RELU, "pre_classifier"),
        describe_layer(source.hidden, labels, "classifier"),
    )


def _describe_modernbert(source: HeadSource, labels: int) -> Shape:
    poolings = {"cls": Pooling.CLS, "mean": Pooling.MEAN}
    pooling = poolings.get(source.config.classifier_pooling)
    if pooling is None:
        raise unsupported_error(source.path, "classifier_pooling", source.config.classifier_pooling)
    return pooling, (describe_modernbert_layer(source), describe_layer(source.hidden, labels, "classifier"))


def describe_modernbert_layer(source: HeadSource) -> HeadLayer:
    """Describe the layer that ModernBERT's classifier and masked LM share."""
    config = source.config
    return source.describe_square_layer(
        source.read_activation("classifier_activation"),
        "head.dense",
        bias=config.classifier_bias,
        norm=Norm(NormKind.LAYER, config.norm_eps, bias=config.norm_bias),
        norm_name="head.norm",
    )


def _describe_deberta(source: HeadSource, labels: int) -> Shape:
    if (source.config.pooler_hidden_size or source.hidden) != source.hidden:
        raise unsupported_error(source.path, "pooler_hidden_size", source.config.pooler_hidden_size)
    return Pooling.CLS, (
        source.describe_square_layer(source.read_activation("pooler_hidden_act"), "pooler.dense"),
        describe_layer(source.hidden, labels, "classifier"),
    )


def _describe_decoder(source: HeadSource, labels: int) -> Shape:
    return Pooling.LAST, (describe_layer(source.hidden, labels, "score", bias=False),)


def _describe_bidirectional_llama(source: HeadSource, labels: int) -> Shape:
    """Describe NVIDIA's class: config.json names the pooling, and a temperature that logits are divided by."""
    layer = describe_layer(source.hidden, labels, "score", bias=False)
    return find_own_pooling(source) or Pooling.MEAN, (replace(layer, divisor=source.config.temperature),)


CLASSIFIERS: Mapping[str, Callable[[HeadSource, int], Shape]] = MappingProxyType(
    {
        "Albert": _describe_albert,
        "Bert": _describe_with_pooler,
        "Camembert": _describe_in_classifier,
        "DebertaV2": _describe_deberta,
        "DistilBert": _describe_distilbert,
        "Electra": _describe_electra,
        "Gemma": _describe_decoder,
        "Gemma2": _describe_decoder,
        "Gemma3Text": _describe_decoder,
        "Gte": _describe_with_pooler,
        "JinaBert": _describe_with_pooler,
        "JinaEmbeddingsV3": _describe_in_classifier,
        "Llama": _describe_decoder,
        "LlamaBidirectional": _describe_bidirectional_llama,
        "MPNet": _describe_in_classifier,
        "Mistral": _describe_decoder,
        "ModernBert": _describe_modernbert,
        "New": _describe_with_pooler,
        "NomicBert": _describe_with_pooler,
        "Qwen2": _describe_decoder,
        "Qwen3": _describe_decoder,
        "Roberta": _describe_in_classifier,
        "XLMRoberta": _describe_in_classifier,
    }
)


def describe_classifier_head(
    source: HeadSource, architecture: str, cross_encoder: str | None
) -> ClassifierHead:
    """Describe the head of `architecture`.

    cross_encoder: the activation of config_sentence_transformers.json, if it names one.

    Raises UnsupportedArchitecture or ModelInvalid.
    """
    shape = CLASSIFIERS.get(architecture.removesuffix(SUFFIX))
    if shape is None:
        raise UnsupportedArchitecture(
            f"{source.path}: the head of {architecture} is not supported; supported: "
            f"{', '.join(f'{name}{SUFFIX}' for name in CLASSIFIERS)}"
        )
    labels = _read_labels(source)
    pooling, layers = shape(source, len(labels))
    return ClassifierHead(
        pooling,
        layers,
        labels,
        choose_score_function(source, len(labels), cross_encoder),
        # GenericForSequenceClassification of transformers takes the last token whose id is not that of padding.
        padding=source.config.pad_token_id if shape is _describe_decoder else None,
    )


def read_labels_and_scores(
    source: HeadSource, cross_encoder: str | None
) -> tuple[tuple[str, ...], ScoreFunction]:
    """Read from config.json the labels and the score function of logits that another file gives. Raises
    UnsupportedArchitecture or ModelInvalid."""
    labels = _read_labels(source)
    return labels, choose_score_function(source, len(labels), cross_encoder)


def _read_labels(source: HeadSource) -> tuple[str, ...]:
    """Return the labels in the order of the logits. transformers leaves them out where they are its default, two."""
    labels = source.config.id2label
    if labels is None:
        return tuple(f"LABEL_{number}" for number in range(source.config.num_labels or 2))
    if sorted(labels) != list(range(len(labels))) or not labels:
        raise ModelInvalid(f"{source.path}: id2label must name every label from 0 on, has {sorted(labels)}")
    return tuple(labels[number] for number in range(len(labels)))


def choose_score_function(source: HeadSource, labels: int, cross_encoder: str | None) -> ScoreFunction:
    """Choose a cross-encoder's own function, else that of transformers' text-classification pipeline.

    One label always gets the sigmoid: trainers write "regression" into the config of rerankers.
    """
    config = source.config
    nested = config.sentence_transformers.activation_fn if config.sentence_transformers else None
    name = cross_encoder or nested or config.sbert_ce_default_activation_function
    if name is not None:
        if name not in SCORES_BY_CLASS:
            file = source.path.name if cross_encoder is None else "config_sentence_transformers.json"
            raise UnsupportedArchitecture(
                f"{source.path.parent}: the cross-encoder's activation {name} in {file} is not supported; supported: "
                f"{', '.join(SCORES_BY_CLASS)}"
            )
        return SCORES_BY_CLASS[name]
    if labels == 1:
        return ScoreFunction.SIGMOID
    match config.problem_type:
        case None | "single_label_classification":
            return ScoreFunction.SOFTMAX
        case "multi_label_classification":
            return ScoreFunction.SIGMOID
        case "regression":
            return ScoreFunction.IDENTITY
        case problem_type:
            raise unsupported_error(source.path, "problem_type", problem_type)
