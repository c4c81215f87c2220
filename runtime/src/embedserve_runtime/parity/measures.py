"""Measures how near two sets of vectors of the same texts are. Pure functions on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.config import ParitySettings
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.cosines import Cosines, compute_cosines

# Of the median size of a text's token weights: what is smaller is negligible.
NEGLIGIBLE_SHARE = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class ComparedOutputs:
    """The outputs of a variant for some texts.

    vectors: (texts, dimensions), of length 1. logits: (texts, labels), None where the model gives none. token_weights:
    (texts, token ids), the sparse vectors of a model that gives them with dense ones, written out; None elsewhere.
    """

    vectors: FloatArray
    logits: FloatArray | None = None
    token_weights: FloatArray | None = None

    @property
    def scores(self) -> FloatArray:
        """The numbers compared by rank, (kinds, numbers): those of each label of a classifier, else the similarities of
        all pairs of texts; with token weights also the products of those, and the sums of both."""
        if self.logits is not None:
            return self.logits.T
        dense = compute_similarities(self.vectors)
        if self.token_weights is None:
            return dense[None]
        sparse = compute_similarities(self.token_weights)
        return np.stack([dense, sparse, dense + sparse])

    def take_first(self, texts: int) -> ComparedOutputs:
        """Return the outputs for the first texts."""
        return ComparedOutputs(
            self.vectors[:texts],
            None if self.logits is None else self.logits[:texts],
            None if self.token_weights is None else self.token_weights[:texts],
        )

    @classmethod
    def join(cls, parts: Sequence[ComparedOutputs]) -> ComparedOutputs:
        """Return the outputs for the texts of all parts, one after another."""
        return cls(
            np.concatenate([part.vectors for part in parts]),
            _concatenate([part.logits for part in parts]),
            _concatenate([part.token_weights for part in parts]),
        )


def _concatenate(parts: Sequence[FloatArray | None]) -> FloatArray | None:
    arrays = [part for part in parts if part is not None]
    return np.concatenate(arrays) if arrays else None


@dataclass(frozen=True, slots=True)
class ParityReport:
    """The closeness of a variant's outputs to those of the reference; of dense vectors and token weights, the worse.

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


def compare(reference: ComparedOutputs, variant: ComparedOutputs) -> ParityReport:
    """Compare outputs with those of the reference; outputs that are not finite get the worst report there is."""
    pairs = [(reference.vectors, variant.vectors)]
    if reference.token_weights is not None and variant.token_weights is not None:
        pairs.append((reference.token_weights, variant.token_weights))
    if not all(np.isfinite(array).all() for array in (variant.scores, *(have for _, have in pairs))):
        return ParityReport(-1.0, -1.0, float(np.finfo(np.float32).max), -1.0)
    by_output = compare_texts(reference, variant)
    return ParityReport(
        min(float(found_cosines.mean()) for found_cosines in by_output),
        min(float(found_cosines.min()) for found_cosines in by_output),
        max(float(np.abs(expected - actual).max()) for expected, actual in pairs),
        min(
            rank_correlation(expected, actual)
            for expected, actual in zip(reference.scores, variant.scores, strict=True)
        ),
    )


def compare_texts(reference: ComparedOutputs, variant: ComparedOutputs) -> list[Cosines]:
    """Return the cosine of each text's two vectors, and of its two rows of token weights where there are such."""
    by_output = [compute_cosines(reference.vectors, variant.vectors)]
    if reference.token_weights is not None and variant.token_weights is not None:
        by_output.append(weight_cosines(reference.token_weights, variant.token_weights))
    return by_output


def weight_cosines(reference: FloatArray, variant: FloatArray) -> Cosines:
    """Return the cosine of each text's two rows of token weights, (texts, token ids) each; 1 where both are negligible
    compared with the reference's usual ones, whatever their direction: they add next to nothing to a score."""
    sizes = [np.linalg.norm(rows, axis=1) for rows in (reference, variant)]
    is_negligible = np.maximum(*sizes) < NEGLIGIBLE_SHARE * np.median(sizes[0])
    return np.where(is_negligible, 1.0, compute_cosines(reference, variant))


def is_out_of_reach(cosines: Cosines, texts: int, floor: ParitySettings) -> bool:
    """Return whether the floor is out of reach after the cosines of the first texts, even if all others were 1."""
    best_mean = (cosines.sum() + texts - len(cosines)) / texts
    return bool(cosines.min() < floor.min_cosine or best_mean < floor.min_mean_cosine)


def rank_correlation(left: FloatArray, right: FloatArray) -> float:
    """Return Spearman's coefficient: Pearson's correlation of the ranks, equal numbers sharing theirs. 1 where neither
    side varies, 0 where one does not; 1 of fewer than two numbers."""
    if len(left) < 2:
        return 1.0
    ranks = [_compute_ranks(values) for values in (left, right)]
    spread = [float(np.std(values)) for values in ranks]
    if min(spread) == 0:
        return 1.0 if max(spread) == 0 else 0.0
    centred = [values - values.mean() for values in ranks]
    return float(np.mean(centred[0] * centred[1]) / (spread[0] * spread[1]))


def describe_shortfalls(parity: ParityReport, floor: ParitySettings) -> str:
    """Return a message about what is below the floor; empty where nothing is."""
    limits = (
        ("mean cosine", parity.mean_cosine, floor.min_mean_cosine),
        ("min cosine", parity.min_cosine, floor.min_cosine),
        ("rank agreement", parity.rank_agreement, floor.min_rank_agreement),
    )
    return ", ".join(
        f"{name} {value:.5f} is below {bound:g}" for name, value, bound in limits if value < bound
    )


def _compute_ranks(values: FloatArray) -> NDArray[np.float64]:
    """Return the rank of each number, from 1; equal numbers get the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: NDArray[np.float64] = ((last - counts + 1 + last) / 2)[inverse]
    return ranks
