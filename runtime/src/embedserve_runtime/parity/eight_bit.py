"""Measures how far an engine's vectors in 8 bit are from its own in 16 bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch, Tokens
from embedserve_runtime.forward.cosines import compute_cosines
from embedserve_runtime.forward.engine import MeasuredParity
from embedserve_runtime.forward.outputs import ModelOutput, OutputKind
from embedserve_runtime.heads.dense import pool
from embedserve_runtime.heads.sparse import write_out
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.heads.description import LexicalHead
from embedserve_runtime.model.pipeline import Pooling
from embedserve_runtime.parity.corpus import (
    PARITY_TEXTS_NAME,
    choose_evenly,
    read_calibration_texts,
    read_parity_texts,
)
from embedserve_runtime.parity.long_texts import MAX_TOKENS, join_words
from embedserve_runtime.parity.measures import weight_cosines
from embedserve_runtime.runners.base import Runner
from embedserve_runtime.tokenizing import TextTokenizer, TruncationRules

# Tokens of all texts together, which run as one batch.
SAMPLE_TOKENS = 8192


def build_sample(card: ModelCard) -> PackedBatch:
    """Build a batch of texts of the corpus, tokenized as the model gets them, and of one as long as the model takes."""
    corpus, longest = read_parity_texts(), min(card.max_length, MAX_TOKENS)
    more = _tokenize(replace(card, max_length=longest), [join_words(corpus, longest)])
    return _build_batch(_tokenize(card, corpus), SAMPLE_TOKENS - longest, more)


def build_calibration(card: ModelCard) -> PackedBatch:
    """Build a batch of the texts that ranges are taken from, none of which is measured."""
    return _build_batch(_tokenize(card, read_calibration_texts()), SAMPLE_TOKENS)


def _tokenize(card: ModelCard, texts: Sequence[str]) -> Sequence[Tokens]:
    return TextTokenizer.from_card(card).encode(texts, "", TruncationRules(truncate=True))


def _build_batch(texts: Sequence[Tokens], tokens: int, more: Sequence[Tokens] = ()) -> PackedBatch:
    """Pack texts of all lengths with at most `tokens` tokens together, and all of `more`."""
    selection = choose_evenly([*map(len, texts)], tokens)
    return PackedBatch.pack([*(texts[number] for number in selection), *more])


def measure_parity(runner: Runner, exact: Runner, batch: PackedBatch) -> MeasuredParity:
    """Compare dense vectors, or where a model has none, means of hidden states; token weights too, of which the numbers
    are where those are less. batch: of `build_sample`. Raises EngineFailure."""
    card = runner.card
    outputs = OutputKind.DENSE if OutputKind.DENSE in card.outputs else OutputKind.HIDDEN
    if any(isinstance(head, LexicalHead) for head in card.token_heads):
        outputs |= OutputKind.SPARSE
    outputs_8, reference = (each.run(batch, outputs) for each in (runner, exact))
    by_output = [compute_cosines(_get_vectors(outputs_8, batch), _get_vectors(reference, batch))]
    if outputs_8.sparse is not None and reference.sparse is not None:
        ids = np.unique(batch.token_ids)
        by_output.append(weight_cosines(write_out(reference.sparse, ids), write_out(outputs_8.sparse, ids)))
    return MeasuredParity(
        precision=runner.engine.precision,
        reference=exact.engine.precision,
        mean_cosine=round(min(float(cosines.mean()) for cosines in by_output), 6),
        min_cosine=round(min(float(cosines.min()) for cosines in by_output), 6),
        texts=PARITY_TEXTS_NAME,
    )


def _get_vectors(results: ModelOutput, batch: PackedBatch) -> FloatArray:
    """Return dense vectors, or where there are none means of hidden states, (sequences, dimensions)."""
    if results.dense is not None:
        return results.dense
    assert results.hidden is not None, "asked for"
    return pool(np.concatenate(results.hidden), batch.cu_seqlens, Pooling.MEAN)
