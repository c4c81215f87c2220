"""Chooses the engine that runs a model, and refuses settings that it has no use for. Loads nothing."""

from __future__ import annotations

from collections.abc import Mapping

from embedserve_runtime.config import EngineSettings
from embedserve_runtime.engines.torch import support as torch_support
from embedserve_runtime.errors import ConfigError, UnsupportedArchitecture
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.sparse_static import SparseStaticTable
from embedserve_runtime.model.static import StaticTable

HALF = frozenset({"float16", "bfloat16"})


def choose_engine(encoder: Encoder, settings: EngineSettings) -> str:
    """Choose an engine by its name: the one asked for, else the first that can. Raises UnsupportedArchitecture with
    reasons, and ConfigError for an engine that is not for encoders."""
    if settings.kind == "static":
        raise ConfigError(
            f"engine.kind: static is for tables of token vectors, this is a {encoder.family} encoder; set it to auto"
        )
    reasons = dict(find_engine_obstacles())
    # Of 16 bit, onnx has only variants that `embedserve convert` made; so torch comes first where it can run.
    converts = settings.precision in HALF and (settings.kind == "onnx" or reasons["torch"] is not None)
    refusals = (
        (
            converts or settings.precision in {"auto", "float32", "int8"},
            f"it runs in float32, and {settings.precision} is asked for",
        ),
        (
            settings.attention == "auto",
            f"it has one attention, and engine.attention asks for {settings.attention}",
        ),
        (
            settings.device != "cuda",
            f"it runs on the CPU, and engine.device asks for {settings.device}",
        ),
        (
            settings.devices in {"auto", 1},
            f"it runs on the CPU, and engine.devices asks for {settings.devices}",
        ),
    )
    reasons["onnx"] = next((reason for fits, reason in refusals if not fits), None)
    kinds = list(reasons) if settings.kind == "auto" else [settings.kind]
    able = next((kind for kind in kinds if reasons[kind] is None), None)
    if able is None:
        listed = "; ".join(f"{kind}: {reasons[kind]}" for kind in kinds)
        raise UnsupportedArchitecture(f"no engine can run this {encoder.family} encoder: {listed}")
    return able


def check_static(settings: EngineSettings) -> None:
    """Raise ConfigError when the settings ask for what a table of token vectors has no use for."""
    if settings.kind not in ("auto", "static"):
        raise ConfigError(
            f"engine.kind: {settings.kind} runs the layers of an encoder, a static embedding model has none; "
            "set it to auto or static"
        )
    _check_is_alone(settings, "a static embedding model")
    if settings.precision not in ("auto", "float32"):
        raise ConfigError(
            f"engine.precision: a static embedding model sums in float32, {settings.precision} is asked for"
        )


def check_graph(settings: EngineSettings) -> None:
    """Raise ConfigError when the settings ask for what ONNX Runtime does not do with a finished file."""
    if settings.kind not in ("auto", "onnx"):
        raise ConfigError(
            f"engine.kind: {settings.kind} does not run ONNX files; set it to auto or onnx, or unset model.onnx_file"
        )
    _check_is_alone(settings, "an ONNX file")
    if settings.precision != "auto":
        raise ConfigError(
            "engine.precision: an ONNX file has its precision in itself; choose the file by model.onnx_file instead"
        )


def _check_is_alone(settings: EngineSettings, what: str) -> None:
    """Raise ConfigError for settings that are for encoders on torch only."""
    torch_only_settings = (
        ("attention", settings.attention, {"auto"}),
        ("device", settings.device, {"auto", "cpu"}),
        ("devices", settings.devices, {"auto", 1}),
    )
    for name, value, defaults in torch_only_settings:
        if value not in defaults:
            raise ConfigError(
                f"engine.{name}: {value} is for encoders on the torch engine, this is {what}; set it to auto"
            )


def find_engine_obstacles() -> Mapping[str, str | None]:
    """Find what keeps each engine from running encoders on this machine, None if nothing does; preferred ones first.

    Every description that a family can give is written for both.
    """
    return {"onnx": None, "torch": torch_support.find_obstacle()}


def is_table(card: ModelCard) -> bool:
    """Return whether nothing of the model needs an engine."""
    backbones = [card.backbone, *([] if card.query is None else [card.query.card.backbone])]
    return all(isinstance(backbone, StaticTable | SparseStaticTable) for backbone in backbones)
