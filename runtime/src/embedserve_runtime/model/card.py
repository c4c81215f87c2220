"""One frozen description of a model folder: everything the other rooms need to know, read once."""

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
from embedserve_runtime.model.checkpoint import Checkpoint, Weights, dense_tensors
from embedserve_runtime.model.heads import bge_m3
from embedserve_runtime.model.heads.description import (
    ClassifierHead,
    Head,
    LateInteraction,
    LexicalHead,
    MultiVectorHead,
    SparseHead,
    StaticQuery,
    Task,
    TokenHead,
    head_outputs,
    identity_of,
)
from embedserve_runtime.model.heads.late_interaction import late_layout, with_prompts
from embedserve_runtime.model.heads.reading import read_graph_head, read_head, read_token_heads
from embedserve_runtime.model.heads.tensors import head_tensors, query_weights
from embedserve_runtime.model.identity import tokenizer_digest, vector_space
from embedserve_runtime.model.modules import Layout, read_entries, read_layout
from embedserve_runtime.model.pipeline import Pipeline, Pooling
from embedserve_runtime.model.ranges import Ranges, read_ranges
from embedserve_runtime.model.shipped import (
    ShippedGraph,
    chosen_file,
    graph_encoder,
    read_graph,
    token_weights,
)
from embedserve_runtime.model.static import StaticTable, read_static
from embedserve_runtime.results import Output

