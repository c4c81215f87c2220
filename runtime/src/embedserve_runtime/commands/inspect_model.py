"""`embedserve inspect`: describes a model before it is served, as JSON or as a table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from embedserve_runtime.commands.tables import FactRow, build_fact_table, print_table
from embedserve_runtime.config import RuntimeConfig
from embedserve_runtime.cpu.quota import count_usable_cpus
from embedserve_runtime.errors import ConfigError, UnsupportedArchitecture
from embedserve_runtime.loading.engine_choice import find_engine_obstacles
from embedserve_runtime.loading.model_sizes import find_model_sizes
from embedserve_runtime.loading.runners import choose_variant
from embedserve_runtime.memory.load import describe_load
from embedserve_runtime.memory.plan import plan_memory
from embedserve_runtime.memory.sizes import MIB
from embedserve_runtime.model.bundled_onnx import BundledOnnx
from embedserve_runtime.model.card import ModelCard, QueryRoute
from embedserve_runtime.model.heads.description import ClassifierHead, SparseHead
from embedserve_runtime.model.reading import read_card
from embedserve_runtime.model.sparse_static import SparseStaticTable
from embedserve_runtime.model.static import StaticTable
from embedserve_runtime.model.tensors import ModelTensors
from embedserve_runtime.sources import LocatedModel, open_model

UNITS = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3))


def run(config: RuntimeConfig, out: TextIO, *, as_json: bool) -> int:
    """Print the description of the model; return the exit code. Raises EmbedserveError."""
    located = open_model(config.model)
    facts = describe_model(read_card(located.folder, located.revision, config.model), located, config)
    if as_json:
        out.write(json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
    else:
        rows = [(name, lines or ["none"]) for name, lines in _list_rows(facts)]
        print_table(out, _format_lines(rows) + "\n", partial(build_fact_table, rows))
    return 0


def describe_model(card: ModelCard, located: LocatedModel, config: RuntimeConfig) -> Mapping[str, Any]:
    """Describe a model under the names of the JSON that `embedserve inspect --json` prints."""
    encoder, backbone = card.encoder, card.backbone
    return {
        "source": card.source,
        "revision": card.revision,
        "digest": f"sha256:{located.digest}" if located.digest else None,
        "sizeBytes": located.size,
        "vectorSpace": card.vector_space,
        "dimensions": card.pipeline.dimensions,
        "folder": str(located.folder),
        "kind": _find_kind(card),
        "family": encoder.family,
        "onnxFile": _find_onnx_file(located.folder, backbone) if isinstance(backbone, BundledOnnx) else None,
        "batchQuantizers": list(backbone.batch_quantizers) if isinstance(backbone, BundledOnnx) else [],
        "layers": None if backbone is not None else len(encoder.layers),
        "hiddenSize": encoder.hidden_size,
        "vocabulary": encoder.embeddings.vocabulary,
        "task": card.task,
        "labels": list(card.head.labels) if isinstance(card.head, ClassifierHead) else None,
        "outputs": card.output_names,
        "fullDimensions": card.pipeline.full_dimensions,
        "pooling": _describe_pooling(card),
        "guessesPooling": card.guesses_pooling,
        "denseLayers": len(card.pipeline.dense),
        "normalize": card.pipeline.normalize,
        "maxLength": card.max_length,
        "queries": None if card.query is None else _describe_query_route(card, card.query),
        "prompts": dict(card.prompts),
        "defaultPrompt": card.default_prompt,
        "adapter": None
        if card.adapter is None
        else {"base": card.adapter.base, "modules": len(card.adapter.scales)},
        "servedTasks": dict(card.task_spaces),
        "adapterTasks": list(card.adapter_tasks),
        "ignoredSettings": list(card.ignored_settings),
        "tokenizerOverrides": list(card.tokenizer.overrides),
        "engines": {kind: reason or "yes" for kind, reason in _check_routed_engines(card).items()},
        "artifact": _find_artifact(card, config),
        "memory": _plan_memory(card, ModelTensors(located.folder), config),
    }


def _find_onnx_file(folder: Path, graph: BundledOnnx) -> str:
    """Return the path of an ONNX file in the model's folder, or the full path of an export in the store."""
    inside = graph.file.is_relative_to(folder)
    return (graph.file.relative_to(folder) if inside else graph.file).as_posix()


