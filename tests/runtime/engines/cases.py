"""The table of encoders that every engine is tested with: one row a family and shape.

A row saves a tiny random model of transformers into a folder and gives back the function that computes the
reference. `test_encoders.py` runs every row on every engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from embedserve_runtime.engines.base import FloatArray, Int32Array, PackedBatch
from tests.support.models import tiny_bert

Reference = Callable[[PackedBatch], FloatArray]

# Alone, two, odd, twice the same, near and at the longest sequence of most rows.
LENGTHS = (1, 70, 13, 2, 40, 13, 69)


@dataclass(frozen=True, slots=True)
class Case:
    """One encoder of the table.

    build: saves the model into the folder and returns the packed reference hidden states as a function of a batch.
    lengths: of the sequences of the test's batch; ids: what their token ids are drawn from.
    not_on: names of the engines that must say why they cannot run it.
    """

    name: str
    build: Callable[[Path], Reference]
    lengths: tuple[int, ...] = LENGTHS
    ids: range = range(97)
    not_on: frozenset[str] = frozenset()

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


def bert(name: str, **settings: object) -> Case:
    return Case(f"bert, {name}", lambda folder: reference_of(tiny_bert(folder, **settings)))


BERT = (
    bert("odd heads"),
    bert("one layer, one head", num_hidden_layers=1, num_attention_heads=1),
    bert("tanh gelu", hidden_act="gelu_new"),
    bert("relu", hidden_act="relu"),
    bert("silu", hidden_act="silu"),
    bert("large epsilon", layer_norm_eps=0.1),
    bert("one token type", type_vocab_size=1),
)

CASES: tuple[Case, ...] = (*BERT,)
