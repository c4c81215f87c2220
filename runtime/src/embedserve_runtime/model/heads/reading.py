"""Reads the task that a folder is for, and the head for it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from embedserve_runtime.config import ModelSettings
from embedserve_runtime.errors import ConfigError, ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.files import ModelFiles
from embedserve_runtime.model.heads import (
    bge_m3,
    causal,
    classifiers,
    late_interaction,
    masked_lm,
    token_classifiers,
)
from embedserve_runtime.model.heads.causal import describe_causal_head
from embedserve_runtime.model.heads.chat_template import find_chat_template
from embedserve_runtime.model.heads.classifiers import describe_classifier_head
from embedserve_runtime.model.heads.config import HeadConfig, HeadSource
from embedserve_runtime.model.heads.description import (
    ClassifierHead,
    Head,
    LexicalHead,
    MultiVectorHead,
    SparseHead,
    SparsePooling,
    Task,
    TokenHead,
)
from embedserve_runtime.model.heads.late_interaction import read_multi_vector_head, replace_prompts
from embedserve_runtime.model.heads.pair_template import check_bare_pairs, find_pair_template
from embedserve_runtime.model.heads.pooling_checks import check_pooling
from embedserve_runtime.model.heads.rerankers import Reranker, check_supported, find_reranker
from embedserve_runtime.model.modules import ModelLayout, Modules
from embedserve_runtime.model.pipeline import Pooling
from embedserve_runtime.model.readme import read_readme
from embedserve_runtime.model.tensors import ModelTensors

log = logging.getLogger(__name__)

# Heads that transformers has and that give neither vectors nor scores of a text.
OTHER_HEADS = (
    "ForQuestionAnswering",
    "ForMultipleChoice",
    "ForNextSentencePrediction",
)


def read_head(
    files: ModelFiles, encoder: Encoder, layout: ModelLayout, settings: ModelSettings
) -> tuple[Task, Head | None]:
    """Read the task and its head, None for dense vectors; `read_token_heads` reads what comes in addition to them.

    Raises ModelError (naming file and head), or ConfigError when the folder is not for the task that is asked for.
    """
    source = HeadSource.read(files.enter_folder(layout.modules.transformer), encoder)
    task, names = settings.task, _list_names(files, source, settings)
    classes = source.config.architectures or []
    check_supported(source.path, [*names, *classes])
    reranker = find_reranker([*names, *classes])
    detected = _detect_task(source, layout, reranker) if task == "auto" else task
    if detected == Task.SPARSE and "dense" in settings.outputs:
        detected = Task.EMBED
    if detected == Task.EMBED:
        check_pooling(files, source, layout, settings)
        if layout.modules.scores:
            raise ConfigError(f"model.task: {task} is not what {files.path} is for: its modules make scores")
        if layout.modules.token_dense:
            raise ConfigError(
                f"model.task: {task} needs a Pooling module, {files.path} is a multi-vector model"
            )
        return Task.EMBED, None
    if detected == Task.MULTI_VECTOR:
        return Task.MULTI_VECTOR, read_multi_vector_head(files, encoder, layout)
    if detected == Task.SPARSE:
        if bge_m3.is_bge_m3(files) or source.config.find_architecture(token_classifiers.SUFFIX):
            raise ConfigError(
                f"model.task: sparse is for models that give sparse vectors alone, {files.path} gives them beside "
                "dense ones; set it to auto"
            )
        return Task.SPARSE, _read_sparse_head(source, layout)
    return _read_classifier(source, layout, task, reranker)


def read_graph_head(
    encoder_files: ModelFiles, encoder: Encoder, layout: ModelLayout, settings: ModelSettings, width: int
) -> tuple[Task, ClassifierHead]:
    """Read the task and head of an ONNX graph that returns `width` logits.

    encoder_files: the files of the encoder's folder. Raises ModelError or ConfigError.
    """
    source = HeadSource.read(encoder_files, encoder)
    reranker = find_reranker(_list_names(encoder_files, source, settings))
    labels, scores = classifiers.read_labels_and_scores(source, layout.activation)
    if len(labels) != width:
        raise ModelInvalid(f"{source.path} names {len(labels)} labels, the ONNX file gives {width} logits")
    head = ClassifierHead(Pooling.CLS, (), labels, scores)
    return _choose_task(settings.task, len(labels)), _add_template(source, layout, head, reranker)


def _choose_task(task: str, labels: int) -> Task:
    if task == Task.RERANK and labels != 1:
        raise ConfigError(f"model.task: rerank needs a model with one label, this one has {labels}")
    return Task.RERANK if labels == 1 and task != Task.CLASSIFY else Task.CLASSIFY


def read_token_heads(
    files: ModelFiles, tensors: ModelTensors, encoder: Encoder, layout: ModelLayout, settings: ModelSettings
) -> tuple[TokenHead, ...]:
    """Read the heads that give something for each token in addition to dense vectors. Raises ModelError."""
    source = HeadSource.read(files.enter_folder(layout.modules.transformer), encoder)
    heads = [
        *bge_m3.describe_token_heads(files, tensors, encoder),
        *_read_token_weights(source, tensors, layout, settings),
    ]
    if "sparse" in settings.outputs and source.config.find_architecture(masked_lm.SUFFIX) is not None:
        heads.append(_read_sparse_head(source, layout))
    if sum(isinstance(head, LexicalHead | SparseHead) for head in heads) > 1:
        raise UnsupportedArchitecture(
            f"{source.path}: more than one head of {files.path} gives sparse vectors"
        )
    return tuple(heads)


def _read_token_weights(
    source: HeadSource, tensors: ModelTensors, layout: ModelLayout, settings: ModelSettings
) -> list[TokenHead]:
    """Read the head of a token classifier with one label; none where the encoder alone is served.

    Raises UnsupportedArchitecture where a head cannot be served and nothing says that the encoder alone is meant.
    """
    architecture = source.config.find_architecture(token_classifiers.SUFFIX)
    if architecture is None:
        return []
    labels = token_classifiers.count_labels(
        source.config, tensors.open_checkpoint(layout.modules.transformer)
    )
    reason = token_classifiers.find_token_weights_obstacle(architecture, labels)
    if reason is None:
        return [token_classifiers.describe_token_classifier_head(source, architecture)]
    if settings.task == "auto" and layout.modules.pooling is None:
        raise UnsupportedArchitecture(
            f"{source.path}: the head of {architecture} is not supported: {reason}; set model.task to embed to serve "
            "its encoder alone"
        )
    log.warning("the encoder is served without its head", extra={"head": architecture, "reason": reason})
    return []


def pools_first_token(files: ModelFiles, layout: ModelLayout, heads: Sequence[TokenHead]) -> bool:
    """Return whether the model's authors take the first token's state, normalized, for the dense vector where no
    modules.json says how to pool. heads: what is made of each token."""
    config = files.enter_folder(layout.modules.transformer).parse_if_there(
        "config.json", HeadConfig, HeadConfig()
    )
    return (
        bge_m3.is_bge_m3(files)
        or any(isinstance(head, LexicalHead) for head in heads)
        or token_classifiers.weighs_tokens(config)
    )


def override_prompts(
    head: Head | None, prompts: Mapping[str, str], default_prompt: str | None
) -> Head | None:
    """Return the head with the service's prompts instead of its own: those of roles, or the instruction."""
    if isinstance(head, MultiVectorHead) and head.interaction is not None:
        return replace(head, interaction=replace_prompts(head.interaction, prompts))
    if isinstance(head, ClassifierHead) and head.template is not None and default_prompt is not None:
        return replace(head, template=replace(head.template, instruction=prompts[default_prompt]))
    return head


