"""Token types of pairs on every engine, against transformers, and that single texts do not need them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    GteConfig,
    GteModel,
    NomicBertConfig,
    NomicBertModel,
    PreTrainedModel,
    RobertaConfig,
    RobertaModel,
)

from embedserve_runtime.errors import EngineFailure
from embedserve_runtime.forward.batch import PackedBatch, TokenSequence
from tests.runtime.engines.engines import ENGINES, engine_of
from tests.support.models import tiny
from tests.support.tolerances import NEIGHBOUR_MAX_ABS_DIFF, TINY_MODEL_MAX_ABS_DIFF

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 50,
    "max_position_embeddings": 42,
}
Build = Callable[[Path], PreTrainedModel]
MODELS: Mapping[str, Build] = {
    "bert": lambda folder: tiny(folder, BertModel, BertConfig(**SHAPE)),
    "bert, three types": lambda folder: tiny(folder, BertModel, BertConfig(**SHAPE, type_vocab_size=3)),
    "roberta, two types": lambda folder: tiny(
        folder, RobertaModel, RobertaConfig(**SHAPE, type_vocab_size=2, pad_token_id=1)
    ),
    "nomic, rotary positions": lambda folder: tiny(
        folder, NomicBertModel, NomicBertConfig(**SHAPE, type_vocab_size=2)
    ),
    "gte, rotary positions": lambda folder: tiny(folder, GteModel, GteConfig(**SHAPE, type_vocab_size=2)),
}
on_every_engine = pytest.mark.parametrize("engine", ENGINES)


def pair(length: int, types: int) -> TokenSequence:
    source = np.random.default_rng(length)
    ids = source.integers(2, 97, length).astype(np.int32)
    return TokenSequence(ids, np.sort(source.integers(0, types, length)).astype(np.int32))


@on_every_engine
@pytest.mark.parametrize("name", MODELS)
def test_hidden_states_of_pairs_equal_those_of_transformers_alone_and_among_others(
    tmp_path: Path, name: str, engine: str
) -> None:
    model = MODELS[name](tmp_path)
    built = engine_of(tmp_path, engine)
    single = np.arange(2, 15, dtype=np.int32)
    sequences = [pair(length, model.config.type_vocab_size) for length in (40, 1, 2, 17)]
    batched = built.forward(PackedBatch.pack([sequences[0], single, *sequences[1:]]))
    rows = np.split(batched, [40, 53, 54, 56])
    typed = [*sequences[:1], TokenSequence(single, np.zeros_like(single)), *sequences[1:]]
    for sequence, row in zip(typed, rows, strict=True):
        assert sequence.types is not None
        ids, types = (
            torch.from_numpy(part.astype(np.int64))[None] for part in (sequence.ids, sequence.types)
        )
        with torch.no_grad():
            want = model(ids, token_type_ids=types).last_hidden_state[0].numpy()
        assert np.abs(row - want).max() <= TINY_MODEL_MAX_ABS_DIFF
        alone = built.forward(PackedBatch.pack([sequence]))
        assert np.abs(row - alone).max() <= NEIGHBOUR_MAX_ABS_DIFF


@on_every_engine
def test_a_type_that_the_encoder_does_not_have_fails_the_batch(tmp_path: Path, engine: str) -> None:
    MODELS["bert"](tmp_path)
    built = engine_of(tmp_path, engine)
    ids = np.array([5, 6], dtype=np.int32)
    for types in ([0, 2], [-1, 0]):
        batch = PackedBatch.pack([TokenSequence(ids, np.array(types, dtype=np.int32))])
        with pytest.raises(EngineFailure, match="token types"):
            built.forward(batch)


def test_a_batch_of_single_texts_carries_no_types() -> None:
    assert PackedBatch.pack([np.array([5, 6], dtype=np.int32)]).token_types is None
