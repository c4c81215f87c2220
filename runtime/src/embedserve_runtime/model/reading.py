"""Builds a model's card from its folder and the settings: reads and describes its files, and digests its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from embedserve_runtime.config import ModelSettings
from embedserve_runtime.errors import (
    ConfigError,
    ModelError,
    ModelFileMissing,
    ModelInvalid,
    UnsupportedArchitecture,
)
from embedserve_runtime.model.bundled_onnx import BundledOnnx
from embedserve_runtime.model.card import ModelCard, QueryRoute
from embedserve_runtime.model.describing import CardSource, describe_route
from embedserve_runtime.model.digests import digest_tensors
from embedserve_runtime.model.folder import read_model
from embedserve_runtime.model.former_identity import compute_former_identity
from embedserve_runtime.model.heads.description import Task
from embedserve_runtime.model.hf_files.sentence_transformers import ModuleEntry
from embedserve_runtime.model.identity import TensorDigests, identify_vector_space
from embedserve_runtime.model.modules import TRANSFORMERS
from embedserve_runtime.model.routes import DOCUMENT, ModuleRoutes
from embedserve_runtime.model.task_adapters import AdapterTask, choose_task
from embedserve_runtime.model.tensors import ModelTensors, TrackedTensors
from embedserve_runtime.model.unread import check_all_read

_MAX_NAMED = 3


def read_card(folder: Path, revision: str, settings: ModelSettings) -> ModelCard:
    """Read `folder` and lay the service's settings over it.

    Raises ModelError (with the file that is at fault) or ConfigError (with the setting that is).
    """
    return _read_card(folder, revision, settings, TrackedTensors(folder))


def describe_model(folder: Path, revision: str, settings: ModelSettings) -> ModelCard:
    """Read `folder` as `read_card` does, where the files of weights have their headers alone. The card has no identity.

    Raises as `read_card`.
    """
    return _read_card(folder, revision, settings, None)


def _read_card(
    folder: Path, revision: str, settings: ModelSettings, tensors: TrackedTensors | None
) -> ModelCard:
    """Read the card of a model. tensors: what is digested for its identity; None where it gets none."""
    try:
        read = read_model(folder)
        source = CardSource(read.files, ModelTensors(folder), revision, settings)
        card = _read_tasks(source, read.routes, tensors)
        _check_outputs(card, settings)
        return card
    except ModelError as error:
        message = error.message
        if isinstance(error, ModelFileMissing):
            message += _describe_dangling_links(folder)
        # The reader knows the model by the name that they wrote, not by a folder of the store.
        raise type(error)(message.replace(str(folder), settings.source_name)) from error


def _describe_dangling_links(folder: Path) -> str:
    """Describe the links of a folder that lead nowhere, as where a cache was copied without its blobs."""
    links = sorted(path for path in folder.rglob("*") if path.is_symlink() and not path.exists())
    if not links:
        return ""
    listed = "; ".join(f"{path} is a link to {path.readlink()}" for path in links[:_MAX_NAMED])
    more = f"; and {len(links) - _MAX_NAMED} more" if len(links) > _MAX_NAMED else ""
    return f". Links lead to files that do not exist here: {listed}{more}"


def _read_tasks(source: CardSource, routes: ModuleRoutes, tensors: TrackedTensors | None) -> ModelCard:
    """Read the card of the first task that is served, with those of the others; of the model, where it has no tasks."""
    tasks = _choose_tasks(source, routes.entries)
    card, *rest = (_read_routes(replace(source, task=task), routes, tensors) for task in tasks)
    card = replace(card, other_tasks=tuple(rest))
    queries = (task.query.card for task in (card, *rest) if task.query is not None)
    if tensors is not None:
        check_all_read(source.files, tensors, card, *rest, *queries)
    return card


def _read_routes(source: CardSource, routes: ModuleRoutes, tensors: TrackedTensors | None) -> ModelCard:
    """Read the card of a task, with its route for queries. tensors: what its tensors are digested through; None where
    they are not."""
    if routes.queries is None and (source.task is None or not source.task.has_query_adapter):
        card = describe_route(source, routes.documents)
        return card if tensors is None else _identify(card, digest_tensors(card, tensors))
    if routes.queries is None:
        prompt = None if source.task is None else source.task.queries.name
        queries = describe_route(replace(source, for_queries=True), routes.documents)
        route = QueryRoute(queries, DOCUMENT, prompt)
    else:
        _check_routed_settings(source.settings)
        route = QueryRoute(describe_route(source, routes.queries), routes.default)
    documents = describe_route(source, routes.documents)
    _check_comparable(source.files.path, documents, route.card)
    if tensors is None:
        return replace(documents, query=route)
    # The weights of an encoder that both run are digested with the documents.
    query_digests = digest_tensors(
        route.card, tensors, with_encoder=not _reads_encoder_of(route.card, documents)
    )
    document_digests = digest_tensors(documents, tensors)
    return _identify(replace(documents, query=route), document_digests, query_digests)


def _choose_tasks(source: CardSource, entries: Sequence[ModuleEntry]) -> list[AdapterTask | None]:
    """Return the tasks that are served, the default one first; None is the plain weights. Raises as `choose_task`."""
    folder = next((entry.path for entry in entries if entry.kind in TRANSFORMERS), "")
    home = source.files.enter_folder(folder)
    return [choose_task(home, name) for name in dict.fromkeys(source.settings.adapters)] or [
        choose_task(home, None)
    ]


def _check_routed_settings(settings: ModelSettings) -> None:
    """Raise ConfigError for settings that cannot be of queries and documents at once."""
    for name, value, absent in (
        ("pooling", settings.pooling, "auto"),
        ("onnx_file", settings.onnx_file, None),
    ):
        if value != absent:
            raise ConfigError(
                f"model.{name}: cannot be set for a model that treats queries and documents differently"
            )


def _reads_encoder_of(queries: ModelCard, documents: ModelCard) -> bool:
    """Return whether the encoders of both are the same tensors, before products of an adapter are added."""
    replaces = queries.adapter is not None and queries.adapter.replaced
    return (
        queries.backbone is None
        and documents.backbone is None
        and queries.encoder_path == documents.encoder_path
        and not replaces
    )


def _identify(card: ModelCard, documents: TensorDigests, queries: TensorDigests | None = None) -> ModelCard:
    """Return the card with its identities. The arguments are those of `identify_vector_space`."""
    space, former = (
        identify_vector_space(card, documents, queries),
        compute_former_identity(card, documents, queries),
    )
    if card.query is not None:
        query_card = replace(card.query.card, vector_space=space, former_vector_space=former)
        card = replace(card, query=replace(card.query, card=query_card))
    return replace(card, vector_space=space, former_vector_space=former)


def _check_outputs(card: ModelCard, settings: ModelSettings) -> None:
    missing = [name for name in settings.outputs if name not in card.output_names]
    if missing:
        raise ConfigError(
            f"model.outputs: {', '.join(missing)} not available from {card.source}, which gives "
            f"{', '.join(card.output_names)}"
        )


def _check_comparable(folder: Path, documents: ModelCard, queries: ModelCard) -> None:
    """Raise UnsupportedArchitecture or ModelInvalid where the vectors of the two could not be compared."""
    for name, card in (("documents", documents), ("queries", queries)):
        if card.task not in (Task.EMBED, Task.SPARSE) or isinstance(card.backbone, BundledOnnx):
            what = (
                "run an ONNX file" if isinstance(card.backbone, BundledOnnx) else f"have the task {card.task}"
            )
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
    document_width, query_width = documents.pipeline.full_dimensions, queries.pipeline.full_dimensions
    # A vocabulary may have been padded with rows that no token has.
    if document_width != query_width and (documents.task is Task.EMBED or query_width > document_width):
        raise ModelInvalid(
            f"{folder}: its documents get vectors of {document_width} dimensions, its queries of {query_width}, by the "
            "config.json of each module"
        )
