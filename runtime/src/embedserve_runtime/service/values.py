"""What is asked of the service and what it answers, in no dialect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from embedserve_runtime.engines.base import FloatArray
from embedserve_runtime.engines.results import Output, SparseVector
from embedserve_runtime.heads.late_chunking import Span
from embedserve_runtime.tokenizing import Input, Side

Role = Literal["query", "document"]


class EmbedQuery(Struct, frozen=True):
    """What a client asks for, in no dialect.

    inputs: texts, or id arrays that are used as they are.
    truncate, normalize, dimensions: None takes the service's own.
    prompt: text put before every input, instead of one by its name.
    vector_space: the identity that the client expects, if it says so.
    timeout: seconds after which the client wants no answer any more; the service's own bound holds too.
    outputs: kinds of results, all from one forward pass.
    top_k, threshold: what is kept of sparse vectors.
    role: for a model that treats queries in another way than documents; None is what the model takes inputs for. A
        prompt called "query" or "document" says so too. Inputs of a multi-vector model are documents otherwise.
    spans: for each input parts of its text, in code points, of which vectors are wanted too (late chunking).
    pool_factor: how many times fewer vectors of tokens are wanted of each input; from 1 on.
    """

    inputs: Sequence[Input]
    truncate: bool | None = None
    side: Side = "right"
    prompt_name: str | None = None
    prompt: str | None = None
    normalize: bool | None = None
    dimensions: int | None = None
    vector_space: str | None = None
    timeout: float | None = None
    outputs: Output = Output.DENSE
    top_k: int | None = None
    threshold: float = 0.0
    role: Role | None = None
    pool_factor: float | None = None
    spans: Sequence[Sequence[Span]] | None = None


class Timings(Struct, frozen=True):
    """Seconds; queue and engine are means over the inputs."""

    total: float
    tokenize: float
    queue: float
    engine: float


class Usage(Struct, frozen=True):
    """What an answer used of the server. lengths: tokens of each input after truncation, prompt and special tokens
    included."""

    lengths: Sequence[int]
    characters: int
    timings: Timings

    @property
    def tokens(self) -> int:
        return sum(self.lengths)


class EmbedResult(Struct, frozen=True):
    """What was asked for, in the order of the inputs; all numbers are finite.

    dense: float32, contiguous, one row an input. multi_vectors, hidden: an array (tokens, size) for each input.
    chunks: an array (spans, size) for each input.
    Each is empty if it was not asked for.
    """

    dense: FloatArray
    sparse: Sequence[SparseVector]
    multi_vectors: Sequence[FloatArray]
    hidden: Sequence[FloatArray]
    chunks: Sequence[FloatArray]
    usage: Usage


class Pair(NamedTuple):
    """Two texts that the model reads as one sequence."""

    first: str
    second: str


class ScoreQuery(Struct, frozen=True):
    """Texts or pairs for a classifier or a reranker.

    ranks: the second text of each pair is ranked, which takes a model with one label.
    raw: logits as the model gives them. instruction: of a reranker that takes one; None for the model's own.
    document_tokens: second texts are cut to so many tokens first.
    truncate, side, vector_space, timeout: as of `EmbedQuery`.
    """

    items: Sequence[str | Pair]
    ranks: bool = False
    raw: bool = False
    truncate: bool | None = None
    side: Side = "right"
    instruction: str | None = None
    document_tokens: int | None = None
    vector_space: str | None = None
    timeout: float | None = None


class ScoreResult(Struct, frozen=True):
    """scores: float32, finite, (items, labels), the columns in the order of `labels`."""

    scores: FloatArray
    labels: Sequence[str]
    usage: Usage

    def ranking(self) -> NDArray[np.intp]:
        """Places of the items, the best first by the first label; equal ones in their order."""
        return np.argsort(-self.scores[:, 0], kind="stable")
