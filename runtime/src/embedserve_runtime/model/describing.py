"""Builds the model card from a model's small files and the settings: what runs, its inputs and its outputs.

No small file is opened here. Tensors are, where only they say what a model is.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType

from embedserve_runtime.config import ModelSettings
from embedserve_runtime.errors import (
    ConfigError,
    ModelError,
    ModelFileMissing,
    UnsupportedArchitecture,
    UnsupportedInputs,
)
from embedserve_runtime.model import families
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.bundled_onnx import (
    BundledOnnx,
    choose_file,
    describe_graph_encoder,
    describe_graph_weights,
    digest_graph,
    read_graph,
    read_graph_config,
)
from embedserve_runtime.model.card import ModelCard, TokenizerSettings
from embedserve_runtime.model.class_settings import ResolvedTokenizer, resolve_tokenizer
from embedserve_runtime.model.config_overrides import (
    resolve_max_length,
    resolve_pipeline,
    resolve_prompts,
    resolve_rows_pipeline,
)
from embedserve_runtime.model.exports import ADVICE, describe_origin, find_export
from embedserve_runtime.model.files import ModelFiles
from embedserve_runtime.model.graph_pipeline import choose_dense_output, resolve_graph_pipeline
from embedserve_runtime.model.heads.config import HeadSource
from embedserve_runtime.model.heads.description import (
    ClassifierHead,
    Head,
    MultiVectorHead,
    Task,
    TokenHead,
    count_outputs,
)
from embedserve_runtime.model.heads.late_interaction import add_markers
from embedserve_runtime.model.heads.own_pooling import add_own_pooling
from embedserve_runtime.model.heads.pooling_checks import lacks_pooling
from embedserve_runtime.model.heads.reading import (
    override_prompts,
    pools_first_token,
    read_graph_head,
    read_head,
    read_token_heads,
)
from embedserve_runtime.model.hf_files.sentence_transformers import ModuleEntry
from embedserve_runtime.model.hf_files.tokenizers import TOKENIZER_FILE
from embedserve_runtime.model.identity import digest_tokenizer
from embedserve_runtime.model.lora import LoraAdapter, read_adapter
from embedserve_runtime.model.modules import ModelLayout, read_layout
from embedserve_runtime.model.pipeline import DenseLayer, Pipeline, Pooling
from embedserve_runtime.model.ranges import read_ranges
from embedserve_runtime.model.sparse_static import SparseStaticTable, read_sparse_static_table
from embedserve_runtime.model.static import StaticTable, read_static
from embedserve_runtime.model.task_adapters import (
    AdapterTask,
    complete_modules,
    list_tasks,
    read_adapters_config,
    read_task_adapter,
)
from embedserve_runtime.model.tensors import ModelTensors
from embedserve_runtime.model.transformer_module import TransformerModule
from embedserve_runtime.model.vocabulary import find_max_token_id

ExportOrigin = tuple[tuple[str, str], ...]
"""The digests of what an export was made from: `exports.describe_origin` as sorted pairs."""


@dataclass(frozen=True, slots=True)
class CardSource:
    """The sources of a card: the files and tensors of a model, and the settings of a service.

    task: the one whose adapter is merged; None for the plain weights. for_queries: whether that for queries is, where
    the task has one.
    """

    files: ModelFiles
    tensors: ModelTensors
    revision: str
    settings: ModelSettings
    task: AdapterTask | None = None
    for_queries: bool = False


def describe_route(source: CardSource, entries: Sequence[ModuleEntry]) -> ModelCard:
    """Describe what the modules make of an input, without its identity. Raises ModelError and ConfigError."""
    files, tensors = source.files, source.tensors
    layout = read_layout(files, entries)
    if layout.modules.sparse_static is not None:
        return _describe_sparse_static(
            source, layout, read_sparse_static_table(files, tensors, layout.modules.sparse_static)
        )
    table = read_static(files, tensors, layout.modules.static)
    if table is not None:
        return _describe_static(source, layout, table)
    encoder_files = files.enter_folder(layout.modules.transformer)
    adapter = _read_adapter(source, layout.modules.transformer)
    layout = _select_prompts(source, encoder_files, complete_modules(encoder_files, layout))
    if TOKENIZER_FILE not in encoder_files:
        raise ModelFileMissing(
            f"{TOKENIZER_FILE} not found in {encoder_files.path}: the folder needs the fast tokenizer's file "
            "(save the tokenizer with a current transformers to get it)"
        )
    graph_and_layers = _find_graph(source, layout)
    if graph_and_layers is None:
        return replace(_describe_encoder(source, layout), adapter=adapter)
    if adapter is not None:
        raise UnsupportedArchitecture(
            f"{encoder_files.path}: its LoRA adapter cannot be merged into an ONNX file; merge it into the weights of "
            f"{adapter.base} (`merge_and_unload()` of peft), save and export those"
        )
    graph, layers = graph_and_layers
    return _describe_graph(source, layout, graph, layers)


def _read_adapter(source: CardSource, folder: str) -> LoraAdapter | None:
    """Read what is merged into the encoder in a folder: an adapter beside its weights, or that of the task."""
    home = source.files.enter_folder(folder)
    adapter, task = read_adapter(home, source.tensors, folder), source.task
    if task is None:
        return adapter
    if adapter is not None:
        raise UnsupportedArchitecture(f"{home.path}: adapters of tasks beside one for all are not supported")
    location = task.queries if source.for_queries else task.documents
    return read_task_adapter(home, source.tensors, folder, location)


def _select_prompts(source: CardSource, home: ModelFiles, layout: ModelLayout) -> ModelLayout:
    """Return the layout without the prompts of tasks that are not served; the default one is that of the task."""
    own = {name for task in list_tasks(home) for name in task.adapter_names}
    if not own:
        return layout
    served = () if source.task is None else source.task.adapter_names
    written = read_adapters_config(home).task_instructions | layout.prompts
    prompts = {name: text for name, text in written.items() if name in served or name not in own}
    default = layout.default_prompt if layout.default_prompt in prompts else None
    if default is None and source.task is not None and source.task.documents.name in prompts:
        default = source.task.documents.name
    return replace(layout, prompts=prompts, default_prompt=default)


def _describe_encoder(source: CardSource, layout: ModelLayout) -> ModelCard:
    files, settings = source.files, source.settings
    encoder_files = files.enter_folder(layout.modules.transformer)
    encoder = families.describe(encoder_files)
    task, head = read_head(files, encoder, layout, settings)
    _check_transformer(layout.transformer, head, settings.task)
    token_heads: tuple[TokenHead, ...] = ()
    first_token = False
    if task is Task.EMBED:
        token_heads = read_token_heads(files, source.tensors, encoder, layout, settings)
    if isinstance(head, MultiVectorHead) and head.interaction is not None:
        layout = add_markers(layout, head.interaction)
    if head is None:
        layout = add_own_pooling(layout, HeadSource.read(encoder_files, encoder))
        first_token = pools_first_token(files, layout, token_heads)
        pipeline = resolve_pipeline(encoder, layout, settings, first_token=first_token)
    else:
        pipeline = resolve_rows_pipeline(count_outputs(head), settings, layout)
    card = _build_card(source, layout, encoder, pipeline, resolve_tokenizer(encoder_files))
    return replace(
        card,
        task=task,
        head=override_prompts(head, card.prompts, card.default_prompt),
        guesses_pooling=head is None and not first_token and lacks_pooling(layout, settings),
        token_heads=token_heads,
        pair_types=_has_pair_types(encoder, layout),
    )


def _check_transformer(module: TransformerModule, head: Head | None, task: str) -> None:
    """Raise UnsupportedArchitecture for settings of the Transformer module that do not go with the head. task:
    `model.task`."""
    if module.role_keys and not isinstance(head, MultiVectorHead):
        raise UnsupportedArchitecture(
            f"{module.path}: {module.role_keys[0]} is supported for multi-vector models only"
        )
    if isinstance(head, ClassifierHead):
        if not module.adds_special_tokens:
            raise UnsupportedArchitecture(
                f"{module.path}: add_special_tokens = false is not supported for a model that reads pairs"
            )
    elif module.task == "sequence-classification" and task == "auto":
        raise UnsupportedArchitecture(
            f"{module.path}: transformer_task = {module.task!r} is supported for sequence classifiers only"
        )


def _has_pair_types(encoder: Encoder, layout: ModelLayout) -> bool:
    return encoder.embeddings.token_types > 1 and layout.token_types


def _find_graph(source: CardSource, layout: ModelLayout) -> tuple[BundledOnnx, tuple[DenseLayer, ...]] | None:
    """Find the ONNX file that is run, and the dense layers after it: the one asked for, else one where no family fits,
    of the folder or an export in the store; None where a family runs."""
    files, settings, modules = source.files, source.settings, layout.modules
    encoder_files = files.enter_folder(modules.transformer)
    origin: ExportOrigin = ()
    try:
        name = choose_file(encoder_files, files.names, settings.onnx_file)
    except UnsupportedArchitecture as error:
        origin, name = _open_export(source, modules.transformer, error)
    if name is None:
        return None
    if settings.task == "sparse":
        raise ConfigError("model.task: sparse vectors are not made from an ONNX file")
    if modules.splade or modules.logit_score or modules.token_dense or modules.scores:
        raise UnsupportedArchitecture(
            f"{name}: of an ONNX file dense vectors, scores and labels are made, and the modules ask for something else"
        )
    graph = read_graph(
        encoder_files, files.path / name, task=settings.task, pooled=settings.pooling != "auto"
    )
    layers = modules.dense
    if graph.pooled is not None and graph.pooled_kind == "dense":
        graph, layers = choose_dense_output(graph, read_graph_config(encoder_files), modules, settings)
    if graph.pooled is not None and graph.pooled_kind == "dense" and not modules.include_prompt:
        raise UnsupportedArchitecture(
            f"{name}: include_prompt = false cannot be kept, since the file pools; set model.pooling if it gives "
            "hidden states too"
        )
    # An export is known by what it was made from.
    return (replace(graph, origin=origin) if origin else digest_graph(graph)), layers


def _open_export(
    source: CardSource, folder: str, without: UnsupportedArchitecture
) -> tuple[ExportOrigin, str]:
    """Return what an export in the store was made from, and its folder. folder: of the encoder. Raises `without`, with
    advice, if there is none."""
    if isinstance(without, UnsupportedInputs):
        raise without
    try:
        origin = describe_origin(source.files.enter_folder(folder), source.tensors.open_checkpoint(folder))
    except ModelError:
        raise without from None
    folder_of_export = find_export(source.settings.store.expanduser(), origin)
    if folder_of_export is None:
        raise UnsupportedArchitecture(f"{without.message}; {ADVICE}") from without
    return tuple(sorted(origin.items())), str(folder_of_export)


def _describe_graph(
    source: CardSource, layout: ModelLayout, graph: BundledOnnx, layers: tuple[DenseLayer, ...]
) -> ModelCard:
    files, settings = source.files, source.settings
    encoder_files = files.enter_folder(layout.modules.transformer)
    encoder = describe_graph_encoder(encoder_files, graph)
    with suppress(ModelError):  # no family: what config.json says in general is all there is
        encoder = replace(encoder, max_positions=families.describe(encoder_files).max_positions)
    task, head = Task.EMBED, None
    token_heads = () if graph.weights is None else (describe_graph_weights(encoder_files, encoder),)
    guesses_pooling = False
    if graph.pooled is None:
        first_token = pools_first_token(files, layout, token_heads)
        pipeline = resolve_pipeline(encoder, layout, settings, first_token=first_token)
        guesses_pooling = not first_token and lacks_pooling(layout, settings)
    elif graph.pooled_kind == "dense":
        pipeline = resolve_graph_pipeline(encoder, graph, layers, layout, settings)
    else:
        task, head = read_graph_head(encoder_files, encoder, layout, settings, graph.width or 0)
        pipeline = resolve_rows_pipeline(graph.width or 0, settings, layout)
    _check_transformer(layout.transformer, head, settings.task)
    return replace(
        _build_card(source, layout, encoder, pipeline, resolve_tokenizer(encoder_files)),
        task=task,
        head=head,
        guesses_pooling=guesses_pooling,
        token_heads=token_heads,
        backbone=graph,
        pair_types=_has_pair_types(encoder, layout),
    )


def _describe_static(source: CardSource, layout: ModelLayout, table: StaticTable) -> ModelCard:
    settings = source.settings
    if settings.onnx_file is not None:
        raise ConfigError("model.onnx_file: a static embedding model runs from its table; unset it")
    if settings.task not in ("auto", Task.EMBED):
        raise ConfigError(f"model.task: a static embedding model gives dense vectors, not {settings.task}")
    if settings.pooling not in ("auto", Pooling.MEAN):
        raise ConfigError(f"model.pooling: a static embedding model has the mean, not {settings.pooling}")
    modules = replace(layout.modules, pooling=(Pooling.MEAN,), transformer=layout.modules.static or "")
    layout = replace(layout, modules=modules, max_length=table.max_length, transformer=TransformerModule())
    pipeline = resolve_pipeline(table.encoder, layout, settings)
    if table.normalize is not None:
        pipeline = replace(pipeline, normalize=table.normalize)
    # sentence-transformers reads tokenizer.json alone.
    tokenizer = ResolvedTokenizer(
        source.files.enter_folder(layout.modules.transformer).require(TOKENIZER_FILE)
    )
    return _replace_backbone(_build_card(source, layout, table.encoder, pipeline, tokenizer), table)


def _describe_sparse_static(source: CardSource, layout: ModelLayout, table: SparseStaticTable) -> ModelCard:
    settings = source.settings
    if settings.onnx_file is not None:
        raise ConfigError("model.onnx_file: a table of token weights runs without one; unset it")
    if settings.task not in ("auto", Task.SPARSE):
        raise ConfigError(f"model.task: a table of token weights gives sparse vectors, not {settings.task}")
    modules = replace(layout.modules, transformer=layout.modules.sparse_static or "")
    layout = replace(layout, modules=modules, max_length=table.max_length, transformer=TransformerModule())
    pipeline = resolve_rows_pipeline(table.vocabulary, settings, layout)
    tokenizer = resolve_tokenizer(source.files.enter_folder(layout.modules.transformer))
    card = _build_card(source, layout, table.encoder, pipeline, tokenizer)
    return replace(_replace_backbone(card, table), task=Task.SPARSE)


def _replace_backbone(card: ModelCard, table: StaticTable | SparseStaticTable) -> ModelCard:
    """Return the card with a table as what runs, which knows no special tokens and reads the beginning of a text."""
    tokenizer = replace(card.tokenizer, adds_special_tokens=False, truncation_side="right")
    return replace(card, backbone=table, tokenizer=tokenizer)


def _build_card(
    source: CardSource,
    layout: ModelLayout,
    encoder: Encoder,
    pipeline: Pipeline,
    tokenizer: ResolvedTokenizer,
) -> ModelCard:
    """Build a card of what every model has; heads and backbones are laid over it."""
    settings = source.settings
    prompts, default_prompt = resolve_prompts(layout, settings)
    max_length = resolve_max_length(encoder, layout, settings)
    return ModelCard(
        source=settings.source_name,
        revision=source.revision,
        encoder=encoder,
        pipeline=pipeline,
        max_length=max_length.effective,
        own_max_length=max_length.from_files,
        tokenizer=TokenizerSettings(
            tokenizer.file.as_bytes(),
            digest_tokenizer(tokenizer.file),
            find_max_token_id(tokenizer.file),
            layout.transformer.lowercase,
            adds_special_tokens=layout.transformer.adds_special_tokens,
            truncation_side=layout.truncation_side,
            splits_special_tokens=tokenizer.splits_special_tokens,
            overrides=tokenizer.overrides,
        ),
        prompts=MappingProxyType(prompts),
        added_prompts=tuple(sorted(settings.prompts.keys() - layout.prompts.keys())),
        default_prompt=default_prompt,
        encoder_path=layout.modules.transformer,
        ranges=read_ranges(source.files, pipeline.dimensions),
        adapter_task=None if source.task is None else source.task.name,
        adapter_tasks=tuple(
            task.name for task in list_tasks(source.files.enter_folder(layout.modules.transformer))
        ),
        ignored_settings=(*layout.transformer.ignored, *encoder.ignored),
    )
