"""From a model folder and the settings to its card: which of the routes to run it, and what it gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.config import ModelSettings
from embedserve_runtime.errors import (
    ConfigError,
    ModelError,
    ModelFileMissing,
    ModelInvalid,
    UnsupportedArchitecture,
)
from embedserve_runtime.model import families, routes
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.bundled_onnx import (
    BundledOnnx,
    choose_file,
    graph_encoder,
    read_graph,
    token_weights,
)
from embedserve_runtime.model.card import TOKENIZER_FILE, ModelCard, QueryRoute
from embedserve_runtime.model.checkpoint import Checkpoint, Weights, dense_tensors
from embedserve_runtime.model.config_overrides import (
    resolve_max_length,
    resolve_pipeline,
    resolve_prompts,
    resolve_rows_pipeline,
)
from embedserve_runtime.model.exports import ADVICE, find_export, origin_of
from embedserve_runtime.model.heads.description import (
    ClassifierHead,
    MultiVectorHead,
    Task,
    head_outputs,
    identity_of,
)
from embedserve_runtime.model.heads.late_interaction import late_layout, with_prompts
from embedserve_runtime.model.heads.reading import read_graph_head, read_head, read_token_heads
from embedserve_runtime.model.heads.tensors import head_tensors
from embedserve_runtime.model.identity import joined, tokenizer_digest, vector_space
from embedserve_runtime.model.modules import ModelLayout, ModuleEntry, read_entries, read_layout
from embedserve_runtime.model.pipeline import Pipeline, Pooling
from embedserve_runtime.model.ranges import read_ranges
from embedserve_runtime.model.static import StaticTable, read_static
from embedserve_runtime.model.words import WordTable, read_words

Named = tuple[str, NDArray[np.generic]]


def read_card(folder: Path, revision: str, settings: ModelSettings) -> ModelCard:
    """Read `folder` and lay the service's settings over it.

    Raises ModelError (with the file that is at fault) or ConfigError (with the setting that is).
    """
    try:
        card = _read_card(folder, revision, settings)
        _check_outputs(card, settings)
        return card
    except ModelError as error:
        # The reader knows the model by the name that they wrote, not by a folder of the store.
        raise type(error)(error.message.replace(str(folder), settings.source)) from error


def _read_card(folder: Path, revision: str, settings: ModelSettings) -> ModelCard:
    module_routes = routes.expand_routes(folder, read_entries(folder))
    if module_routes.queries is None:
        return _read_route(folder, revision, settings, module_routes.documents)
    for name, value, absent in (
        ("pooling", settings.pooling, "auto"),
        ("onnx_file", settings.onnx_file, None),
    ):
        if value != absent:
            raise ConfigError(
                f"model.{name}: cannot be set for a model that treats queries and documents differently"
            )
    documents = _read_route(folder, revision, settings, module_routes.documents)
    queries = _read_route(folder, revision, settings, module_routes.queries, beside=documents)
    _check_comparable(folder, documents, queries)
    space = joined(documents.vector_space, queries.vector_space)
    route = QueryRoute(replace(queries, vector_space=space), module_routes.default)
    return replace(documents, vector_space=space, query=route)


def _check_outputs(card: ModelCard, settings: ModelSettings) -> None:
    missing = [name for name in settings.outputs if name not in card.output_names]
    if missing:
        raise ConfigError(
            f"model.outputs: {', '.join(missing)} cannot be had of {card.source}, which gives "
            f"{', '.join(card.output_names)}"
        )


def _check_comparable(folder: Path, documents: ModelCard, queries: ModelCard) -> None:
    """Raise UnsupportedArchitecture or ModelInvalid where the vectors of the two could not be compared."""
    for name, card in (("documents", documents), ("queries", queries)):
        if card.task not in (Task.EMBED, Task.SPARSE) or isinstance(card.body, BundledOnnx):
            what = "run an ONNX file" if isinstance(card.body, BundledOnnx) else f"have the task {card.task}"
            raise UnsupportedArchitecture(
                f"{folder}: its {name} {what}, which a model with routes may not; supported: dense and sparse vectors"
            )
    if documents.task != queries.task:
        raise UnsupportedArchitecture(
            f"{folder}: its documents have the task {documents.task}, its queries {queries.task}"
        )
    if queries.runs_encoder_of(documents) and documents.head is not None:
        raise UnsupportedArchitecture(
            f"{folder}: queries and documents that share an encoder may differ in Pooling, Dense and Normalize alone"
        )
    of_documents, of_queries = documents.pipeline.full_dimensions, queries.pipeline.full_dimensions
    # A vocabulary may have been padded with rows that no token has.
    if of_documents != of_queries and (documents.task is Task.EMBED or of_queries > of_documents):
        raise ModelInvalid(
            f"{folder}: its documents get vectors of {of_documents} dimensions, its queries of {of_queries}"
        )


def _read_route(
    folder: Path,
    revision: str,
    settings: ModelSettings,
    entries: Sequence[ModuleEntry],
    beside: ModelCard | None = None,
) -> ModelCard:
    """What the modules make of an input. beside: the other route; weights that it runs too are not digested again."""
    layout = read_layout(folder, entries)
    source = _Source(folder, revision, settings, layout)
    if layout.modules.words is not None:
        return _words_card(source, read_words(folder / layout.modules.words))
    static = layout.modules.static
    table = read_static(folder, None if static is None else folder / static)
    if table is not None:
        return _static_card(source, table)
    encoder_folder = folder / layout.modules.transformer
    if not (encoder_folder / TOKENIZER_FILE).exists():
        raise ModelFileMissing(
            f"{TOKENIZER_FILE} not found in {encoder_folder}: the folder needs the fast tokenizer's file "
            "(save the tokenizer with a current transformers to get it)"
        )
    graph = _graph(folder, encoder_folder, settings, layout)
    if graph is not None:
        return _graph_card(source, graph)
    return _encoder_card(source, beside)


def _encoder_card(source: _Source, beside: ModelCard | None) -> ModelCard:
    folder, settings, layout = source.folder, source.settings, source.layout
    encoder_folder = folder / layout.modules.transformer
    encoder = families.describe(encoder_folder)
    task, head = read_head(folder, encoder, layout, settings.task)
    token_heads = read_token_heads(folder, encoder, task)
    checkpoint = Checkpoint.open(encoder_folder)
    weights = Weights(encoder, checkpoint)
    pipeline = (
        resolve_pipeline(folder, encoder, layout, settings)
        if head is None
        else resolve_rows_pipeline(head_outputs(head), settings, layout)
    )
    if isinstance(head, MultiVectorHead) and head.interaction is not None:
        layout = late_layout(layout, head.interaction)
        source = replace(source, layout=layout)
    prompts, default_prompt = resolve_prompts(layout, settings)
    if isinstance(head, MultiVectorHead) and head.interaction is not None:
        head = replace(head, interaction=with_prompts(head.interaction, prompts))
    if isinstance(head, ClassifierHead) and head.template is not None and default_prompt is not None:
        head = replace(head, template=replace(head.template, instruction=prompts[default_prompt]))
    shared = beside is not None and beside.body is None and beside.encoder_path == layout.modules.transformer
    contents = _Contents(
        tensors=() if shared else weights.raw_tensors(),
        head=None if head is None else identity_of(head),
        head_tensors=() if head is None else head_tensors(checkpoint, head.layers, folder),
        token_heads=[(identity_of(one), head_tensors(checkpoint, one.layers, folder)) for one in token_heads],
    )
    return replace(
        _card(source, encoder, pipeline, contents),
        task=task,
        head=head,
        token_heads=token_heads,
        pair_types=_pair_types(encoder, layout),
    )


def _pair_types(encoder: Encoder, layout: ModelLayout) -> bool:
    return encoder.embeddings.token_types > 1 and layout.token_types


def _graph(folder: Path, home: Path, settings: ModelSettings, layout: ModelLayout) -> BundledOnnx | None:
    """The ONNX file that is run: the one asked for, else one where no family fits, of the folder or an export in the
    store; None where a family runs.

    home: where the encoder lies.
    """
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    origin = None
    try:
        name = choose_file(home, names, settings.onnx_file)
    except UnsupportedArchitecture as error:
        origin, name = _open_export(home, settings, error)
    if name is None:
        return None
    if settings.task == "sparse":
        raise ConfigError("model.task: sparse vectors are not made from an ONNX file")
    modules = layout.modules
    if modules.splade or modules.logit_score or modules.token_dense:
        raise UnsupportedArchitecture(
            f"{name}: of an ONNX file dense vectors, scores and labels are made, and the modules ask for something else"
        )
    graph = read_graph(home, folder / name, task=settings.task, pooled=settings.pooling != "auto")
    if graph.rows is not None and graph.rows_are == "dense" and not modules.include_prompt:
        raise UnsupportedArchitecture(
            f"{name}: include_prompt = false cannot be kept, since the file pools; set model.pooling if it gives "
            "hidden states too"
        )
    return replace(graph, origin=origin)


def _open_export(
    home: Path, settings: ModelSettings, without: UnsupportedArchitecture
) -> tuple[Mapping[str, str], str]:
    """What an export in the store was made from, and where it lies. Raises `without`, with advice, if there is none."""
    try:
        origin = origin_of(home)
    except ModelError:
        raise without from None
    found = find_export(settings.store.expanduser(), origin)
    if found is None:
        raise UnsupportedArchitecture(f"{without.message}; {ADVICE}") from without
    return origin, str(found)


def _graph_card(source: _Source, graph: BundledOnnx) -> ModelCard:
    folder, settings, layout = source.folder, source.settings, source.layout
    home = folder / layout.modules.transformer
    encoder = graph_encoder(home, graph)
    with suppress(ModelError):  # no family: what config.json says in general is all there is
        encoder = replace(encoder, max_tokens=families.describe(home).max_tokens)
    task, head = Task.EMBED, None
    if graph.rows is None:
        pipeline = resolve_pipeline(folder, encoder, layout, settings)
    elif graph.rows_are == "dense":
        # Poolings and dense modules are in the graph; normalising twice changes nothing.
        sized = replace(encoder, hidden_size=graph.width or 0)
        first = None if layout.modules.pooling is None else layout.modules.pooling[:1]
        modules = replace(layout.modules, pooling=first, dense=())
        pipeline = resolve_pipeline(folder, sized, replace(layout, modules=modules), settings)
    else:
        task, head = read_graph_head(home, encoder, layout, settings.task, graph.width or 0)
        pipeline = resolve_rows_pipeline(graph.width or 0, settings, layout)
    card = _card(source, encoder, pipeline, _Contents(head=graph.identity))
    weights = () if graph.weights is None else (token_weights(home, encoder),)
    pair_types = _pair_types(encoder, layout)
    return replace(card, task=task, head=head, token_heads=weights, body=graph, pair_types=pair_types)


def _static_card(source: _Source, table: StaticTable) -> ModelCard:
    settings, layout = source.settings, source.layout
    if settings.onnx_file is not None:
        raise ConfigError("model.onnx_file: a static embedding model runs from its table; unset it")
    if settings.task not in ("auto", Task.EMBED):
        raise ConfigError(f"model.task: a static embedding model gives dense vectors, not {settings.task}")
    if settings.pooling not in ("auto", Pooling.MEAN):
        raise ConfigError(f"model.pooling: a static embedding model has the mean, not {settings.pooling}")
    modules = replace(layout.modules, pooling=(Pooling.MEAN,), transformer=layout.modules.static or "")
    layout = replace(layout, modules=modules, max_length=table.max_length, lowercase=False)
    pipeline = resolve_pipeline(source.folder, table.encoder, layout, settings)
    if table.normalize is not None:
        pipeline = replace(pipeline, normalize=table.normalize)
    contents = _Contents(tensors=table.tensors().items(), head=table.identity)
    return replace(_card(replace(source, layout=layout), table.encoder, pipeline, contents), body=table)


def _words_card(source: _Source, table: WordTable) -> ModelCard:
    settings, layout = source.settings, source.layout
    if settings.onnx_file is not None:
        raise ConfigError("model.onnx_file: a table of token weights runs without one; unset it")
    if settings.task not in ("auto", Task.SPARSE):
        raise ConfigError(f"model.task: a table of token weights gives sparse vectors, not {settings.task}")
    modules = replace(layout.modules, transformer=layout.modules.words or "")
    layout = replace(layout, modules=modules, max_length=table.max_length, lowercase=False)
    pipeline = resolve_rows_pipeline(table.vocabulary, settings, layout)
    contents = _Contents(tensors=table.tensors().items(), head=table.identity)
    card = _card(replace(source, layout=layout), table.encoder, pipeline, contents)
    return replace(card, task=Task.SPARSE, body=table)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a card is read from, and what is asked of it."""

    folder: Path
    revision: str
    settings: ModelSettings
    layout: ModelLayout