def _describe_query_route(card: ModelCard, route: QueryRoute) -> Mapping[str, Any]:
    """Describe what differs for queries, while all else is about documents. default: the role of inputs that name
    none."""
    query = route.card
    return {
        "default": route.default,
        "sharesEncoder": card.shares_encoder,
        "kind": _find_kind(query),
        "family": query.encoder.family,
        "layers": None if query.backbone is not None else len(query.encoder.layers),
        "hiddenSize": query.encoder.hidden_size,
        "vocabulary": query.encoder.embeddings.vocabulary,
        "pooling": _describe_pooling(query),
        "denseLayers": len(query.pipeline.dense),
        "normalize": query.pipeline.normalize,
        "maxLength": query.max_length,
    }


def _find_kind(card: ModelCard) -> str:
    match card.backbone:
        case StaticTable():
            return "static"
        case SparseStaticTable():
            return "wordWeights"
        case BundledOnnx():
            return "onnxFile"
        case None:
            return "family"


def _describe_pooling(card: ModelCard) -> str | None:
    """Describe the pooling; None where a graph has done it already."""
    if isinstance(card.backbone, BundledOnnx) and card.backbone.pooled is not None:
        return None
    if isinstance(card.head, ClassifierHead | SparseHead):
        return card.head.pooling
    return card.pipeline.pooling_name or None


def _check_routed_engines(card: ModelCard) -> Mapping[str, str | None]:
    """Return the engines for documents and queries: a table next to an encoder needs no engine, so the encoder's are
    those of the whole."""
    routes = [_check_engines(one) for one in card.list_routes() if one.backbone is None] or [
        _check_engines(card)
    ]
    return {kind: next((route[kind] for route in routes if route[kind]), None) for kind in routes[0]}


def _check_engines(card: ModelCard) -> Mapping[str, str | None]:
    """Return what keeps each engine from running the model; None where nothing does."""
    match card.backbone:
        case StaticTable() | SparseStaticTable():
            no_layers = "a static embedding model has no layers to run"
            return {"static": None, "onnx": no_layers, "torch": no_layers}
        case BundledOnnx():
            return {"onnx": None, "torch": "it does not run ONNX files"}
        case None:
            return find_engine_obstacles()


def _plan_memory(card: ModelCard, tensors: ModelTensors, config: RuntimeConfig) -> Mapping[str, Any]:
    """Plan the memory of a server of this model on the CPUs of this machine. Activations are those of a batch, None for
    a bundled graph, whose operations are not known."""
    sizes, engine, precision = find_model_sizes(card, tensors, config)
    load = describe_load(config, card.max_length, engine, count_usable_cpus())
    plan = plan_memory(sizes, load)
    activations = sizes.activations
    return {
        "precision": precision,
        "weightsBytes": sizes.weights,
        "activationsBytes": None
        if activations is None
        else activations.compute_batch_bytes(load.batch_tokens, card.max_length),
        "batchTokens": load.batch_tokens,
        "plan": [{"part": part.name, "bytes": part.size, "source": part.source} for part in plan.parts],
        "isComplete": plan.is_complete,
        "totalBytes": plan.total,
        "limitBytes": plan.limit,
    }


def _find_artifact(card: ModelCard, config: RuntimeConfig) -> str | None:
    """Return the name of the artifact that would be run; None where there is none."""
    if card.backbone is not None:
        return None
    try:
        stored = choose_variant(card, config)
    except (UnsupportedArchitecture, ConfigError):
        return None
    return None if stored is None else stored[0].name


def _format_lines(rows: Sequence[FactRow]) -> str:
    """Format the description of a model as lines of two columns."""
    lines: list[str] = []
    for name, (head, *rest) in rows:
        lines.append(f"{name:<14} {head}")
        lines += [f"{'':<14} {line}" for line in rest]
    return "\n".join(lines)


