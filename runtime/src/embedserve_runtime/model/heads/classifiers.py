"""Sequence classifiers, one function a shape: from `architectures` of config.json to a `ClassifierHead`.

Sources: the `...ForSequenceClassification` classes of transformers, and for "New" and "JinaBert" the code beside
their checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from embedserve_runtime.errors import ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.model.activations import Activation
from embedserve_runtime.model.architecture import Norm, NormKind
from embedserve_runtime.model.families.common import unsupported
from embedserve_runtime.model.heads.config import HeadSource, layer
from embedserve_runtime.model.heads.description import ClassifierHead, HeadLayer, ScoreFunction
from embedserve_runtime.model.pipeline import Pooling

SUFFIX = "ForSequenceClassification"
Shape = tuple[Pooling, tuple[HeadLayer, ...]]

SCORES_BY_CLASS = {
    "torch.nn.modules.linear.Identity": ScoreFunction.IDENTITY,
    "torch.nn.modules.activation.Sigmoid": ScoreFunction.SIGMOID,
    "torch.nn.modules.activation.Softmax": ScoreFunction.SOFTMAX,
}


def _with_pooler(source: HeadSource, labels: int) -> Shape:
    """The pooler belongs to the encoder and has its prefix."""
    names = [f"{prefix}pooler.dense" for prefix in source.encoder.parameter_names.prefixes]
    return Pooling.CLS, (
        source.square(Activation.TANH, *names),
        layer(source.hidden, labels, "classifier"),
    )


def _in_the_classifier(source: HeadSource, labels: int) -> Shape:
    return Pooling.CLS, (
        source.square(Activation.TANH, "classifier.dense"),
        layer(source.hidden, labels, "classifier.out_proj"),
    )


def _distilbert(source: HeadSource, labels: int) -> Shape:
    return Pooling.CLS, (
        source.square(Activation.RELU, "pre_classifier"),
        layer(source.hidden, labels, "classifier"),
    )


def _modernbert(source: HeadSource, labels: int) -> Shape:
    poolings = {"cls": Pooling.CLS, "mean": Pooling.MEAN}
    pooling = poolings.get(source.config.classifier_pooling)
    if pooling is None:
        raise unsupported(source.path, "classifier_pooling", source.config.classifier_pooling)
    return pooling, (modernbert_head(source), layer(source.hidden, labels, "classifier"))


def modernbert_head(source: HeadSource) -> HeadLayer:
    """What classifier and masked LM of ModernBERT share."""
    config = source.config
    return source.square(
        source.activation("classifier_activation"),
        "head.dense",
        bias=config.classifier_bias,
        norm=Norm(NormKind.LAYER, config.norm_eps, bias=config.norm_bias),
        norm_name="head.norm",
    )


def _deberta(source: HeadSource, labels: int) -> Shape:
    if (source.config.pooler_hidden_size or source.hidden) != source.hidden:
        raise unsupported(source.path, "pooler_hidden_size", source.config.pooler_hidden_size)
    return Pooling.CLS, (
        source.square(source.activation("pooler_hidden_act"), "pooler.dense"),
        layer(source.hidden, labels, "classifier"),
    )


def _decoder(source: HeadSource, labels: int) -> Shape:
    return Pooling.LAST, (layer(source.hidden, labels, "score", bias=False),)


CLASSIFIERS: Mapping[str, Callable[[HeadSource, int], Shape]] = MappingProxyType(
    {
        "Bert": _with_pooler,
        "Camembert": _in_the_classifier,
        "DebertaV2": _deberta,
        "DistilBert": _distilbert,
        "Gemma3Text": _decoder,
        "Gte": _with_pooler,
        "JinaBert": _with_pooler,
        "Llama": _decoder,
        "MPNet": _in_the_classifier,
        "Mistral": _decoder,
        "ModernBert": _modernbert,
        "New": _with_pooler,
        "NomicBert": _with_pooler,
        "Qwen2": _decoder,
        "Qwen3": _decoder,
        "Roberta": _in_the_classifier,
        "XLMRoberta": _in_the_classifier,
    }
)


def classifier_head(source: HeadSource, architecture: str, cross_encoder: str | None) -> ClassifierHead:
    """The head of `architecture`. cross_encoder: the activation of config_sentence_transformers.json, if it names one.

    Raises UnsupportedArchitecture or ModelInvalid.
    """
    shape = CLASSIFIERS.get(architecture.removesuffix(SUFFIX))
    if shape is None:
        raise UnsupportedArchitecture(
            f"{source.path}: the head of {architecture} is not supported; supported: "
            f"{', '.join(f'{name}{SUFFIX}' for name in CLASSIFIERS)}"
        )
    labels = _labels(source)
    pooling, layers = shape(source, len(labels))
    return ClassifierHead(
        pooling,
        layers,
        labels,
        score_function(source, len(labels), cross_encoder),
        # GenericForSequenceClassification of transformers takes the last token whose id is not that of padding.
        padding=source.config.pad_token_id if pooling is Pooling.LAST else None,
    )


def labels_and_scores(source: HeadSource, cross_encoder: str | None) -> tuple[tuple[str, ...], ScoreFunction]:
    """What config.json says of logits that come from elsewhere. Raises UnsupportedArchitecture or ModelInvalid."""
    labels = _labels(source)
    return labels, score_function(source, len(labels), cross_encoder)


def _labels(source: HeadSource) -> tuple[str, ...]:
    """Return the labels in the order of the logits. transformers leaves them out where they are its default, two."""
    named = source.config.id2label
    if named is None:
        return tuple(f"LABEL_{number}" for number in range(source.config.num_labels or 2))
    if sorted(named) != list(range(len(named))) or not named:
        raise ModelInvalid(f"{source.path}: id2label must name every label from 0 on, has {sorted(named)}")
    return tuple(named[number] for number in range(len(named)))


def score_function(source: HeadSource, labels: int, cross_encoder: str | None) -> ScoreFunction:
    """A cross-encoder's own function, else that of transformers' text-classification pipeline.

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
        case other:
            raise unsupported(source.path, "problem_type", other)
