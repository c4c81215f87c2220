"""Runs an encoder with torch, on CUDA or on the CPU, packed and in eager mode."""

from __future__ import annotations

import logging

import torch

from embedserve_runtime.engines.base import FloatArray, PackedBatch
from embedserve_runtime.engines.torch.kernels import KernelKind, why_not_varlen
from embedserve_runtime.engines.torch.modules import PackedEncoder
from embedserve_runtime.engines.torch.packing import PackedTokens
from embedserve_runtime.engines.torch.parameters import Parameters
from embedserve_runtime.errors import EngineFailure
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.checkpoint import Weights

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

logger = logging.getLogger(__name__)


class TorchEngine:
    """One encoder on one device. `forward` may be called from any thread, one at a time."""

    def __init__(
        self,
        encoder: Encoder,
        weights: Weights,
        device: torch.device,
        dtype: torch.dtype,
        threads: int | None = None,
    ) -> None:
        """Read the weights onto `device`. threads: compute threads of the process on the CPU, None for torch's own.

        dtype: of weights, products and hidden states; norms, rotary positions and softmax stay in float32.
        """
        if threads is not None:
            torch.set_num_threads(threads)
        self._encoder = encoder
        self._device = device
        self.kernel = _kernel_kind(encoder, device, dtype)
        with torch.inference_mode():
            self._run = PackedEncoder(encoder, Parameters(weights, device, dtype), self.kernel)
        # The widest form decides how sequences are grouped; nearly all encoders have one.
        widths = [layer.attention.heads * layer.attention.head_size for layer in encoder.layers]
        self._group_width = max(widths, default=1) if self.kernel is KernelKind.GROUPED else None

    @classmethod
    def on_the_best_device(
        cls, encoder: Encoder, weights: Weights, precision: str, threads: int | None
    ) -> TorchEngine:
        """On the GPU if torch sees one. precision: name of a dtype, or `auto`."""
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        dtype = _automatic_dtype(device) if precision == "auto" else DTYPES[precision]
        return cls(encoder, weights, device, dtype, threads)

    @property
    def hidden_size(self) -> int:
        return self._encoder.hidden_size

    def forward(self, batch: PackedBatch) -> FloatArray:
        """Final hidden states, float32, (tokens, hidden_size). Raises EngineFailure."""
        self._check(batch)
        try:
            with torch.inference_mode():
                hidden = self._run(PackedTokens.of(batch, self._device, self._group_width))
                return hidden.float().cpu().numpy()
        except RuntimeError as error:
            raise EngineFailure(f"torch failed on a batch of {batch.tokens} tokens: {error}") from error

    def _check(self, batch: PackedBatch) -> None:
        """An index outside a table fails only the batch; on CUDA the kernel's own check would end the process."""
        vocabulary, longest = self._encoder.embeddings.vocabulary, int(batch.lengths.max())
        low, high = int(batch.token_ids.min()), int(batch.token_ids.max())
        if low < 0 or high >= vocabulary:
            raise EngineFailure(
                f"a batch of {batch.tokens} tokens has ids from {low} to {high}, the vocabulary {vocabulary} rows"
            )
        if longest > self._encoder.max_tokens:
            raise EngineFailure(
                f"a batch of {batch.tokens} tokens has a sequence of {longest}, the encoder takes "
                f"{self._encoder.max_tokens}"
            )


def _automatic_dtype(device: torch.device) -> torch.dtype:
    if device.type == "cpu":
        return torch.float32
    # Turing has float16 units only; from Ampere on bfloat16 costs the same and cannot overflow.
    return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16


def _kernel_kind(encoder: Encoder, device: torch.device, dtype: torch.dtype) -> KernelKind:
    """One implementation for all layers, chosen once."""
    reasons = (why_not_varlen(layer.attention, device, dtype) for layer in encoder.layers)
    reason = next((reason for reason in reasons if reason is not None), None)
    kind = KernelKind.VARLEN if reason is None else KernelKind.GROUPED
    logger.info("attention: %s%s", kind, "" if reason is None else f" ({reason})")
    return kind
