"""Loads a model: finds or fetches the folder, reads its card, chooses and builds the engine."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

from embedserve_runtime.config import EngineSettings, RuntimeConfig
from embedserve_runtime.cpu.quota import count_usable_cpus
from embedserve_runtime.engines.onnx.artifacts import (
    PLAIN,
    Artifact,
    Variant,
    describe_inputs,
    find_artifact,
)
from embedserve_runtime.engines.onnx.engine import OnnxEngine, describe_engine
from embedserve_runtime.engines.protocol import EncoderEngine
from embedserve_runtime.errors import ModelInvalid
from embedserve_runtime.forward.engine import MeasuredParity
from embedserve_runtime.loading.assembly import build_runners, open_bundled_runner
from embedserve_runtime.loading.eight_bit import settle_precision
from embedserve_runtime.loading.engine_choice import check_graph, check_static, choose_engine, is_table
from embedserve_runtime.loading.engines import open_engines
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.bundled_onnx import BundledOnnx
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.checkpoint import Weights
from embedserve_runtime.model.reading import read_card
from embedserve_runtime.model.sparse_static import SparseStaticTable
from embedserve_runtime.model.static import StaticTable
from embedserve_runtime.model.tensors import ModelTensors
from embedserve_runtime.parity.corpus import PARITY_TEXTS_NAME
from embedserve_runtime.runners.base import Runner
from embedserve_runtime.runners.fp32_fallback import FP32Fallback, add_fallback
from embedserve_runtime.sources import open_model

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model whose folder has been read: its card, and its tensors, of which none is in memory."""

    card: ModelCard
    tensors: ModelTensors


def open_served_model(config: RuntimeConfig) -> OpenedModel:
    """Find or fetch the folder of the model and read its card. Raises ModelError, SourceUnavailable or ConfigError."""
    located = open_model(config.model)
    card = read_card(located.folder, located.revision, config.model)
    if card.ignored_settings:
        log.info(
            "settings of the model change no vector and are ignored",
            extra={"settings": card.ignored_settings},
        )
    if card.tokenizer.overrides:
        log.info(
            "the tokenizer's class decides otherwise than tokenizer.json",
            extra={"overrides": card.tokenizer.overrides},
        )
    if card.guesses_pooling:
        log.warning("no file of the model says how to pool; the mean is a guess, set model.pooling")
    return OpenedModel(card, ModelTensors(located.folder))


def load_runners(config: RuntimeConfig, opened: OpenedModel) -> Sequence[Runner]:
    """Load a model, with a runner for each device. Blocks until it is in memory. Raises ModelError or ConfigError."""
    card, tensors = opened.card, opened.tensors
    if isinstance(card.backbone, BundledOnnx):
        check_graph(config.engine)
        if card.backbone.runs_singly:
            log.info(
                "the ONNX file finds one range of 8 bit for a whole batch: each text is run alone, for the same values "
                "whatever is beside it",
                extra={"file": card.backbone.file.name, "operators": card.backbone.batch_quantizers},
            )
        return [open_bundled_runner(card, card.backbone, tensors, config.engine)]
    if is_table(card):
        check_static(config.engine)
    hides, converted = card.has_attention_mask, _load_variant(card, config)
    with _use_stored_kernels(card, config):
        settings, eight_bit = settle_precision(card, tensors, config.engine)

        def open_encoder_engines(encoder: Encoder, weights: Weights) -> Sequence[EncoderEngine]:
            if converted is not None and encoder is card.encoder:
                return converted
            return open_engines(encoder, weights, settings, has_attention_mask=hides, eight_bit=eight_bit)

        runners = build_runners(card, tensors, open_encoder_engines)
    if all(runner.engine.precision == "float32" for runner in runners) or is_table(card):
        return runners
    kind = runners[0].engine.kind
    fallback = FP32Fallback(partial(_load_fallback_runner, card, tensors, config.engine, kind))
    return [add_fallback(runner, fallback) for runner in runners]


def _use_stored_kernels(card: ModelCard, config: RuntimeConfig) -> AbstractContextManager[None]:
    """Return a context in which the torch engine takes compiled kernels from the store and keeps new ones there."""
    encoders = [
        route.encoder
        for route in card.list_routes()
        if not isinstance(route.backbone, StaticTable | SparseStaticTable)
    ]
    if all(choose_engine(encoder, config.engine) != "torch" for encoder in encoders):
        return nullcontext()
    # Imported here, as the engine is.
    from embedserve_runtime.engines.torch.compiled import use_stored_kernels

    return use_stored_kernels(config.model.store, f"{encoders} {config.engine}")


def _load_fallback_runner(
    card: ModelCard, tensors: ModelTensors, settings: EngineSettings, kind: str
) -> Runner:
    """Load the model in float32 on one device of an engine of that kind. Raises what `load_runners` raises."""
    fallback = settings.model_copy(update={"kind": kind, "precision": "float32", "devices": 1})

    def open_encoder_engines(encoder: Encoder, weights: Weights) -> Sequence[EncoderEngine]:
        return open_engines(encoder, weights, fallback, has_attention_mask=card.has_attention_mask)

    return build_runners(card, tensors, open_encoder_engines)[0]


def load_runner(config: RuntimeConfig) -> Runner:
    """Load the first of `load_runners`, for callers that need no more."""
    return load_runners(config, open_served_model(config))[0]


def _load_variant(card: ModelCard, config: RuntimeConfig) -> list[OnnxEngine] | None:
    """Load the engine of an artifact in the store; None where the settings want none, or none can be used."""
    choice = choose_variant(card, config)
    if choice is None:
        return None
    artifact, variant = choice
    file, threads = artifact.get_path(variant.precision), config.engine.threads or count_usable_cpus()
    # Of float32 the same is computed as without a conversion.
    digest = None if variant.precision == PLAIN else artifact.digest_variant(variant.precision)
    try:
        engine = OnnxEngine.load(
            card.encoder,
            file,
            describe_engine(variant.precision, threads, _describe_parity(variant), digest),
        )
    except ModelInvalid as error:
        log.warning("the converted model is not used", extra={"error": error.message})
        return None
    log.info("converted model taken from the store", extra={"file": str(file)})
    return [engine]


def _describe_parity(variant: Variant) -> MeasuredParity | None:
    """Return what the conversion has measured of a variant; None of float32, which it is measured against."""
    if variant.precision == PLAIN:
        return None
    return MeasuredParity(
        variant.precision, PLAIN, variant.mean_cosine, variant.min_cosine, PARITY_TEXTS_NAME
    )


def choose_variant(card: ModelCard, config: RuntimeConfig) -> tuple[Artifact, Variant] | None:
    """Choose the variant that would be run out of the store. Raises UnsupportedArchitecture."""
    if card.backbone is not None or choose_engine(card.encoder, config.engine) != "onnx":
        return None
    artifact, precision = None, config.engine.precision
    if config.onnx.convert != "Never":
        artifact = find_artifact(config.model.store.expanduser(), describe_inputs(card, config.onnx).name)
    variant = None if artifact is None else artifact.choose_variant(precision)
    if precision not in ("auto", "float32" if variant is None else variant.precision):
        log.warning(
            "no variant of this precision is published, float32 is run; `embedserve convert` makes and tries them",
            extra={"asked": precision},
        )
    return None if artifact is None or variant is None else (artifact, variant)
