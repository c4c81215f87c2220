"""One row of the table of encoders (`cases.py`): a tiny random model and the function that computes the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PretrainedConfig, PreTrainedModel

from embedserve_runtime.forward.arrays import FloatArray, Int32Array
from embedserve_runtime.forward.batch import PackedBatch
from tests.support.models import tiny

Reference = Callable[[PackedBatch], FloatArray]

# Alone, two, odd, twice the same, near and at the longest sequence of most rows.
LENGTHS = (1, 70, 17, 2, 40, 17, 69)
# The same for models of at most 40 tokens, and around a window of 5 or 6.
SHORT_LENGTHS = (1, 17, 40, 2, 5, 39, 6, 7, 17, 8, 4)


@dataclass(frozen=True, slots=True)
class Case:
    """One encoder of the table.

    build: saves the model into the folder and returns the packed reference hidden states as a function of a batch.
    lengths: of the sequences of the test's batch; ids: what their token ids are drawn from.
    """

    name: str
    build: Callable[[Path], Reference]
    lengths: tuple[int, ...] = LENGTHS
    ids: range = range(97)

    def sequences(self) -> list[Int32Array]:
        """The same random sequences at every call."""
        source = np.random.default_rng(0)
        return [source.choice(self.ids, length).astype(np.int32) for length in self.lengths]

    def batch(self) -> PackedBatch:
        return PackedBatch.pack(self.sequences())


def reference_of(model: torch.nn.Module) -> Reference:
    """transformers' own hidden states, each sequence on its own, so that the reference knows no padding."""

    def hidden_states(batch: PackedBatch) -> FloatArray:
        parts = np.split(batch.token_ids.astype(np.int64), batch.cu_seqlens[1:-1])
        with torch.no_grad():
            states = [model(torch.from_numpy(part)[None]).last_hidden_state[0].numpy() for part in parts]
        return np.concatenate(states)

    return hidden_states


def model_case(
    model: type[PreTrainedModel],
    config: type[PretrainedConfig],
    name: str,
    **settings: Any,
) -> Case:
    """A row around any model of transformers. Its longest sequence has 40 tokens, its windows should be of about 5.
    Id 1 is left out, since some models take it for padding."""
    shape = {"vocab_size": 97, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None} | settings
    lengths = shape.pop("lengths", SHORT_LENGTHS)
    ids = shape.pop("ids", range(2, 97))

    def build(folder: Path) -> Reference:
        return reference_of(tiny(folder, model, config(**shape)))

    return Case(name, build, lengths, ids)


def rows_of(
    model: type[PreTrainedModel], config: type[PretrainedConfig], **shared: Any
) -> Callable[..., Case]:
    """`model_case` of one family, with the settings that its rows share."""

    def row(name: str, **settings: Any) -> Case:
        return model_case(model, config, name, **(shared | settings))

    return row