def _detect_task(source: HeadSource, layout: ModelLayout, reranker: Reranker | None) -> str:
    """Return the task, "classify" also for rerankers of one label. What the modules say counts more than the name of
    the checkpoint's class: many embedding models were saved from a model with a head. reranker: the reranker that the
    model is by its name."""
    config = source.config
    if (by_modules := _find_task_of_modules(layout.modules)) is not None:
        return by_modules
    if config.find_architecture(classifiers.SUFFIX):
        return Task.CLASSIFY
    if late_interaction.is_stanford_colbert(config):
        return Task.MULTI_VECTOR
    if config.find_architecture(causal.SUFFIX) and _is_generative_reranker(source, reranker):
        return Task.RERANK
    if architecture := next(filter(None, map(config.find_architecture, OTHER_HEADS)), None):
        raise UnsupportedArchitecture(
            f"{source.path}: the head of {architecture} is not supported; set model.task to embed to serve its "
            "encoder alone"
        )
    return Task.EMBED


def _find_task_of_modules(modules: Modules) -> Task | None:
    """Return the task that the modules after the encoder are for; None where there are none."""
    rows = (
        (bool(modules.scores), Task.CLASSIFY),
        (modules.splade is not None, Task.SPARSE),
        (modules.pooling is not None, Task.EMBED),
        (bool(modules.token_dense), Task.MULTI_VECTOR),
        (modules.logit_score is not None, Task.RERANK),
    )
    return next((task for there, task in rows if there), None)


