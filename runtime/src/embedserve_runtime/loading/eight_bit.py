"""Settles at start whether a model that is asked for in 8 bit runs in 8 bit."""

from __future__ import annotations

import logging

from embedserve_runtime.config import EngineSettings
from embedserve_runtime.forward.engine import MeasuredParity
from embedserve_runtime.loading.assembly import load_heads
from embedserve_runtime.loading.engine_choice import choose_engine
from embedserve_runtime.loading.engines import EIGHT_BIT, EightBitSetup, open_engines
from embedserve_runtime.model.adapted_tensors import open_encoder_tensors
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.checkpoint import Weights
from embedserve_runtime.model.sparse_static import SparseStaticTable
from embedserve_runtime.model.static import StaticTable
from embedserve_runtime.model.tensors import ModelTensors
from embedserve_runtime.parity.eight_bit import build_calibration, build_sample, measure_parity
from embedserve_runtime.runners.base import EncoderRunner

log = logging.getLogger(__name__)


def settle_precision(
    card: ModelCard, tensors: ModelTensors, settings: EngineSettings
) -> tuple[EngineSettings, EightBitSetup | None]:
    """Ask for 16 bit instead of 8 where the vectors of a text set would be too far from those in 16.

    The second value is None where 8 bit is not asked for.
    """
    if settings.precision not in EIGHT_BIT:
        return settings, None
    routes = [
        route
        for route in card.list_routes()
        if not isinstance(route.backbone, StaticTable | SparseStaticTable)
        and choose_engine(route.encoder, settings) == "torch"
    ]
    if not routes:
        return settings, None
    calibrations = [(route.encoder, build_calibration(route)) for route in routes]
    setup = EightBitSetup(calibrations=calibrations)
    measured = [_measure_parity(route, tensors, settings, setup) for route in routes]
    parity = min(measured, key=lambda report: report.min_cosine)
    fields = {
        "precision": settings.precision,
        "min_cosine": parity.min_cosine,
        "floor": settings.min_cosine,
    }
    setup = EightBitSetup(parity, calibrations)
    if parity.min_cosine >= settings.min_cosine:
        log.info("vectors in 8 bit are near enough to those in 16", extra=fields)
        return settings, setup
    log.warning("vectors in 8 bit are too far from those in 16: the model runs in 16 bit", extra=fields)
    return settings.model_copy(update={"precision": "auto"}), setup


def _measure_parity(
    card: ModelCard, tensors: ModelTensors, settings: EngineSettings, setup: EightBitSetup
) -> MeasuredParity:
    """Return the parity of an encoder in 8 bit with itself in 16 bit, on one device.

    In 16 bit it is streamed: a model that fits into the device's memory in 8 bit alone can be measured, too.
    """
    # Imported here, as the engine is.
    from embedserve_runtime.engines.torch.devices import find_devices, resolve_dtype
    from embedserve_runtime.engines.torch.engine import ForwardOptions, TorchEngine
    from embedserve_runtime.engines.torch.kernels import KernelKind

    checkpoint = open_encoder_tensors(card, tensors)
    weights, heads = Weights(card.encoder, checkpoint), load_heads(card, tensors, checkpoint)
    one_device = settings.model_copy(update={"devices": 1})
    hides = card.has_attention_mask
    engine = open_engines(card.encoder, weights, one_device, has_attention_mask=hides, eight_bit=setup)[0]
    device = find_devices(1, settings.device)[0]
    options = ForwardOptions(KernelKind.GROUPED, streamed=True)
    exact = TorchEngine(card.encoder, weights, device, resolve_dtype("auto", device), options)
    return measure_parity(
        EncoderRunner(card, engine, heads), EncoderRunner(card, exact, heads), build_sample(card)
    )
