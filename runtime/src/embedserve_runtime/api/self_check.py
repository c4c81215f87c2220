"""Checks the vectors of the running model: fixed texts, embedded twice in different batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.cosines import compute_cosines
from embedserve_runtime.forward.outputs import OutputKind, SparseVector
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.service import EmbedQuery, InferenceService, Pair, ScoreQuery

# Of different lengths and scripts.
PROBES = (
    "What is a vector space?",
    "Ein Vektorraum ist eine Menge, deren Elemente addiert und mit Zahlen vielfach genommen werden. " * 4,
    "ベクトル空間",
    "a",
)
# Bounds of cosines between vectors of the same input and of different inputs, of the error of lengths that should be 1,
# and of the error of scores. They are wide enough for 16 bit; a broken model is far outside.
MIN_SAME_COSINE = 0.999
MAX_DIFFERENT_COSINE = 0.99999
MAX_NORM_ERROR = 0.02
MAX_SCORE_ERROR = 0.02


async def find_problems(service: InferenceService) -> list[str]:
    """Find what is wrong with the vectors of some fixed texts. Raises any RequestError, among them NotFinite."""
    first, second = await _embed_probes(service, PROBES), await _embed_probes(service, PROBES[::-1])
    problems = []
    lengths = np.linalg.norm(first, axis=1)
    if _is_normalized(service.card) and np.abs(lengths - 1).max() > MAX_NORM_ERROR:
        problems.append(f"vectors should have length 1, and have {lengths.min():.3f} to {lengths.max():.3f}")
    if not _are_equal(first, second[::-1]):
        problems.append("the same text gave another vector in another batch")
    if compute_cosines(first, np.roll(first, 1, axis=0)).min() > MAX_DIFFERENT_COSINE and first.shape[1] > 1:
        problems.append("different texts gave the same vector")
    return problems


async def _embed_probes(service: InferenceService, texts: Sequence[str]) -> FloatArray:
    """Compute the model's main output as one row for each text."""
    output, size = service.card.main_output, service.card.pipeline.dimensions
    if output is OutputKind.LOGITS:
        ranks = size == 1
        items = [Pair(PROBES[0], text) if ranks else text for text in texts]
        return (await service.score(ScoreQuery(items, ranks=ranks, raw=True, truncate=True))).logits
    embedded = await service.embed(EmbedQuery(inputs=[*texts], truncate=True, outputs=output, reuse=False))
    if output is OutputKind.SPARSE:
        return np.stack([_to_dense(vector, size) for vector in embedded.sparse])
    if output is OutputKind.MULTI_VECTOR:
        return np.stack([matrix.mean(axis=0) for matrix in embedded.multi_vectors])
    return embedded.dense


def _to_dense(vector: SparseVector, size: int) -> FloatArray:
    row = np.zeros(size, dtype=np.float32)
    row[vector.indices] = vector.values
    return row


def _are_equal(left: FloatArray, right: FloatArray) -> bool:
    if left.shape[1] == 1:
        return bool(np.allclose(left, right, rtol=MAX_SCORE_ERROR, atol=MAX_SCORE_ERROR))
    return bool(compute_cosines(left, right).min() >= MIN_SAME_COSINE)


def _is_normalized(card: ModelCard) -> bool:
    return card.main_output is OutputKind.DENSE and card.pipeline.normalize
