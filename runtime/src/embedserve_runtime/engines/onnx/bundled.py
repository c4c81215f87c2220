"""Runs an ONNX file that a repository bundles, on the CPU. It needs padding, so sequences of similar length go
together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.engines.onnx.arena_usage import ArenaUsage
from embedserve_runtime.engines.onnx.session import RUN_ERRORS, build_releasing_options, load_session
from embedserve_runtime.errors import EngineFailure
from embedserve_runtime.forward.arrays import FloatArray, Int32Array
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.engine import EngineDescription, MemoryStatus
from embedserve_runtime.forward.grouping import choose_padded_sizes
from embedserve_runtime.forward.outputs import ModelOutput, OutputKind
from embedserve_runtime.model.bundled_onnx import CACHE_PREFIX, BundledOnnx
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.onnx_file import Element, Value

DTYPES: dict[int, type[np.generic]] = {
    Element.INT64: np.int64,
    Element.INT32: np.int32,
    Element.FLOAT: np.float32,
    Element.FLOAT16: np.float16,
    Element.DOUBLE: np.float64,
}

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class GraphOutputs:
    """The outputs of a run, float32; None for what was not asked for.

    rows: (sequences, width), finished. hidden: (tokens, hidden_size).
    weights: (tokens, 1).
    """

    rows: FloatArray | None
    hidden: FloatArray | None
    weights: FloatArray | None


class BundledOnnxEngine:
    """Runs a bundled ONNX file in one session, on any thread, one at a time."""

    # On a CPU the system ends a process that takes too much.
    memory = MemoryStatus()

    def __init__(self, graph: BundledOnnx, hidden_size: int, threads: int) -> None:
        """Load the file. Raises ModelInvalid when ONNX Runtime cannot load the file."""
        alone = 1 if graph.runs_singly else None
        self.description = EngineDescription("onnx", "cpu", "as stored", threads=threads, max_sequences=alone)
        self._graph = graph
        self.padding = 0
        self._hidden_size = hidden_size
        self._session = load_session(graph.file, threads)
        self._arena_usage = ArenaUsage()
        self._releasing_options = build_releasing_options()

    @property
    def hidden_size(self) -> int:
        return self._hidden_size

    def forward(self, batch: PackedBatch) -> FloatArray:
        """Final hidden states, float32, (tokens, hidden_size). Raises EngineFailure."""
        hidden = self.run(batch, hidden=True).hidden
        assert hidden is not None, "asked for"
        return hidden

    def run_states(
        self, batch: PackedBatch, *, hidden: bool, weights: bool
    ) -> tuple[FloatArray | None, FloatArray | None]:
        """Return hidden states and weights of tokens, as `run` gives them."""
        outputs = self.run(batch, hidden=hidden, weights=weights)
        return outputs.hidden, outputs.weights

    def run(
        self, batch: PackedBatch, *, rows: bool = False, hidden: bool = False, weights: bool = False
    ) -> GraphOutputs:
        """Run a batch once and return what is asked for, as far as the graph gives it. Raises EngineFailure."""
        graph = self._graph
        columns = {
            graph.pooled if rows else None: graph.width or 0,
            graph.hidden if hidden else None: self._hidden_size,
            graph.weights if weights else None: 1,
        }
        columns.pop(None, None)
        names = [name for name in columns if name is not None]
        arrays = {
            name: np.zeros(
                (len(batch.lengths) if name == graph.pooled else batch.tokens, columns[name]),
                dtype=np.float32,
            )
            for name in names
        }
        self.padding = -batch.tokens
        for members, tokens, real in _iterate_blocks(batch, graph):
            self.padding += real.size
            for name, output in zip(names, self._call(names, batch, tokens, real), strict=True):
                if name == graph.pooled:
                    arrays[name][members] = self._check_shape(output, (len(members), columns[name]), name)
                else:
                    fitting = self._check_shape(output, (*tokens.shape, columns[name]), name)
                    arrays[name][tokens[real]] = fitting[real]
        if graph.has_float16:
            for name, vectors in arrays.items():
                if name == graph.hidden or (name == graph.pooled and graph.pooled_kind == "dense"):
                    _mark_overflow(vectors)
        return GraphOutputs(*(arrays.get(name or "") for name in (graph.pooled, graph.hidden, graph.weights)))

    def _call(
        self, names: list[str], batch: PackedBatch, tokens: Array, real: NDArray[np.bool_]
    ) -> list[Array]:
        feeds = {value.name: self._build_feed(value, batch, tokens, real) for value in self._graph.inputs}
        is_released = self._arena_usage.is_to_be_released(tokens.size, tokens.shape[1])
        try:
            outputs: list[Array] = self._session.run(
                names, feeds, self._releasing_options if is_released else None
            )
        except RUN_ERRORS as error:
            raise EngineFailure(
                f"ONNX Runtime failed on {len(tokens)} sequences of up to {tokens.shape[1]} tokens: {error}"
            ) from error
        return outputs

    def _build_feed(self, value: Value, batch: PackedBatch, tokens: Array, real: NDArray[np.bool_]) -> Array:
        dtype = DTYPES[value.element]
        if value.name.startswith(CACHE_PREFIX):
            _, heads, _, size = value.shape or (0, 0, 0, 0)
            return np.zeros((len(tokens), heads or 0, 0, size or 0), dtype=dtype)
        match value.name:
            case "input_ids":
                filled = np.where(real, batch.token_ids[tokens], self._graph.pad)
            case "attention_mask":
                filled = real
            case "token_type_ids":
                types = np.zeros_like(batch.token_ids) if batch.token_types is None else batch.token_types
                filled = np.where(real, types[tokens], 0)
            case _:  # position_ids
                filled = np.maximum(np.cumsum(real, axis=1) - 1, 0)
        return filled.astype(dtype)

    def _check_shape(self, output: Array, shape: tuple[int, ...], name: str) -> FloatArray:
        if output.shape != shape:
            raise EngineFailure(
                f"output {name} of {self._graph.file.name} has shape {list(output.shape)}, not {list(shape)}"
            )
        return output.astype(np.float32, copy=False)


def _mark_overflow(vectors: FloatArray) -> None:
    """Make rows of zeros not finite, in place, so that they are answered as an error: of a sum that overflows float16
    a graph makes zeros where it divides by it, to normalize a vector or a hidden state."""
    vectors[~vectors.any(axis=1)] = np.nan


def _iterate_blocks(
    batch: PackedBatch, graph: BundledOnnx
) -> Iterator[tuple[Array, Array, NDArray[np.bool_]]]:
    """Yield blocks of sequences: their numbers (n,); for each padded position the packed token it shows (n, length), in
    the padding the sequence's first; which positions are real (n, length)."""
    side, order = graph.pad_side, np.argsort(-batch.lengths, kind="stable")
    sizes = [1] * len(order) if graph.runs_singly else choose_padded_sizes(batch.lengths[order])
    ends = np.cumsum(sizes)
    for members in np.split(order, ends[:-1]):
        lengths: Int32Array = batch.lengths[members][:, None]
        max_length = int(lengths.max())
        position = np.arange(max_length)[None, :] - (max_length - lengths if side == "left" else 0)
        real = (position >= 0) & (position < lengths)
        yield members, batch.cu_seqlens[:-1][members][:, None] + np.where(real, position, 0), real


