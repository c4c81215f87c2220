"""`embedserve fetch`: brings a model into the store and prints what it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, TextIO

from embedserve_runtime.commands.progress_bars import can_show_progress_bars
from embedserve_runtime.config import ModelSettings, RuntimeConfig
from embedserve_runtime.loading.model_sizes import find_model_sizes
from embedserve_runtime.memory.report import describe_model_memory
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.exports import needs_export
from embedserve_runtime.model.folder import read_model
from embedserve_runtime.model.onnx_outputs import list_onnx_outputs
from embedserve_runtime.model.reading import read_card
from embedserve_runtime.model.tensors import ModelTensors
from embedserve_runtime.sources import LocatedModel, fetch_model, record_identity
from embedserve_runtime.sources.progress import Progress
from embedserve_runtime.store.kernel_cache import make_kernel_folder
from embedserve_runtime.telemetry.termination import write_termination_result


def run(config: RuntimeConfig, out: TextIO) -> int:
    """Fetch the model and print the result; return the exit code. Raises EmbedserveError."""
    progress = Progress()
    with (
        nullcontext() if can_show_progress_bars(config.log_format) else progress.log_periodically(),
        progress.serve(config.server.host, config.server.management_port),
    ):
        located = fetch_model(config.model, progress)
        make_kernel_folder(config.model.store.expanduser())
        progress.enter("reading")
        card = None
        if not _is_exported_elsewhere(config.model, located):
            card = read_card(located.folder, located.revision, config.model)
    if card is not None:
        record_identity(config.model, located, card.vector_space)
    result = {"model": describe_fetched_model(card, located, config)}
    write_termination_result(config.termination_log, result)
    out.write(json.dumps(result, indent=2) + "\n")
    return 0


def _is_exported_elsewhere(settings: ModelSettings, located: LocatedModel) -> bool:
    """Return whether another process has to export the model, so that it cannot be described yet."""
    if not settings.export_elsewhere:
        return False
    read = read_model(located.folder)
    return needs_export(read.files, read.routes, settings.onnx_file)


def describe_fetched_model(
    card: ModelCard | None, located: LocatedModel, config: RuntimeConfig
) -> Mapping[str, Any]:
    """Describe a fetched model as the operator reads it, for its status fields.

    card: None for a model that has yet to be exported; the export describes the rest.
    """
    source = {
        "source": config.model.source_name,
        "revision": located.revision,
        "licence": located.licence,
        "digest": f"sha256:{located.digest}" if located.digest else None,
        "sizeBytes": located.size,
    }
    if card is None:
        return {**source, "needsExport": True}
    sizes, _, _ = find_model_sizes(card, ModelTensors(located.folder), config)
    return {
        **source,
        "dimensions": card.pipeline.dimensions,
        "vectorSpace": card.vector_space,
        "formerVectorSpace": card.former_vector_space,
        "outputs": card.output_names,
        "onnxOutputs": list_onnx_outputs(card),
        "guessesPooling": card.guesses_pooling,
        "adapterTasks": _describe_adapter_tasks(card),
        "memory": describe_model_memory(sizes, card.max_length),
    }


def _describe_adapter_tasks(card: ModelCard) -> list[Mapping[str, str]]:
    """Describe the tasks that a model has adapters for: first those that are served, with their vector spaces."""
    served = card.task_spaces
    others = [name for name in card.adapter_tasks if name not in served]
    return [
        *({"name": name, "vectorSpace": space} for name, space in served.items()),
        *({"name": name} for name in others),
    ]
