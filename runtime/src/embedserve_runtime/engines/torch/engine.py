"""Runs an encoder with torch: on CUDA in 16 bit by fused kernels and CUDA graphs, elsewhere in eager mode."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from embedserve_runtime.config import EngineSettings
from embedserve_runtime.engines.torch.device_batch import DeviceBatch, copy_to_device
from embedserve_runtime.engines.torch.devices import get_device_name, resolve_dtype, use_device
from embedserve_runtime.engines.torch.fused.hopper import find_hopper_device_obstacle
from embedserve_runtime.engines.torch.fused.support import (
    EightBit,
    find_eight_bit_obstacle,
    find_flash_obstacle,
    find_fused_obstacle,
    find_triton_obstacle,
)
from embedserve_runtime.engines.torch.graphs import (
    MAX_TOKENS,
    DeviceOutput,
    EncoderWithHeads,
    Graphs,
    OutputLevel,
    choose_buckets,
)
from embedserve_runtime.engines.torch.heads import RowHead, TokenRowHead
from embedserve_runtime.engines.torch.kernels import KernelKind, find_varlen_obstacle
from embedserve_runtime.engines.torch.long_texts import decide_flash_length
from embedserve_runtime.engines.torch.memory import MemoryBudget, split_in_halves
from embedserve_runtime.engines.torch.modules import PackedEncoder
from embedserve_runtime.engines.torch.packing import PackedTokens
from embedserve_runtime.engines.torch.parameters import Parameters
from embedserve_runtime.errors import DeviceMemoryTooSmall, EngineFailure, UnsupportedArchitecture
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.engine import EngineDescription, MeasuredParity, MemoryStatus
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.checkpoint import Weights

logger = logging.getLogger(__name__)

T = TypeVar("T")
# Attention inside the fused encoder.
FUSED = (KernelKind.FUSED, KernelKind.FLASH)
# In 8 bit on Hopper nearly all products are of the kernel that holds every multiprocessor: what is larger than this
# runs batches one after another, which is 1 to 5 % faster than overlapping them (measured on an H100).
MAX_CONCURRENT_EIGHT_BIT_TOKENS = 2048


@dataclass(frozen=True, slots=True, eq=False)
class ForwardOptions:
    """The options of an engine's forward pass.

    kernel: the attention to take; None takes the fastest that can run the encoder. calibration: texts that products in
    8 bit are calibrated on. streamed: each forward pass reads the weights of a layer when it is its turn and keeps
    none, for a model that has no room on the device; with kernels that are not fused.
    """

    kernel: KernelKind | None = None
    calibration: PackedBatch | None = None
    streamed: bool = False


DEFAULT_OPTIONS = ForwardOptions()


class TorchEngine:
    """Runs an encoder with torch on one device. May be called from any thread, one at a time."""

    def __init__(
        self,
        encoder: Encoder,
        weights: Weights,
        device: torch.device,
        precision: torch.dtype | EightBit,
        options: ForwardOptions = DEFAULT_OPTIONS,
    ) -> None:
        """Read the weights onto `device`.

        precision: of weights, products and hidden states; norms, rotary positions and softmax stay in float32. In 8 bit
        are the large products alone, all else is in what `auto` is on the device. Raises UnsupportedArchitecture where
        what is asked for cannot be.
        """
        eight_bit = precision if isinstance(precision, EightBit) else None
        dtype = resolve_dtype("auto", device) if isinstance(precision, EightBit) else precision
        self.padding = 0
        self._encoder = encoder
        self.device = device
        self.dtype = dtype
        self.budget = MemoryBudget()
        self.kernel = choose_kernel(encoder, device, dtype, options.kernel)
        self.eight_bit = eight_bit
        self.parity: MeasuredParity | None = None
        if eight_bit is not None:
            check_eight_bit(encoder, device, dtype, self.kernel, eight_bit)
        self._head: RowHead | None = None
        self._graphs: Graphs | None = None
        self._fused: Callable[[DeviceBatch], Tensor] | None = None
        self._eager: PackedEncoder | None = None
        self._flash_from: int | None = None
        parameters = Parameters(weights, device, dtype)
        with torch.inference_mode(), use_device(device):
            if self.kernel in FUSED:
                self._flash_from = decide_flash_length(encoder, parameters, options.kernel)
                flash = self._flash_from is not None
                # Imported here: it needs Triton, which is installed only with CUDA.
                from embedserve_runtime.engines.torch.fused.encoder import FusedEncoder

                self._fused = FusedEncoder.build(
                    encoder, parameters, eight_bit=eight_bit, texts=options.calibration, flash=flash
                )
            else:
                self._eager = PackedEncoder(encoder, parameters, self.kernel, streamed=options.streamed)
        # The widest form decides how sequences are grouped; nearly all encoders have one.
        widths = [layer.attention.heads * layer.attention.head_size for layer in encoder.layers]
        self._group_width = max(widths, default=1) if self.kernel is KernelKind.GROUPED else None
        self.runs_heads = find_triton_obstacle(device) is None

    @classmethod
    def open(
        cls,
        encoder: Encoder,
        weights: Weights,
        device: torch.device,
        settings: EngineSettings,
        calibration: PackedBatch | None = None,
    ) -> TorchEngine:
        """Open the engine with the precision and the attention of the settings. calibration: as in `ForwardOptions`.

        Raises DeviceMemoryTooSmall where the device has no room for the weights.
        """
        kernel = None if settings.attention == "auto" else KernelKind(settings.attention)
        precision_name = settings.precision
        precision = (
            EightBit(precision_name)
            if precision_name in tuple(EightBit)
            else resolve_dtype(precision_name, device)
        )
        try:
            return cls(encoder, weights, device, precision, ForwardOptions(kernel, calibration))
        except torch.OutOfMemoryError as error:
            name = str(precision).removeprefix("torch.")
            raise DeviceMemoryTooSmall(
                f"{get_device_name(device)} has no room for the {weights.size:,} parameters of the model in {name}: "
                f"{error}"
            ) from error

    @property
    def hidden_size(self) -> int:
        return self._encoder.width

    @property
    def description(self) -> EngineDescription:
        precision = self.eight_bit or str(self.dtype).removeprefix("torch.")
        attention = str(self.kernel)
        if self.kernel is KernelKind.FUSED and self._flash_from is not None:
            attention = f"fused, flash from {self._flash_from} tokens"
        return EngineDescription("torch", get_device_name(self.device), precision, attention, self.parity)

    @property
    def memory(self) -> MemoryStatus:
        return self.budget.status

    def prepare(
        self,
        head: RowHead | None,
        max_batch_tokens: int | None = None,
        *,
        token_head: TokenRowHead | None = None,
    ) -> None:
        """Capture the CUDA graphs, with `head` at their end. max_batch_tokens: None where that is not known.
        token_head: the one of `DeviceOutput.start_token_copy`."""
        self._head = head
        if self._fused is None:
            return
        capacities = choose_buckets(max_batch_tokens or 2**31)
        with torch.inference_mode(), use_device(self.device):
            self._graphs = Graphs(
                EncoderWithHeads(self._fused, head, token_head),
                capacities,
                self._encoder.max_positions,
                max_concurrent_batch_tokens=self._max_concurrent_batch_tokens(),
            )
        logger.info("captured %d CUDA graphs", len(self._graphs.capacities))

    def _max_concurrent_batch_tokens(self) -> int:
        """Return the tokens of the largest batches that run two at a time."""
        one_by_one = self.eight_bit is not None and find_hopper_device_obstacle(self.device) is None
        return MAX_CONCURRENT_EIGHT_BIT_TOKENS if one_by_one else MAX_TOKENS

    def forward(self, batch: PackedBatch) -> FloatArray:
        """Final hidden states, float32, (tokens, hidden_size). Raises EngineFailure."""
        return np.concatenate(self.run(batch, _copy_to_host, forward_output=OutputLevel.HIDDEN))

    def run(
        self,
        batch: PackedBatch,
        take: Callable[[DeviceOutput, PackedBatch], T],
        *,
        forward_output: OutputLevel,
    ) -> list[T]:
        """Run a batch and return what `take` makes of its results on the device: one value, or several where the
        batch had to be split to fit into memory. `take` gets the results and the sequences that they belong to.

        `take` should queue copies on torch's current stream and not wait for them. forward_output: what it reads.
        Raises EngineFailure.
        """
        self._check(batch)
        self.padding = 0
        try:
            with torch.inference_mode(), use_device(self.device):
                return self._run_parts(batch, take, forward_output)
        except RuntimeError as error:
            raise EngineFailure(f"torch failed on a batch of {batch.tokens} tokens: {error}") from error

    def _run_parts(
        self, batch: PackedBatch, take: Callable[[DeviceOutput, PackedBatch], T], forward_output: OutputLevel
    ) -> list[T]:
        """Run a batch in the parts that the budget allows, and a part that does not fit into memory in halves. A single
        sequence is tried twice."""
        results: list[T] = []
        # The next one is the last.
        waiting = [batch]
        while waiting:
            part, *rest = self.budget.split(waiting.pop())
            waiting.extend(reversed(rest))
            try:
                results.append(self._run_and_take(part, take, forward_output))
                continue
            except torch.OutOfMemoryError as error:
                self.budget.lower(part)
                # Its text only: who keeps the record would keep the error, whose traceback holds tensors of the failed
                # run.
                logger.warning("out of memory with %d tokens, again in halves: %s", part.tokens, str(error))
            # Not in the handler, for the same reason.
            torch.cuda.empty_cache()
            if len(part.lengths) == 1:
                results.append(self._run_and_take(part, take, forward_output))
            else:
                waiting.extend(reversed(split_in_halves(part)))
        return results

    def _run_and_take(
        self, batch: PackedBatch, take: Callable[[DeviceOutput, PackedBatch], T], forward_output: OutputLevel
    ) -> T:
        done = self._submit(batch, forward_output)
        with done.on_stream():
            return take(done, batch)

    def _submit(self, batch: PackedBatch, forward_output: OutputLevel) -> DeviceOutput:
        """Queue the forward pass."""
        flash = self._flash_from is not None and int(batch.lengths.min()) >= self._flash_from
        # A graph would have to be captured for the longest of its texts.
        if self._graphs is not None and not flash:
            done = self._graphs(batch, forward_output)
            if done is not None:
                return done
        on_device = copy_to_device(batch, self.device)
        if self._fused is not None:
            hidden = self._fused(on_device.with_bounds(batch.max_seqlen) if flash else on_device)
        else:
            assert self._eager is not None
            tokens = PackedTokens.copy_to_device(batch, self.device, self._group_width)
            if tokens.groups:
                self.padding += tokens.groups.positions - batch.tokens
            hidden = self._eager(tokens)
        rows = None if self._head is None else self._head(hidden, on_device)
        return DeviceOutput(hidden, rows, on_device)

    def _check(self, batch: PackedBatch) -> None:
        """Check the indices into tables: here a wrong one fails only the batch, in a CUDA kernel it would end the
        process."""
        batch.check_types(self._encoder.embeddings.token_types)
        if batch.attended_lengths is not None and self.kernel is not KernelKind.GROUPED:
            raise EngineFailure(f"attention {self.kernel} sees all tokens, a batch hides some")
        vocabulary, max_seqlen = self._encoder.embeddings.vocabulary, batch.max_seqlen
        # As unsigned numbers negative ones are beyond every vocabulary.
        if batch.token_ids.view(np.uint32).max() >= vocabulary:
            low, high = int(batch.token_ids.min()), int(batch.token_ids.max())
            raise EngineFailure(
                f"a batch of {batch.tokens} tokens has ids from {low} to {high}, the vocabulary {vocabulary} rows"
            )
        if max_seqlen > self._encoder.max_positions:
            raise EngineFailure(
                f"a batch of {batch.tokens} tokens has a sequence of {max_seqlen}, the encoder takes "
                f"{self._encoder.max_positions}"
            )


def _copy_to_host(done: DeviceOutput, _: PackedBatch) -> FloatArray:
    return done.states.float().cpu().numpy()


def check_eight_bit(
    encoder: Encoder, device: torch.device, dtype: torch.dtype, kernel: KernelKind, eight_bit: EightBit
) -> None:
    """Raise UnsupportedArchitecture where the encoder cannot run in 8 bit."""
    reason = find_fused_obstacle(encoder, device, dtype)
    if reason is None and kernel not in FUSED:
        reason = f"8 bit is for the attention fused, not {kernel}"
    reason = reason or find_eight_bit_obstacle(encoder, device, eight_bit)
    if reason is not None:
        raise UnsupportedArchitecture(
            f"engine.precision: {eight_bit} cannot run this {encoder.family} encoder: {reason}"
        )


def choose_kernel(
    encoder: Encoder, device: torch.device, dtype: torch.dtype, requested: KernelKind | None = None
) -> KernelKind:
    """Choose the implementation of attention, once for all layers. Raises UnsupportedArchitecture where the one asked
    for cannot."""
    varlen = (find_varlen_obstacle(layer.attention, device, dtype) for layer in encoder.layers)
    reasons = {
        KernelKind.FUSED: find_fused_obstacle(encoder, device, dtype),
        KernelKind.FLASH: find_flash_obstacle(encoder, device, dtype),
        KernelKind.VARLEN: next((reason for reason in varlen if reason is not None), None),
        KernelKind.GROUPED: None,
    }
    if requested is not None and reasons[requested] is not None:
        raise UnsupportedArchitecture(f"attention {requested} cannot run this encoder: {reasons[requested]}")
    kind = requested or next(kind for kind, reason in reasons.items() if reason is None)
    rejected = "; ".join(f"{kind}: {reason}" for kind, reason in reasons.items() if reason is not None)
    logger.info("attention: %s%s", kind, f" ({rejected})" if rejected else "")
    return kind