TOKENIZER_FILE = "tokenizer.json"
Body = StaticTable | ShippedGraph
Named = tuple[str, NDArray[np.generic]]
OUTPUT_OF: Mapping[type[Head | TokenHead], Output] = MappingProxyType(
    {
        ClassifierHead: Output.LOGITS,
        SparseHead: Output.SPARSE,
        LexicalHead: Output.SPARSE,
        MultiVectorHead: Output.MULTI_VECTOR,
    }
)


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What a folder holds and how it is to be run.

    encoder_path: the folder inside it where the encoder and its tokenizer lie; empty for the folder itself.
    source: the folder or repository as it was asked for; revision: the commit, or "local".
    max_length: tokens an input may have, special tokens included.
    lowercase: the folder asks for lower-casing before the tokenizer (sentence_bert_config `do_lower_case`).
    prompts: prompt texts by name; default_prompt: the name used when a request names none.
    vector_space: identity of the vectors, `vs1-` and 20 hex digits.
    head: what makes rows in the place of pooling; None for the task "embed". The pipeline then has no poolings, and
        its dimensions are the columns of a row: labels, or the vocabulary.
    query: how queries are treated; None where it is as documents.
    token_heads: what is made of each token beside a dense vector.
    pair_types: whether the encoder is told which of a pair's two texts a token belongs to.
    body: what runs instead of the layers that `encoder` describes; of the encoder then only the sizes hold.
    ranges: of the dimensions of dense vectors as the model makes them, where the folder has them.
    """

    folder: Path
    source: str
    revision: str
    encoder: Encoder
    pipeline: Pipeline
    max_length: int
    lowercase: bool
    prompts: Mapping[str, str]
    default_prompt: str | None
    vector_space: str
    task: Task = Task.EMBED
    head: Head | None = None
    token_heads: tuple[TokenHead, ...] = ()
    query: StaticQuery | None = None
    encoder_path: str = ""
    pair_types: bool = False
    body: Body | None = None
    ranges: Ranges | None = None

    @property
    def outputs(self) -> Output:
        """All that one forward pass can give."""
        if isinstance(self.body, ShippedGraph) and self.head is None and self.body.hidden is None:
            return Output.DENSE
        made = Output.DENSE | Output.HIDDEN if self.head is None else OUTPUT_OF[type(self.head)]
        for head in self.token_heads:
            made |= OUTPUT_OF[type(head)]
        return made

    @property
    def main_output(self) -> Output:
        """What the model is for."""
        order = (Output.DENSE, Output.LOGITS, Output.SPARSE, Output.MULTI_VECTOR)
        return next(output for output in order if output in self.outputs)

    @property
    def late_interaction(self) -> LateInteraction | None:
        """How queries and documents of a multi-vector model differ; None for other models."""
        return self.head.interaction if isinstance(self.head, MultiVectorHead) else None

    @property
    def sparse_width(self) -> int:
        """Dimensions of sparse vectors, 0 without any."""
        sparse = [
            head for head in (self.head, *self.token_heads) if isinstance(head, SparseHead | LexicalHead)
        ]
        return sparse[0].vocabulary if sparse else 0

    @property
    def ranks_by_vectors(self) -> bool:
        """Whether documents are ranked by comparing the vectors of their tokens."""
        return self.task is Task.MULTI_VECTOR

    @property
    def encoder_folder(self) -> Path:
        return self.folder / self.encoder_path

    @property
    def tokenizer_file(self) -> Path:
        return self.encoder_folder / TOKENIZER_FILE


def read_card(folder: Path, revision: str, settings: ModelSettings) -> ModelCard:
    """Read `folder` and lay the service's settings over it.

    Raises ModelError (with the file that is at fault) or ConfigError (with the setting that is).
    """
    try:
        return _read_card(folder, revision, settings)
    except ModelError as error:
        # The reader knows the model by the name that they wrote, not by a folder of the store.
        raise type(error)(error.message.replace(str(folder), settings.source)) from error


def _read_card(folder: Path, revision: str, settings: ModelSettings) -> ModelCard:
    entries, query = routes.expand(folder, read_entries(folder))
    layout = read_layout(folder, entries)
    source = _Source(folder, revision, settings, layout)
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
    graph = _graph(folder, encoder_folder, settings, layout, query)
    if graph is not None:
        return _graph_card(source, graph)
    encoder = families.describe(encoder_folder)
    task, head = read_head(folder, encoder, layout, settings.task)
    token_heads = read_token_heads(folder, encoder, task)
    checkpoint = Checkpoint.open(encoder_folder)
    weights = Weights(encoder, checkpoint)
    pipeline = (
        _pipeline(folder, encoder, layout, settings)
        if head is None
        else _head_pipeline(head, settings, layout)
    )
    if query is not None:
        routes.check_tokenizers(folder, query, encoder_folder / TOKENIZER_FILE)
    late = head.interaction if isinstance(head, MultiVectorHead) else None
    if late is not None:
        layout = late_layout(layout, late)
        source = replace(source, layout=layout)
    prompts, default_prompt = _prompts(layout, settings)
    if isinstance(head, MultiVectorHead) and late is not None:
        head = replace(head, interaction=with_prompts(late, prompts))
    if isinstance(head, ClassifierHead) and head.template is not None and default_prompt is not None:
        head = replace(head, template=replace(head.template, instruction=prompts[default_prompt]))
    contents = _Contents(
        tensors=weights.raw_tensors(),
        head=None if head is None else identity_of(head),
        head_tensors=() if head is None else head_tensors(checkpoint, head.layers, folder),
        token_heads=[(identity_of(one), head_tensors(checkpoint, one.layers, folder)) for one in token_heads],
        query_weights=None if query is None else query_weights(folder, query, encoder),
    )
    return replace(
        _card(source, encoder, pipeline, contents),
        task=task,
        head=head,
        token_heads=token_heads,
        query=query,
        pair_types=_pair_types(encoder, layout),
    )


def _pair_types(encoder: Encoder, layout: Layout) -> bool:
    return encoder.embeddings.token_types > 1 and layout.token_types


def _graph(
    folder: Path, home: Path, settings: ModelSettings, layout: Layout, query: StaticQuery | None
) -> ShippedGraph | None:
    """The ONNX file that is run: the one asked for, else one where no family fits; None where a family runs.

    home: where the encoder lies.
    """
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    name = chosen_file(home, names, settings.onnx_file)
    if name is None:
        return None
    if settings.task == "sparse":
        raise ConfigError("model.task: sparse vectors are not made from an ONNX file")
    modules = layout.modules
    if query is not None or modules.splade or modules.logit_score or modules.token_dense:
        raise UnsupportedArchitecture(
            f"{name}: of an ONNX file dense vectors, scores and labels are made, and the modules ask for something else"
        )
    graph = read_graph(home, folder / name, task=settings.task, pooled=settings.pooling != "auto")
    if graph.rows is not None and graph.rows_are == "dense" and not modules.include_prompt:
        raise UnsupportedArchitecture(
            f"{name}: include_prompt = false cannot be kept, since the file pools; set model.pooling if it gives "
            "hidden states too"
        )
    return graph


def _graph_card(source: _Source, graph: ShippedGraph) -> ModelCard:
    folder, settings, layout = source.folder, source.settings, source.layout
    home = folder / layout.modules.transformer
    encoder = graph_encoder(home, graph)
    with suppress(ModelError):  # no family: what config.json says in general is all there is
        encoder = replace(encoder, max_tokens=families.describe(home).max_tokens)
    task, head = Task.EMBED, None
    if graph.rows is None:
        pipeline = _pipeline(folder, encoder, layout, settings)
    elif graph.rows_are == "dense":
        # Poolings and dense modules are in the graph; normalising twice changes nothing.
        sized = replace(encoder, hidden_size=graph.width or 0)
        first = None if layout.modules.pooling is None else layout.modules.pooling[:1]
        modules = replace(layout.modules, pooling=first, dense=())
        pipeline = _pipeline(folder, sized, replace(layout, modules=modules), settings)
    else:
        task, head = read_graph_head(home, encoder, layout, settings.task, graph.width or 0)
        pipeline = _head_pipeline(head, settings, layout)
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
    pipeline = _pipeline(source.folder, table.encoder, layout, settings)
    if table.normalize is not None:
        pipeline = replace(pipeline, normalize=table.normalize)
    contents = _Contents(tensors=table.tensors().items(), head=table.identity)
    return replace(_card(replace(source, layout=layout), table.encoder, pipeline, contents), body=table)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a card is read from, and what is asked of it."""

    folder: Path
    revision: str
    settings: ModelSettings
    layout: Layout