def _list_rows(facts: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    yield "Model", [f"{facts['source']} ({facts['revision']}), {format_size(facts['sizeBytes'])} on disk"]
    yield "Kind", [_describe_kind(facts)]
    yield "Task", [facts["task"]]
    if facts["labels"] is not None:
        yield "Labels", [", ".join(facts["labels"])]
    yield "Outputs", [", ".join(facts["outputs"])]
    if "dense" in facts["outputs"]:
        cut = (
            f", cut from {facts['fullDimensions']}" if facts["fullDimensions"] != facts["dimensions"] else ""
        )
        yield "Dimensions", [f"{facts['dimensions']}{cut}"]
        guess = ["a guess: no file says how to pool; model.pooling does"] if facts["guessesPooling"] else []
        yield "Vectors", [_describe_vectors(facts), *guess]
    yield "Max length", [f"{facts['maxLength']} tokens"]
    if facts["queries"] is not None:
        yield "Queries", [*_describe_queries(facts["queries"])]
    default = facts["defaultPrompt"]
    yield (
        "Prompts",
        [
            f"{name}{' (default)' if name == default else ''}: {text!r}"
            for name, text in facts["prompts"].items()
        ],
    )
    if facts["adapter"] is not None:
        yield "Adapter", [f"LoRA for {facts['adapter']['base']}, {facts['adapter']['modules']} modules"]
    if facts["adapterTasks"]:
        tasks = (
            f"{name}{f' ({space})' if (space := facts['servedTasks'].get(name)) else ''}"
            for name in facts["adapterTasks"]
        )
        yield "Adapter tasks", [", ".join(tasks)]
    if facts["tokenizerOverrides"]:
        yield "Tokenizer", facts["tokenizerOverrides"]
    if facts["ignoredSettings"]:
        yield "Ignored", facts["ignoredSettings"]
    if facts["batchQuantizers"]:
        yield (
            "Batching",
            [f"each text is run alone: {', '.join(facts['batchQuantizers'])} is over a whole batch"],
        )
    yield "Engines", [f"{kind}: {reason}" for kind, reason in facts["engines"].items()]
    if facts["artifact"] is not None:
        yield "Converted", [f"artifact {facts['artifact']}, runs in {facts['memory']['precision']}"]
    yield "Memory", [*_describe_memory(facts["memory"])]
    yield "Vector space", [facts["vectorSpace"]]


def _describe_kind(facts: Mapping[str, Any]) -> str:
    match facts["kind"]:
        case "static":
            return f"static embeddings ({facts['family']}), {facts['vocabulary']} tokens"
        case "wordWeights":
            return f"a weight for each of {facts['vocabulary']} tokens ({facts['family']})"
        case "onnxFile":
            return f"ONNX file {facts['onnxFile']} ({facts['family']})"
        case _:
            return f"{facts['family']} encoder, {facts['layers']} layers of {facts['hiddenSize']}"


def _describe_queries(queries: Mapping[str, Any]) -> Iterator[str]:
    yield "the encoder of documents" if queries["sharesEncoder"] else _describe_kind(queries)
    if queries["kind"] != "wordWeights":
        yield _describe_vectors(queries)
    yield f"at most {queries['maxLength']} tokens"
    default = queries["default"]
    yield "inputs must be called query or document" if default is None else f"other inputs are a {default}"


def _describe_vectors(facts: Mapping[str, Any]) -> str:
    steps = [f"{facts['pooling']} pooling" if facts["pooling"] else "made by the ONNX file"]
    if facts["denseLayers"]:
        steps.append(f"{facts['denseLayers']} dense")
    return ", ".join([*steps, "normalized" if facts["normalize"] else "not normalized"])


def _describe_memory(memory: Mapping[str, Any]) -> Iterator[str]:
    least = "" if memory["isComplete"] else "at least "
    limit = f"{memory['limitBytes'] // MIB}Mi"
    yield f"{least}{format_size(memory['totalBytes'])} at the highest; limit of a container: {limit}"
    for part in memory["plan"]:
        if part["bytes"]:
            precision = f", {memory['precision']}" if part["part"] == "weights" else ""
            yield f"{part['part']:<12} {format_size(part['bytes']):>9}  {part['source']}{precision}"
    if not memory["isComplete"]:
        yield "what a batch takes is the file's own and not known"


def format_size(count: int) -> str:
    """Format a number of bytes in the largest unit of which there is at least one."""
    unit, size = next(((unit, size) for unit, size in UNITS if count >= size), ("bytes", 1))
    return f"{count} bytes" if size == 1 else f"{count / size:.1f} {unit}"