def _is_generative_reranker(source: HeadSource, reranker: Reranker | None) -> bool:
    """Return whether a language model is a reranker by its name or by its chat template."""
    template = find_chat_template(source.files)
    return reranker is not None or (template is not None and template.names_pair)


def _read_sparse_head(source: HeadSource, layout: ModelLayout) -> SparseHead:
    architecture = source.config.find_architecture(masked_lm.SUFFIX)
    layers = masked_lm.describe_masked_lm_layers(
        source, architecture or next(iter(source.config.architectures or []), "")
    )
    splade = layout.modules.splade
    if splade is None:
        return SparseHead(layers, SparsePooling.MAX)
    return SparseHead(
        layers, SparsePooling(splade.pooling_strategy), splade.activation_function == "log1p_relu"
    )


def _read_classifier(
    source: HeadSource, layout: ModelLayout, task: str, reranker: Reranker | None
) -> tuple[Task, ClassifierHead]:
    """Read a classifier. reranker: the one that the model is by its name."""
    architecture = source.config.find_architecture(classifiers.SUFFIX)
    causal_model = source.config.find_architecture(causal.SUFFIX)
    if layout.modules.scores:
        head = _describe_chain(source, layout)
    elif architecture is not None:
        head = describe_classifier_head(source, architecture, layout.activation)
        head = _add_template(source, layout, head, reranker)
    elif causal_model is not None and task != Task.CLASSIFY:
        template = find_pair_template(source, layout, reranker)
        head = describe_causal_head(source, layout, template, reranker)
    else:
        architectures = ", ".join(source.config.architectures or []) or "no architecture"
        raise ConfigError(
            f"model.task: {task} needs a model for sequence classification, {source.path} has {architectures}"
        )
    return _choose_task(task, len(head.labels)), head


def _describe_chain(source: HeadSource, layout: ModelLayout) -> ClassifierHead:
    """Describe the head of a cross-encoder whose modules make the scores. Raises ModelError."""
    poolings, layers, size = layout.modules.pooling or (), layout.modules.scores, source.hidden
    if len(poolings) != 1:
        raise UnsupportedArchitecture(
            f"{source.files.path}: scores of {len(poolings)} poolings are not supported"
        )
    for layer in layers:
        if layer.in_features != size:
            raise ModelInvalid(
                f"{layer.file}: takes {layer.in_features} features, the step before gives {size}"
            )
        size = layer.out_features
    labels = tuple(f"LABEL_{number}" for number in range(size))
    return ClassifierHead(
        poolings[0], layers, labels, classifiers.choose_score_function(source, size, layout.activation)
    )


def _add_template(
    source: HeadSource, layout: ModelLayout, head: ClassifierHead, reranker: Reranker | None
) -> ClassifierHead:
    """Return the head with the written prompt that pairs are put into, if there is one."""
    template = find_pair_template(source, layout, reranker)
    if template is None and len(head.labels) == 1:
        check_bare_pairs(source, layout)
    return replace(head, template=template)


def _list_names(files: ModelFiles, source: HeadSource, settings: ModelSettings) -> list[str]:
    """List what the model and those that it was made from are called, the nearest first."""
    readme = read_readme(files)
    return [settings.source, readme.title, *readme.bases, source.config.name_or_path]
