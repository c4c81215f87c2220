"""How far an engine's vectors in 8 bit are from its own in 16, and what is near enough."""

from __future__ import annotations

import numpy as np

from embedserve_runtime.comparing import cosines
from embedserve_runtime.engines.base import FloatArray, PackedBatch
from embedserve_runtime.heads.dense import pool
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.pipeline import Pooling
from embedserve_runtime.parity.corpus import evenly, parity_texts
from embedserve_runtime.results import Output
from embedserve_runtime.runner import Runner
from embedserve_runtime.tokenizing import CutRules, TextTokenizer

# Below, 8 bit is refused: neighbours in a large collection are nearer to each other than this.
LEAST_COSINE = 0.999
# Tokens of all texts together, which run as one batch.
SAMPLE_TOKENS = 8192


def sample(card: ModelCard) -> PackedBatch:
    """Texts of the corpus as the model gets them."""
    tokenizer = TextTokenizer.from_card(card)
    texts = tokenizer.encode(parity_texts(), "", CutRules(truncate=True))
    return PackedBatch.pack([texts[number] for number in evenly([*map(len, texts)], SAMPLE_TOKENS)])


def parity_of(runner: Runner, exact: Runner, batch: PackedBatch) -> float:
    """Least cosine of dense vectors, or where a model has none, of means of hidden states. Raises EngineFailure."""
    output = Output.DENSE if Output.DENSE in runner.card.outputs else Output.HIDDEN
    return float(cosines(*(_vectors(one, batch, output) for one in (runner, exact))).min())


def _vectors(runner: Runner, batch: PackedBatch, output: Output) -> FloatArray:
    results = runner.run(batch, output)
    if results.dense is not None:
        return results.dense
    assert results.hidden is not None, "asked for"
    return pool(np.concatenate(results.hidden), batch.cu_seqlens, Pooling.MEAN)
