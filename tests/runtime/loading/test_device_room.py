"""A model that the device has no room for is refused with what would do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from embedserve_runtime.config import EngineSettings
from embedserve_runtime.errors import DeviceMemoryTooSmall
from embedserve_runtime.forward.engine import MeasuredParity
from embedserve_runtime.loading.engines import EightBitSetup, open_engines
from embedserve_runtime.model import families
from embedserve_runtime.model.checkpoint import Checkpoint, Weights
from embedserve_runtime.model.folder import read_folder
from tests.support.models import tiny_bert

NO_ROOM = "CUDA out of memory. Tried to allocate 20.00 MiB."
PARITY = MeasuredParity("int8", "bfloat16", mean_cosine=0.995, min_cosine=0.9893, texts="texts")


@pytest.mark.parametrize(
    ("precision", "setup", "want"),
    [
        pytest.param("bfloat16", None, "in 8 bit .* it takes half as much", id="16 bit"),
        pytest.param(
            "auto",
            EightBitSetup(PARITY),
            r"min_cosine .* of 0\.9893 or less has it served in int8, which has room",
            id="16 bit instead of an 8 bit that is below the floor",
        ),
    ],
)
def test_an_out_of_memory_while_weights_are_loaded_says_what_would_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, setup: EightBitSetup | None, want: str
) -> None:
    tiny_bert(tmp_path)
    encoder = families.describe(read_folder(tmp_path))
    weights = Weights(encoder, Checkpoint.open(tmp_path))

    def read_tensor(*_: object) -> None:
        raise torch.OutOfMemoryError(NO_ROOM)

    monkeypatch.setattr(Checkpoint, "read_tensor", read_tensor)
    settings = EngineSettings.model_validate({"kind": "torch", "precision": precision, "device": "cpu"})
    with pytest.raises(DeviceMemoryTooSmall, match=want) as refused:
        open_engines(encoder, weights, settings, eight_bit=setup)
    assert refused.value.message.startswith(
        f"cpu has no room for the {weights.size:,} parameters of the model in "
    )
    assert NO_ROOM in refused.value.message
    assert not refused.value.retryable
