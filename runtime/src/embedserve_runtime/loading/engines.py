"""Opens the engines of one encoder, as the settings ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from embedserve_runtime.config import EngineSettings
from embedserve_runtime.cpu.quota import count_usable_cpus
from embedserve_runtime.engines.onnx.engine import OnnxEngine
from embedserve_runtime.engines.protocol import EncoderEngine
from embedserve_runtime.errors import DeviceMemoryTooSmall, UnsupportedArchitecture
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.engine import MeasuredParity
from embedserve_runtime.loading.engine_choice import choose_engine
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.checkpoint import Weights
from embedserve_runtime.progress import track_work

EIGHT_BIT = ("fp8", "int8")


@dataclass(frozen=True, slots=True, eq=False)
class EightBitSetup:
    """The decisions about 8 bit that are made before engines are opened.

    parity: to 16 bit, where that was measured. calibrations: the texts that each encoder's products are calibrated on.
    """

    parity: MeasuredParity | None = None
    calibrations: Sequence[tuple[Encoder, PackedBatch]] = field(default_factory=tuple)

    def find_calibration(self, encoder: Encoder) -> PackedBatch | None:
        return next((texts for calibrated, texts in self.calibrations if calibrated is encoder), None)


def open_engines(
    encoder: Encoder,
    weights: Weights,
    settings: EngineSettings,
    *,
    has_attention_mask: bool = False,
    eight_bit: EightBitSetup | None = None,
) -> Sequence[EncoderEngine]:
    """Open the engine that the settings ask for, once a device, with the weights loaded.

    has_attention_mask: whether batches will have tokens that attention does not see
    (`PackedBatch.attended_lengths`). Raises UnsupportedArchitecture, DeviceMemoryTooSmall, and ConfigError for devices
    that are not there.
    """
    threads = settings.threads or count_usable_cpus()
    if choose_engine(encoder, settings) == "onnx":
        return [OnnxEngine.build(encoder, weights, threads, has_attention_mask=has_attention_mask)]
    if has_attention_mask:
        if settings.attention not in ("auto", "grouped"):
            raise UnsupportedArchitecture(
                f"engine.attention: {settings.attention} sees all tokens, and queries of this model have some that are "
                "not to be seen; set it to auto or grouped"
            )
        settings = settings.model_copy(update={"attention": "grouped"})
    # Imported here: torch is an extra, and importing it takes longer than loading a small model.
    from embedserve_runtime.engines.torch.devices import find_devices, limit_threads
    from embedserve_runtime.engines.torch.engine import TorchEngine

    limit_threads(threads)
    calibration = None if eight_bit is None else eight_bit.find_calibration(encoder)
    parity = None if eight_bit is None else eight_bit.parity
    devices = find_devices(settings.devices, settings.device)
    with track_work("reading weights", weights.size * len(devices), "parameters") as advance:
        observed = weights.with_observer(advance)
        try:
            engines = [
                TorchEngine.open(encoder, observed, device, settings, calibration) for device in devices
            ]
        except DeviceMemoryTooSmall as error:
            raise _add_advice(error, settings.precision, parity) from error
    for engine in engines:
        engine.parity = parity
    return engines


def _add_advice(
    error: DeviceMemoryTooSmall, precision: str, parity: MeasuredParity | None
) -> DeviceMemoryTooSmall:
    """Return the error with what to do. precision: that has no room. parity: of 8 bit, where that was asked for first,
    had room and was too far from 16 bit."""
    advice = "a device with more memory, or a smaller model"
    if parity is not None and precision != parity.precision:
        advice = (
            f"engine.min_cosine (spec.model.minCosine) of {parity.min_cosine} or less has it served in "
            f"{parity.precision}, which has room; otherwise it takes {advice}"
        )
    elif precision not in EIGHT_BIT:
        advice = f"in 8 bit (spec.model.precision) it takes half as much; otherwise it takes {advice}"
    else:
        advice = f"it takes {advice}"
    return DeviceMemoryTooSmall(f"{error.message}; {advice}")
