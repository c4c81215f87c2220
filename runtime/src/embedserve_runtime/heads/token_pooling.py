"""Pools the token vectors of a document: similar vectors become one.

Source: HierarchicalTokenPooling of sentence-transformers 6.2 (Ward's clustering of cosine distances), which PyLate's
pooling equals without normalizing. Clusters are in the order of their first tokens here, and in the order of the tree
there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.errors import BatchTooLarge
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.heads.dense import normalize
from embedserve_runtime.model.heads.description import LateInteraction, TokenPooling

# For one document: the distances of this number of vectors take 32 MiB.
MAX_POOLED_VECTORS = 2048


class ClusterMerge(NamedTuple):
    """A merge of two clusters, each given by one of its vectors, with their distance."""

    first: int
    second: int
    distance: float


def pool_for_role(vectors: FloatArray, late: LateInteraction | None, *, is_query: bool) -> FloatArray:
    """Pool token vectors as the model does for inputs of that role. Raises BatchTooLarge."""
    if late is None or late.pooling is None or ("query" if is_query else "document") not in late.pooled_roles:
        return vectors
    return pool_tokens(vectors, late.pooling)


def pool_tokens(vectors: FloatArray, pooling: TokenPooling) -> FloatArray:
    """Pool (vectors, size) into (protected + max(1, rest // factor), size), or fewer where distances are equal.

    Raises BatchTooLarge.
    """
    protected, rest = vectors[: pooling.protected], vectors[pooling.protected :]
    clusters = max(int(len(rest) // pooling.factor), 1)
    if clusters < len(rest):
        if len(rest) > MAX_POOLED_VECTORS:
            raise BatchTooLarge(
                f"vectors are pooled for {MAX_POOLED_VECTORS} tokens in one text, got {len(rest)}; send shorter texts"
            )
        rest = _average_clusters(rest, cut_tree(build_ward_linkage(rest), len(rest), clusters))
    result = np.concatenate((protected, rest))
    return normalize(result) if pooling.normalize else result


def build_ward_linkage(vectors: FloatArray) -> list[ClusterMerge]:
    """Return all merges of Ward's clustering on cosine distances of unit vectors, in no particular order.

    It follows a chain of nearest neighbors and merges the last two when they are nearest to each other (Murtagh 1983).
    """
    count = len(vectors)
    distances = np.clip(1 - vectors @ vectors.T, 0, 2).astype(np.float64)
    np.fill_diagonal(distances, np.inf)
    sizes = np.ones(count)
    merges: list[ClusterMerge] = []
    chain: list[int] = []
    while len(merges) < count - 1:
        if not chain:
            chain.append(int(np.flatnonzero(sizes)[0]))
        last = chain[-1]
        nearest = int(distances[last].argmin())
        if len(chain) > 1 and distances[last, nearest] >= distances[last, chain[-2]]:
            merges.append(_merge_clusters(distances, sizes, *sorted((chain.pop(), chain.pop()))))
        else:
            chain.append(nearest)
    return merges


def _merge_clusters(
    distances: NDArray[np.float64], sizes: NDArray[np.float64], merged: int, target: int
) -> ClusterMerge:
    """Merge a cluster into another and update the distances, by the formula of Lance and Williams for Ward's method."""
    between = float(distances[merged, target])
    rest = sizes.copy()
    rest[[merged, target]] = 0
    indices = np.flatnonzero(rest)
    other_sizes = sizes[indices]
    squares = (
        (sizes[merged] + other_sizes) * distances[merged, indices] ** 2
        + (sizes[target] + other_sizes) * distances[target, indices] ** 2
        - other_sizes * between**2
    )
    updated = np.sqrt(squares / (sizes[merged] + sizes[target] + other_sizes))
    distances[target, indices] = distances[indices, target] = updated
    distances[merged] = distances[:, merged] = np.inf
    sizes[target] += sizes[merged]
    sizes[merged] = 0
    return ClusterMerge(merged, target, between)


def cut_tree(merges: list[ClusterMerge], count: int, clusters: int) -> NDArray[np.intp]:
    """Assign each of `count` vectors to one of at most `clusters` clusters, numbered in the order of their first
    members."""
    max_distance = sorted(merge.distance for merge in merges)[count - clusters - 1]
    root = list(range(count))

    def find(member: int) -> int:
        while root[member] != member:
            root[member] = root[root[member]]
            member = root[member]
        return member

    for merge in merges:
        if merge.distance <= max_distance:
            first, second = sorted((find(merge.first), find(merge.second)))
            root[second] = first
    _, numbers = np.unique([find(member) for member in range(count)], return_inverse=True)
    return numbers


def _average_clusters(vectors: FloatArray, numbers: NDArray[np.intp]) -> FloatArray:
    counts = np.bincount(numbers)
    sums = np.zeros((len(counts), vectors.shape[1]), dtype=np.float32)
    np.add.at(sums, numbers, vectors)
    return np.asarray(sums / counts[:, None], dtype=np.float32)