class BundledOnnxRunner:
    """A graph that gives whole rows: logits, used as they come, or dense vectors with the layers that the graph lacks
    after them.

    apply_dense: applies the card's dense modules to rows of the graph.
    """

    def __init__(
        self,
        card: ModelCard,
        graph: BundledOnnx,
        engine: BundledOnnxEngine,
        apply_dense: Callable[[FloatArray], FloatArray],
    ) -> None:
        self._card = card
        self._logits = graph.pooled_kind == "logits"
        self._apply_dense = apply_dense
        self._engine = engine
        self.engine = engine.description
        self.recomputed = 0

    @property
    def card(self) -> ModelCard:
        return self._card

    @property
    def memory(self) -> MemoryStatus:
        return self._engine.memory

    def run(self, batch: PackedBatch, outputs: OutputKind) -> ModelOutput:
        graph_outputs = self._engine.run(
            batch,
            rows=bool(outputs & (OutputKind.DENSE | OutputKind.LOGITS)),
            hidden=OutputKind.HIDDEN in outputs,
        )
        rows, hidden = graph_outputs.rows, graph_outputs.hidden
        return ModelOutput(
            dense=None if self._logits or rows is None else self._apply_dense(rows),
            logits=rows if self._logits else None,
            hidden=None if hidden is None else np.split(hidden, batch.cu_seqlens[1:-1]),
            padding=self._engine.padding,
        )
