"""`embedserve plan`: says how large a model is and what memory it takes, before it is fetched."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

from embedserve_runtime.config import RuntimeConfig
from embedserve_runtime.loading.model_sizes import find_model_sizes
from embedserve_runtime.memory.report import describe_model_memory
from embedserve_runtime.model.reading import describe_model
from embedserve_runtime.model.tensors import ModelTensors
from embedserve_runtime.sources import find_present_model
from embedserve_runtime.telemetry.termination import write_termination_result


def run(config: RuntimeConfig, out: TextIO) -> int:
    """Print the size of the model and the terms of its memory; return the exit code. Raises EmbedserveError."""
    result = {"model": _plan_model(config)}
    write_termination_result(config.termination_log, result)
    out.write(json.dumps(result, indent=2) + "\n")
    return 0


def _plan_model(config: RuntimeConfig) -> Mapping[str, Any]:
    """Plan a model from its folder where it is here, else from the headers in its source."""
    present = find_present_model(config.model)
    if present is not None:
        memory = _plan_memory(present.folder, present.revision, config)
        return _describe(config, present.revision, present.size, memory)
    # Imported here: the libraries of the sources are of no use for a folder.
    from embedserve_runtime.sources.headers import fetch_outline

    with TemporaryDirectory(prefix="embedserve-plan-") as name:
        outline = fetch_outline(config.model, Path(name))
        memory = None if outline.folder is None else _plan_memory(outline.folder, outline.revision, config)
        return _describe(config, outline.revision, outline.size, memory)


def _plan_memory(folder: Path, revision: str, config: RuntimeConfig) -> Mapping[str, int] | None:
    card = describe_model(folder, revision, config.model)
    sizes, _, _ = find_model_sizes(card, ModelTensors(folder), config)
    return describe_model_memory(sizes, card.max_length)


def _describe(
    config: RuntimeConfig, revision: str, size: int, memory: Mapping[str, int] | None
) -> Mapping[str, Any]:
    """Describe the model in the terms of `embedserve fetch`."""
    return {"source": config.model.source_name, "revision": revision, "sizeBytes": size, "memory": memory}
