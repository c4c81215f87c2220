"""Measures how far an engine's vectors in 8 bit are from its own in 16 bit."""

from __future__ import annotations

import numpy as np

from embedserve_runtime.engines.base import FloatArray, PackedBatch
from embedserve_runtime.engines.cosines import compute_cosines
from embedserve_runtime.engines.results import Output
from embedserve_runtime.heads.dense import pool
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.pipeline import Pooling
from embedserve_runtime.parity.corpus import choose_evenly, read_parity_texts
from embedserve_runtime.runners.base import Runner
from embedserve_runtime.tokenizing import TextTokenizer, TruncationRules

# Below, 8 bit is refused: neighbours in a large collection are nearer to each other than this.
MIN_COSINE = 0.999
# Tokens of all texts together, which run as one batch.
SAMPLE_TOKENS = 8192


def build_sample(card: ModelCard) -> PackedBatch:
    """Build a batch of texts of the corpus, tokenized as the model gets them."""
    tokenizer = TextTokenizer.from_card(card)
    texts = tokenizer.encode(read_parity_texts(), "", TruncationRules(truncate=True))
    return PackedBatch.pack([texts[number] for number in choose_evenly([*map(len, texts)], SAMPLE_TOKENS)])


def measure_parity(runner: Runner, exact: Runner, batch: PackedBatch) -> float:
    """Return the least cosine of dense vectors, or where a model has none, of means of hidden states. Raises
    EngineFailure."""
    output = Output.DENSE if Output.DENSE in runner.card.outputs else Output.HIDDEN
    return float(compute_cosines(*(_compute_vectors(one, batch, output) for one in (runner, exact))).min())


def _compute_vectors(runner: Runner, batch: PackedBatch, output: Output) -> FloatArray:
    results = runner.run(batch, output)
    if results.dense is not None:
        return results.dense
    assert results.hidden is not None, "asked for"
    return pool(np.concatenate(results.hidden), batch.cu_seqlens, Pooling.MEAN)
