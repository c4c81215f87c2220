"""Requests and results of the service, independent of dialects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.outputs import OutputKind, SparseVector
from embedserve_runtime.heads.classification import ScoreArray
from embedserve_runtime.heads.late_chunking import Span
from embedserve_runtime.tokenizing import Input, Side

Role = Literal["query", "document"]


class EmbedQuery(Struct, frozen=True):
    """A request for vectors.

    inputs: texts, or id arrays that are used as they are.
    truncate, normalize, dimensions: None takes the service's setting.
    side: on which long inputs are truncated; None takes the tokenizer's own side.
    max_length: the length to which inputs are truncated where it is below the model's, special tokens included.
    prompt: a text put before every input, instead of a prompt by its name.
    vector_space: the identity that the client expects, if any.
    timeout: seconds after which the client does not want an answer any more; the service's limit holds too.
    outputs: the kinds of results, all from one forward pass.
    top_k, threshold: which entries of sparse vectors are kept.
    role: for a model that treats queries and documents differently; None takes the model's default. A prompt called
        "query" or "document" sets it too. Inputs of a multi-vector model are documents by default.
    spans: for each input the parts of its text, in code points, that get vectors too (late chunking).
    pool_factor: the factor by which the token vectors of each input are reduced; at least 1.
    reuse: whether vectors of equal inputs that are cached or running may be taken.
    repeats: how many times the request has each of the inputs; None: once.
    """

    inputs: Sequence[Input]
    truncate: bool | None = None
    side: Side | None = None
    prompt_name: str | None = None
    prompt: str | None = None
    normalize: bool | None = None
    dimensions: int | None = None
    vector_space: str | None = None
    timeout: float | None = None
    outputs: OutputKind = OutputKind.DENSE
    top_k: int | None = None
    threshold: float = 0.0
    role: Role | None = None
    pool_factor: float | None = None
    spans: Sequence[Sequence[Span]] | None = None
    max_length: int | None = None
    reuse: bool = True
    repeats: Sequence[int] | None = None


class Timings(Struct, frozen=True):
    """Seconds; queue and engine are means over the inputs."""

    total: float
    tokenize: float
    queue: float
    engine: float


class RequestUsage(Struct, frozen=True):
    """The tokens and the time that an answer took.

    lengths: tokens of each input after truncation, prompt and special tokens included. cached, joined: how many inputs
    were not run, since a cache had their vectors or an equal input of this or another request was running.
    """

    lengths: Sequence[int]
    characters: int
    timings: Timings
    cached: int = 0
    joined: int = 0

    @property
    def tokens(self) -> int:
        return sum(self.lengths)


class EmbedResult(Struct, frozen=True):
    """The outputs of a request, in the order of its inputs; all numbers are finite.

    dense: float32, contiguous, one row for each input. multi_vectors, hidden: an array (tokens, size) for each input.
    chunks: an array (spans, size) for each input.
    Each is empty if it was not asked for.
    """

    dense: FloatArray
    usage: RequestUsage
    sparse: Sequence[SparseVector] = ()
    multi_vectors: Sequence[FloatArray] = ()
    hidden: Sequence[FloatArray] = ()
    chunks: Sequence[FloatArray] = ()


class ChunkedResult(Struct, frozen=True):
    """The vectors of texts in chunks, a list for each text.

    vectors: float32, (chunks, dimensions). spans: where each chunk lies in the text, in code points. tokens: how many
    tokens of the text each chunk has. means: float32, (texts, dimensions), where they were asked for.
    """

    vectors: Sequence[FloatArray]
    spans: Sequence[Sequence[Span]]
    tokens: Sequence[Sequence[int]]
    usage: RequestUsage
    means: FloatArray | None = None


class Pair(NamedTuple):
    """Two texts that the model reads as one sequence."""

    first: str
    second: str


class ScoreQuery(Struct, frozen=True):
    """Texts or pairs for a classifier or a reranker.

    ranks: whether the second text of each pair is ranked, which needs a model with one label.
    raw: whether logits are returned as the model gives them. instruction: for a reranker that takes one; None for the
    model's own. query_tokens, document_tokens: the numbers of tokens to which first and second texts are truncated
    first; with either, a pair that is still too long loses tokens of its second text before those of its first.
    truncate, side, vector_space, timeout: the same as in `EmbedQuery`.
    """

    items: Sequence[str | Pair]
    ranks: bool = False
    raw: bool = False
    truncate: bool | None = None
    side: Side | None = None
    instruction: str | None = None
    query_tokens: int | None = None
    document_tokens: int | None = None
    vector_space: str | None = None
    timeout: float | None = None


class ScoreResult(Struct, frozen=True):
    """Scores of items: finite, (items, labels), the columns in the order of `labels`.

    logits: float32, of the same shape, the values that an activation turned into `scores`, or `scores` themselves where
    there was none. They decide every order: different logits can have the same score.
    """

    scores: ScoreArray
    logits: FloatArray
    labels: Sequence[str]
    usage: RequestUsage

    def rank_items(self) -> NDArray[np.intp]:
        """Return the indices of the items, the best first by the first label; equal ones in their order."""
        return np.argsort(-self.logits[:, 0], kind="stable")

    def rank_labels(self) -> NDArray[np.intp]:
        """Return for each item the indices of the labels, the most likely first; (items, labels)."""
        return np.argsort(-self.logits, axis=1, kind="stable")