@dataclass(frozen=True, slots=True, eq=False)
class _Contents:
    """What of a model its identity is made of besides pipeline, tokenizer and prompt; see `vector_space`."""

    tensors: Iterable[Named] = ()
    head: Mapping[str, object] | None = None
    head_tensors: Iterable[Named] = ()
    token_heads: Sequence[tuple[Mapping[str, object], Iterable[Named]]] = ()
    query_weights: NDArray[np.generic] | None = None


def _card(source: _Source, encoder: Encoder, pipeline: Pipeline, contents: _Contents) -> ModelCard:
    """What every card has; heads, routes and bodies are laid over it."""
    folder, settings, layout = source.folder, source.settings, source.layout
    prompts, default_prompt = _prompts(layout, settings)
    home = layout.modules.transformer
    return ModelCard(
        folder=folder,
        source=settings.source,
        revision=source.revision,
        encoder=encoder,
        pipeline=pipeline,
        max_length=_max_length(encoder, layout, settings),
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
            query_weights=contents.query_weights,
        ),
        encoder_path=home,
        ranges=read_ranges(folder, pipeline.dimensions),
    )


def _prompts(layout: Layout, settings: ModelSettings) -> tuple[dict[str, str], str | None]:
    """The prompts by name, and the name of the default one."""
    prompts = {**layout.prompts, **settings.prompts}
    default_prompt = settings.default_prompt or layout.default_prompt
    if default_prompt is not None and default_prompt not in prompts:
        known = ", ".join(sorted(prompts)) or "none"
        raise ConfigError(
            f"model.default_prompt: {default_prompt!r} is not a prompt of the model; known: {known}"
        )
    return prompts, default_prompt


def _pipeline(folder: Path, encoder: Encoder, layout: Layout, settings: ModelSettings) -> Pipeline:
    modules = layout.modules
    usual, normalize = (Pooling.MEAN,), modules.normalize
    if bge_m3.is_bge_m3(folder) and not modules.written:
        usual, normalize = (Pooling.CLS,), True  # as FlagEmbedding, which writes no modules.json
    poolings = modules.pooling or usual if settings.pooling == "auto" else (Pooling(settings.pooling),)
    size = encoder.hidden_size * len(poolings)
    for layer in modules.dense:
        if layer.in_features != size:
            raise ModelInvalid(
                f"{layer.folder}: takes {layer.in_features} features, the step before gives {size}"
            )
        size = layer.out_features
    if settings.dimensions is not None and settings.dimensions > size:
        raise ConfigError(f"model.dimensions: {settings.dimensions} is more than the model's {size}")
    return Pipeline(
        pooling=poolings,
        dense=modules.dense,
        normalize=normalize,
        dimensions=settings.dimensions or size,
        full_dimensions=size,
        include_prompt=modules.include_prompt,
    )


def _head_pipeline(head: Head, settings: ModelSettings, layout: Layout) -> Pipeline:
    for name, value, absent in (
        ("pooling", settings.pooling, "auto"),
        ("dimensions", settings.dimensions, None),
    ):
        if value != absent:
            raise ConfigError(f"model.{name}: is for dense vectors; with this task it cannot be set")
    if layout.modules.dense:
        raise ModelInvalid(
            f"{layout.modules.dense[0].folder}: a Dense module does not go with a head of the model"
        )
    width = head_outputs(head)
    return Pipeline(pooling=(), dense=(), normalize=False, dimensions=width, full_dimensions=width)


def _max_length(encoder: Encoder, layout: Layout, settings: ModelSettings) -> int:
    longest = encoder.max_tokens
    if settings.max_length is not None and settings.max_length > longest:
        raise ConfigError(
            f"model.max_length: {settings.max_length} is more than the model's {longest} positions"
        )
    return settings.max_length or min(layout.max_length or longest, longest)
