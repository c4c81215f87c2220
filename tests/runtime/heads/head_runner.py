"""A folder with a head as the tests run it: any engine, float32, the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from embedserve_runtime.config import ModelSettings
from embedserve_runtime.forward.arrays import FloatArray, Int32Array
from embedserve_runtime.forward.batch import PackedBatch, Tokens
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.loading.assembly import build_runners
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.reading import read_card
from embedserve_runtime.model.tensors import ModelTensors
from embedserve_runtime.runners.base import Runner
from tests.runtime.engines.engines import ENGINES

LENGTHS = (17, 1, 40, 2, 39, 5)


def card_of(folder: Path, **settings: object) -> ModelCard:
    """The folder's card; where it has no tokenizer, with one of one word: a large one would take most of the test's
    time."""
    if not (folder / "tokenizer.json").exists():
        Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]")).save(str(folder / "tokenizer.json"))
    return read_card(folder, "local", ModelSettings.model_validate({"source": str(folder), **settings}))


def runner_of(folder: Path, engine: str, **settings: object) -> Runner:
    card = card_of(folder, **settings)
    (runner,) = build_runners(
        card, ModelTensors(folder), lambda *arguments: [ENGINES[engine].build(*arguments)]
    )
    return runner


def sequences(lengths: Sequence[int] = LENGTHS) -> list[Int32Array]:
    """The same random ids at every call; 0 and 1, which some models take for padding, are left out."""
    source = np.random.default_rng(0)
    return [source.integers(2, 97, length).astype(np.int32) for length in lengths]


def dense_of(runner: Runner, texts: Sequence[Tokens]) -> FloatArray:
    dense = runner.run(PackedBatch.pack(texts), OutputKind.DENSE).dense
    assert dense is not None
    return dense


def logits_of(runner: Runner, texts: Sequence[Tokens]) -> FloatArray:
    logits = runner.run(PackedBatch.pack(texts), OutputKind.LOGITS).logits
    assert logits is not None
    return logits


def greatest(difference: NDArray[np.float32]) -> float:
    return float(np.abs(difference).max())
