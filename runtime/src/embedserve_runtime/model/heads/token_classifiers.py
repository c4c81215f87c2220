"""Token classifiers with one label, whose logits are weights of a text's tokens beside its dense vector: from
`architectures` of config.json to the layers.

Sources: the `...ForTokenClassification` classes of transformers, and for "New" and "JinaBert" the code beside their
checkpoints. What is made of the logits, and that the dense vector is the first token's state, normalized: the script
beside the checkpoint of Alibaba-NLP/gte-multilingual-base.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from embedserve_runtime.model.checkpoint import Checkpoint
from embedserve_runtime.model.heads.classifiers import describe_modernbert_layer
from embedserve_runtime.model.heads.config import HeadConfig, HeadSource, describe_layer
from embedserve_runtime.model.heads.description import HeadLayer, LexicalHead
from embedserve_runtime.model.vocabulary import read_unused_token_ids

SUFFIX = "ForTokenClassification"
Layers = tuple[HeadLayer, ...]


def _describe_classifier(source: HeadSource) -> Layers:
    return (describe_layer(source.hidden, 1, "classifier"),)


def _describe_modernbert(source: HeadSource) -> Layers:
    return describe_modernbert_layer(source), *_describe_classifier(source)


def _describe_decoder(source: HeadSource) -> Layers:
    return (describe_layer(source.hidden, 1, "score", bias=source.config.token_classification_bias),)


TOKEN_CLASSIFIERS: Mapping[str, Callable[[HeadSource], Layers]] = MappingProxyType(
    {
        "Bert": _describe_classifier,
        "Camembert": _describe_classifier,
        "DebertaV2": _describe_classifier,
        "DistilBert": _describe_classifier,
        "Gte": _describe_classifier,
        "JinaBert": _describe_classifier,
        "Llama": _describe_decoder,
        "MPNet": _describe_classifier,
        "Mistral": _describe_decoder,
        "ModernBert": _describe_modernbert,
        "New": _describe_classifier,
        "NomicBert": _describe_classifier,
        "Qwen2": _describe_decoder,
        "Qwen3": _describe_decoder,
        "Roberta": _describe_classifier,
        "XLMRoberta": _describe_classifier,
    }
)


# The last layer's weight, a row for each label.
WEIGHTS = ("classifier.weight", "score.weight")


def weighs_tokens(config: HeadConfig) -> bool:
    """Return whether config.json names a token classifier with one label."""
    return config.find_architecture(SUFFIX) is not None and _count_named_labels(config) == 1


def count_labels(config: HeadConfig, checkpoint: Checkpoint) -> int:
    """Return how many labels config.json names; where it names none, how many the checkpoint's classifier has, else
    transformers' default, 2."""
    label_count = _count_named_labels(config)
    if label_count is not None:
        return label_count
    stored = next((name for name in WEIGHTS if name in checkpoint.names), None)
    return 2 if stored is None else len(checkpoint.read_tensor(stored))


def _count_named_labels(config: HeadConfig) -> int | None:
    return config.num_labels if config.id2label is None else len(config.id2label)


def find_token_weights_obstacle(architecture: str, labels: int) -> str | None:
    """Find what keeps the logits of a class from being token weights; None if nothing does."""
    if labels != 1:
        return f"it has {labels} labels, and only that with one, which weighs tokens, is served"
    if architecture.removesuffix(SUFFIX) not in TOKEN_CLASSIFIERS:
        return f"known are {', '.join(f'{name}{SUFFIX}' for name in TOKEN_CLASSIFIERS)}"
    return None


def describe_token_classifier_head(source: HeadSource, architecture: str) -> LexicalHead:
    """Read the head of a class whose logits are weights of tokens. Raises ModelInvalid."""
    return LexicalHead(
        TOKEN_CLASSIFIERS[architecture.removesuffix(SUFFIX)](source),
        read_unused_token_ids(source.files),
        source.encoder.embeddings.vocabulary,
    )
