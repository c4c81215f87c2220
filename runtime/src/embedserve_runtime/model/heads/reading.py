"""Which task a folder is for, and the head for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from embedserve_runtime.errors import ConfigError, ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.files import ModelFiles
from embedserve_runtime.model.heads import bge_m3, causal, classifiers
from embedserve_runtime.model.heads.causal import describe_causal_head
from embedserve_runtime.model.heads.classifiers import describe_classifier_head
from embedserve_runtime.model.heads.config import HeadSource
from embedserve_runtime.model.heads.description import (
    ClassifierHead,
    Head,
    MultiVectorHead,
    SparseHead,
    SparsePooling,
    Task,
    TokenHead,
)
from embedserve_runtime.model.heads.late_interaction import read_multi_vector_head, replace_prompts
from embedserve_runtime.model.heads.masked_lm import describe_masked_lm_layers
from embedserve_runtime.model.modules import ModelLayout
from embedserve_runtime.model.pipeline import Pooling
from embedserve_runtime.model.tensors import ModelTensors

# Heads that transformers has and that give neither vectors nor scores of a text.
OTHER_HEADS = (
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
    "ForNextSentencePrediction",
)


def read_head(
    files: ModelFiles, encoder: Encoder, layout: ModelLayout, asked: str
) -> tuple[Task, Head | None]:
    """The task and its head, None for dense vectors. asked: `model.task`, a task or "auto".

    Raises ModelError (naming file and head), or ConfigError when the folder is not for the task that is asked for.
    """
    source = HeadSource.read(files.enter_folder(layout.modules.transformer), encoder)
    architectures = source.config.architectures or []
    task = _detect_architecture(source.path, architectures, layout) if asked == "auto" else asked
    if task == Task.EMBED:
        if layout.modules.token_dense:
            raise ConfigError(
                f"model.task: {asked} needs a Pooling module, {files.path} is a multi-vector model"
            )
        return Task.EMBED, None
    if task == Task.MULTI_VECTOR:
        return Task.MULTI_VECTOR, read_multi_vector_head(files, encoder, layout)
    if task == Task.SPARSE:
        return Task.SPARSE, _read_sparse_head(source, architectures, layout)
    return _read_classifier(source, architectures, layout, asked)


def read_graph_head(
    home: ModelFiles, encoder: Encoder, layout: ModelLayout, asked: str, width: int
) -> tuple[Task, ClassifierHead]:
    """Task and head of a graph that gives `width` logits itself. home: the encoder's files. Raises ModelError or
    ConfigError."""
    source = HeadSource.read(home, encoder)
    labels, scores = classifiers.read_labels_and_scores(source, layout.activation)
    if len(labels) != width:
        raise ModelInvalid(f"{source.path} names {len(labels)} labels, the ONNX file gives {width} logits")
    return _choose_task(asked, len(labels)), ClassifierHead(Pooling.CLS, (), labels, scores)


def _choose_task(asked: str, labels: int) -> Task:
    if asked == Task.RERANK and labels != 1:
        raise ConfigError(f"model.task: rerank needs a model with one label, this one has {labels}")
    return Task.RERANK if labels == 1 and asked != Task.CLASSIFY else Task.CLASSIFY


def read_token_heads(
    files: ModelFiles, tensors: ModelTensors, encoder: Encoder, task: Task
) -> tuple[TokenHead, ...]:
    """What the model makes of each token beside dense vectors. Raises ModelError."""
    return bge_m3.describe_token_heads(files, tensors, encoder) if task is Task.EMBED else ()


def override_prompts(
    head: Head | None, prompts: Mapping[str, str], default_prompt: str | None
) -> Head | None:
    """Return the head with the service's prompts in place of its own: those of roles, or the instruction."""
    if isinstance(head, MultiVectorHead) and head.interaction is not None:
        return replace(head, interaction=replace_prompts(head.interaction, prompts))
    if isinstance(head, ClassifierHead) and head.template is not None and default_prompt is not None:
        return replace(head, template=replace(head.template, instruction=prompts[default_prompt]))
    return head


def _detect_architecture(path: Path, architectures: Sequence[str], layout: ModelLayout) -> str:
    """A task, "classify" also for rerankers. What the modules say counts more than the name of the checkpoint's class:
    many embedding models were saved from a model with a head."""
    if layout.modules.splade is not None:
        return Task.SPARSE
    if layout.modules.pooling is not None:
        return Task.EMBED
    if layout.modules.token_dense:
        return Task.MULTI_VECTOR
    if layout.modules.logit_score is not None:
        return Task.RERANK
    if _find_architecture(architectures, classifiers.SUFFIX):
        return Task.CLASSIFY
    for kind in OTHER_HEADS:
        if found := _find_architecture(architectures, kind):
            raise UnsupportedArchitecture(
                f"{path}: the head of {found} is not supported; set model.task to embed to serve its encoder alone"
            )
    return Task.EMBED


def _find_architecture(architectures: Sequence[str], suffix: str) -> str | None:
    return next((name for name in architectures if name.endswith(suffix)), None)


def _read_sparse_head(source: HeadSource, architectures: Sequence[str], layout: ModelLayout) -> SparseHead:
    layers = describe_masked_lm_layers(source, architectures[0] if architectures else "")
    splade = layout.modules.splade
    if splade is None:
        return SparseHead(layers, SparsePooling.MAX)
    return SparseHead(
        layers, SparsePooling(splade.pooling_strategy), splade.activation_function == "log1p_relu"
    )


def _read_classifier(
    source: HeadSource, architectures: Sequence[str], layout: ModelLayout, asked: str
) -> tuple[Task, ClassifierHead]:
    architecture = _find_architecture(architectures, classifiers.SUFFIX)
    causal_model = _find_architecture(architectures, causal.SUFFIX)
    if architecture is not None:
        head = describe_classifier_head(source, architecture, layout.activation)
    elif causal_model is not None and asked != Task.CLASSIFY:
        head = describe_causal_head(source, causal_model, layout.modules.logit_score, layout.activation)
    else:
        named = ", ".join(architectures) or "no architecture"
        raise ConfigError(
            f"model.task: {asked} needs a model for sequence classification, {source.path} has {named}"
        )
    return _choose_task(asked, len(head.labels)), head