@dataclass(frozen=True, slots=True, eq=False)
class _Contents:
    """What of a model its identity is made of besides pipeline, tokenizer and prompt; see `vector_space`."""

    tensors: Iterable[Named] = ()
    head: Mapping[str, object] | None = None
    head_tensors: Iterable[Named] = ()
    token_heads: Sequence[tuple[Mapping[str, object], Iterable[Named]]] = ()


def _card(source: _Source, encoder: Encoder, pipeline: Pipeline, contents: _Contents) -> ModelCard:
    """What every card has; heads, routes and bodies are laid over it."""
    folder, settings, layout = source.folder, source.settings, source.layout
    prompts, default_prompt = resolve_prompts(layout, settings)
    home = layout.modules.transformer
    return ModelCard(
        folder=folder,
        source=settings.source,
        revision=source.revision,
        encoder=encoder,
        pipeline=pipeline,
        max_length=resolve_max_length(encoder, layout, settings),
        lowercase=layout.lowercase,
        prompts=MappingProxyType(prompts),
        default_prompt=default_prompt,
        vector_space=vector_space(
            tensors=contents.tensors,
            dense=dense_tensors(folder, pipeline.dense),
            tokenizer=tokenizer_digest(folder / home / TOKENIZER_FILE),
            pipeline=pipeline,
            lowercase=layout.lowercase,
            prompt=prompts[default_prompt] if default_prompt is not None else "",
            head=contents.head,
            head_tensors=contents.head_tensors,
            token_heads=contents.token_heads,
        ),
        encoder_path=home,
        ranges=read_ranges(folder, pipeline.dimensions),
    )
