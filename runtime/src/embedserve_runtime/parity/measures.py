"""Measures how near two sets of vectors of the same texts are. Pure functions on arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.config import ParitySettings
from embedserve_runtime.engines.base import FloatArray
from embedserve_runtime.engines.cosines import Cosines, compute_cosines


@dataclass(frozen=True, slots=True, eq=False)
class ModelOutputs:
    """The outputs of a variant for some texts.

    vectors: (texts, dimensions). logits: (texts, labels), None where the model gives none.
    """

    vectors: FloatArray
    logits: FloatArray | None = None

    @property
    def scores(self) -> FloatArray:
        """The numbers compared by rank, (kinds, numbers): those of each label of a classifier, else the similarities of
        all pairs of texts."""
        return compute_similarities(self.vectors)[None] if self.logits is None else self.logits.T

    def take_first(self, texts: int) -> ModelOutputs:
        """Return the outputs for the first texts."""
        return ModelOutputs(self.vectors[:texts], None if self.logits is None else self.logits[:texts])


@dataclass(frozen=True, slots=True)
class ParityReport:
    """How near the outputs of a variant are to those of the reference.

    mean_cosine, min_cosine: of a text's two vectors. max_difference: of any number of the vectors. rank_agreement:
    Spearman's correlation of the scores, of the kind where it is least.
    """

    mean_cosine: float
    min_cosine: float
    max_difference: float
    rank_agreement: float


def compute_similarities(vectors: FloatArray) -> FloatArray:
    """Return the inner products of all pairs of rows, each once: (rows * (rows - 1) / 2,)."""
    products: FloatArray = (vectors @ vectors.T)[np.triu_indices(len(vectors), 1)]
    return products


def compare(reference: ModelOutputs, found: ModelOutputs) -> ParityReport:
    """Compare outputs with those of the reference; outputs that are not finite get the worst report there is."""
    if not (np.isfinite(found.vectors).all() and np.isfinite(found.scores).all()):
        return ParityReport(-1.0, -1.0, float(np.finfo(np.float32).max), -1.0)
    found_cosines = compute_cosines(reference.vectors, found.vectors)
    return ParityReport(
        float(found_cosines.mean()),
        float(found_cosines.min()),
        float(np.abs(reference.vectors - found.vectors).max()),
        min(rank_correlation(want, have) for want, have in zip(reference.scores, found.scores, strict=True)),
    )


def is_out_of_reach(found: Cosines, texts: int, floor: ParitySettings) -> bool:
    """Return whether the floor is out of reach after the cosines of the first texts, even if all others were 1."""
    best_mean = (found.sum() + texts - len(found)) / texts
    return bool(found.min() < floor.min_cosine or best_mean < floor.min_mean_cosine)


def rank_correlation(one: FloatArray, other: FloatArray) -> float:
    """Return Spearman's coefficient: Pearson's correlation of the ranks, equal numbers sharing theirs. 1 where neither
    side varies, 0 where one does not; 1 of fewer than two numbers."""
    if len(one) < 2:
        return 1.0
    ranks = [_compute_ranks(values) for values in (one, other)]
    spread = [float(np.std(values)) for values in ranks]
    if min(spread) == 0:
        return 1.0 if max(spread) == 0 else 0.0
    centred = [values - values.mean() for values in ranks]
    return float(np.mean(centred[0] * centred[1]) / (spread[0] * spread[1]))


def describe_shortfalls(parity: ParityReport, floor: ParitySettings) -> str:
    """Say what is below the floor, in words; empty where nothing is."""
    limits = (
        ("mean cosine", parity.mean_cosine, floor.min_mean_cosine),
        ("min cosine", parity.min_cosine, floor.min_cosine),
        ("rank agreement", parity.rank_agreement, floor.min_rank_agreement),
    )
    return ", ".join(
        f"{name} {value:.5f} is below {bound:g}" for name, value, bound in limits if value < bound
    )


def _compute_ranks(values: FloatArray) -> NDArray[np.float64]:
    """From 1; equal numbers get the mean of their places."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: NDArray[np.float64] = ((last - counts + 1 + last) / 2)[places]
    return ranks
