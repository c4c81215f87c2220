"""Finds what a model takes in memory, from its card and the files that would be run. Loads nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from embedserve_runtime.config import EngineSettings, RuntimeConfig
from embedserve_runtime.engines.onnx.artifacts import WEIGHTS_FILE
from embedserve_runtime.errors import ConfigError, UnsupportedArchitecture
from embedserve_runtime.loading.engine_choice import choose_engine
from embedserve_runtime.loading.runners import choose_variant
from embedserve_runtime.memory.activation_memory import FLOAT_BYTES, ActivationSizes
from embedserve_runtime.memory.sizes import ModelSizes, describe_sizes
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.bundled_onnx import BundledOnnx
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.sparse_static import SparseStaticTable
from embedserve_runtime.model.static import StaticTable, name_table_tensors
from embedserve_runtime.model.tensors import ModelTensors

EngineName = Literal["onnx", "torch", "static"]
NUMBER_BYTES = {"auto": 4, "float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "int8": 1}


def find_model_sizes(
    card: ModelCard, tensors: ModelTensors, config: RuntimeConfig
) -> tuple[ModelSizes, EngineName, str]:
    """Return what the model takes, the engine that would run it, and the precision of its weights."""
    match card.backbone:
        case StaticTable() as table:
            checkpoint, token = tensors.open_checkpoint(card.encoder_path), FLOAT_BYTES * table.dimensions
            names = name_table_tensors(checkpoint, table.tensor).values()
            size = sum(checkpoint.count_bytes(name) for name in names)
            return _describe_table(card, size, token), "static", "as stored"
        case SparseStaticTable() as table:
            return _describe_table(card, FLOAT_BYTES * table.vocabulary, 8), "static", "as stored"
        case BundledOnnx() as graph:
            weights = sum(file.stat().st_size for file in graph.files)
            sizes = replace(
                describe_sizes(card), weights=weights, loading=weights, tables=0, activations=None
            )
            return sizes, "onnx", "as stored"
        case None:
            return _describe_layers(card, config)


def _describe_table(card: ModelCard, weights: int, token: int) -> ModelSizes:
    activations = ActivationSizes(token, table=0, long_token=0, fixed=0)
    return replace(describe_sizes(card), weights=weights, loading=0, tables=0, activations=activations)


def _describe_layers(card: ModelCard, config: RuntimeConfig) -> tuple[ModelSizes, EngineName, str]:
    engine, precision = _choose_precision(card.encoder, config.engine)
    sizes = describe_sizes(card, engine, NUMBER_BYTES[precision])
    try:
        stored = choose_variant(card, config)
    except (UnsupportedArchitecture, ConfigError):
        stored = None
    if stored is None:
        return sizes, engine, precision
    artifact, variant = stored
    file = artifact.get_path(variant.precision).with_name(WEIGHTS_FILE)
    return sizes.with_weights(file.stat().st_size), engine, variant.precision


def _choose_precision(encoder: Encoder, settings: EngineSettings) -> tuple[EngineName, str]:
    """Return the engine that would be chosen and its precision; torch's `auto` is float32 on a CPU."""
    try:
        engine = choose_engine(encoder, settings)
    except (UnsupportedArchitecture, ConfigError):
        engine = settings.kind
    if engine != "torch":
        return "onnx", "float32"
    return "torch", "float32" if settings.precision == "auto" else settings.precision
