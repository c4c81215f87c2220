"""CUDA graphs of the forward pass, one a bucket of token counts: a small batch is a few hundred kernels of a few
microseconds, and launching them one by one would take the host several times as long.

In large batches they close the gaps between kernels: 7 % of the time of 16,384 tokens of BERT-base on an H100.
All graphs are captured at start, each on one of two streams: those of a stream share the array that they read the batch
from and a memory pool, since one of them runs at a time. Large batches alternate between the two streams and overlap.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from embedserve_runtime.engines.torch.device_batch import Capacity, DeviceBatch, copy_in
from embedserve_runtime.engines.torch.direct import DirectGraph, DirectRows
from embedserve_runtime.engines.torch.heads import RowHead, TokenRowHead
from embedserve_runtime.engines.torch.host_transfer import HostTransfer, PendingArray
from embedserve_runtime.forward.batch import PackedBatch

T = TypeVar("T")

MIN_TOKENS = 16
# Up to here buckets grow with the size, and a graph keeps its hidden states.
MAX_TOKENS_WITH_HIDDEN = 8192
# From there on they are this far apart, and only the rows of the heads are kept: hidden states of larger batches would
# fill the memory, and few ask for them.
MAX_TOKENS = 32_768
STEP = 512
# Of sequences a bucket has room for one in this number of tokens. A text has a first and a last special token, and
# nearly always more than one between them; and in large batches rows that nobody reads would be too many.
TOKENS_A_SEQUENCE = 4
TOKENS_A_SEQUENCE_WHEN_LARGE = 32
# Up to here a bucket has a second graph with the copies in it: of larger batches the copies are a small part.
MAX_DIRECT_TOKENS = 256
# From here on there is a second stream: while the last tiles of one batch's product, its norms or the start of its next
# kernel leave multiprocessors idle, another batch has work for them. What is smaller has a graph with its copies in it.
MIN_CONCURRENT_BATCH_TOKENS = 512
# Share of the card's memory that all graphs together may take.
MEMORY_SHARE = 0.1


class OutputLevel(IntEnum):
    """An amount of a forward pass's results that is read; each level includes the ones before it.

    ROWS: the head's rows. TOKEN_ROWS: the token head's rows as well. HIDDEN: the hidden states as well.
    """

    ROWS = 0
    TOKEN_ROWS = 1
    HIDDEN = 2


@dataclass(frozen=True, slots=True, eq=False)
class DeviceOutput:
    """The outputs of a forward pass on the device, valid until the next batch is submitted, and only to what is queued
    on their stream.

    hidden: (tokens, hidden size), None where a graph has not kept it and it was not asked for. rows: of the head that
    was captured or run with it, (sequences, columns). pending_rows: the rows, if their copy has been queued.
    stream: None for the caller's. token_rows: of the token head that was captured, (tokens, columns), where the hidden
    states are not kept. pending_token_rows: the same for token rows.
    """

    hidden: Tensor | None
    rows: Tensor | None
    batch: DeviceBatch
    pending_rows: PendingArray | None = None
    stream: torch.cuda.Stream | None = None
    token_rows: Tensor | None = None
    pending_token_rows: PendingArray | None = None

    def on_stream(self) -> AbstractContextManager[object]:
        """Return a context in which the results are read."""
        return use_stream(self.stream)

    @property
    def states(self) -> Tensor:
        """The hidden states. Raises ValueError if they were not asked for."""
        if self.hidden is None:
            raise ValueError("hidden states were not asked for")
        return self.hidden

    def start_token_copy(self, head: TokenRowHead) -> PendingArray:
        """Start to copy the rows of the captured token head to the host."""
        if self.pending_token_rows is not None:
            return self.pending_token_rows
        return HostTransfer.start(head(self.states) if self.token_rows is None else self.token_rows)

    def start_copy(self) -> PendingArray:
        """Start to copy the rows to the host."""
        if self.pending_rows is not None:
            return self.pending_rows
        if self.rows is None:
            raise ValueError("there is no head whose rows could be sent")
        return HostTransfer.start(self.rows)


def use_stream(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    """Return a context on the stream; None stands for that of the caller."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)


def choose_buckets(max_batch_tokens: int) -> tuple[Capacity, ...]:
    """Choose capacities, ascending: four steps an octave (two in the smallest ones), so that at most a fifth of a
    batch is left over."""
    counts: list[int] = []
    octave = MIN_TOKENS
    while octave < MAX_TOKENS_WITH_HIDDEN:
        steps = 2 if octave < 128 else 4
        counts += [octave + octave * step // steps for step in range(steps)]
        octave *= 2
    counts += range(MAX_TOKENS_WITH_HIDDEN, MAX_TOKENS + 1, STEP)
    enough = next((count for count in counts if count >= max_batch_tokens), MAX_TOKENS)
    return tuple(_build_capacity(count) for count in counts if count <= enough)


def _build_capacity(tokens: int) -> Capacity:
    large = tokens > MAX_TOKENS_WITH_HIDDEN
    share = TOKENS_A_SEQUENCE_WHEN_LARGE if large else TOKENS_A_SEQUENCE
    return Capacity(tokens, max(1, tokens // share))


def find_bucket(batch: PackedBatch, among: Sequence[Capacity]) -> int | None:
    """Return the number of the first of ascending buckets that the batch fits, None where it fits none."""
    tokens, sequences = batch.tokens, len(batch.cu_seqlens) - 1
    number = bisect_left(among, tokens, key=lambda capacity: capacity.tokens)
    while number < len(among) and sequences > among[number].sequences:
        number += 1
    return number if number < len(among) else None


def _build_full_batch(capacity: Capacity, max_positions: int) -> PackedBatch:
    """Build a batch that fills the capacity's tokens with sequences as long as the encoder takes."""
    ids = np.zeros(capacity.tokens, dtype=np.int32)
    return PackedBatch.pack(np.split(ids, range(max_positions, capacity.tokens, max_positions)))


@dataclass(frozen=True, slots=True, eq=False)
class _CapturedGraph:
    """A captured graph with the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    batch: DeviceBatch
    hidden: Tensor | None
    rows: Tensor | None
    token_rows: Tensor | None
    direct: DirectGraph | None

    @property
    def available(self) -> OutputLevel:
        """The most that can be read after a replay."""
        if self.hidden is not None:
            return OutputLevel.HIDDEN
        return OutputLevel.ROWS if self.token_rows is None else OutputLevel.TOKEN_ROWS


@dataclass(frozen=True, slots=True, eq=False)
class EncoderWithHeads:
    """The functions that a CUDA graph captures.

    run: from a batch to hidden states (tokens, hidden size). head: from those to the rows of sequences. token_head: to
    rows of tokens; it runs in the graph where hidden states are not kept, else after it, and in the graph that has the
    copies in it.
    """

    run: Callable[[DeviceBatch], Tensor]
    head: RowHead | None = None
    token_head: TokenRowHead | None = None


class GraphStream:
    """CUDA graphs of which one runs at a time, on one stream."""

    def __init__(self, largest: Capacity, max_positions: int, stream: torch.cuda.Stream | None) -> None:
        """Allocate the inputs of the largest graph. stream: on which the graphs run, None for the caller's."""
        self._storage = torch.zeros(largest.integers, dtype=torch.int32, device="cuda")
        self._max_positions = max_positions
        self._stream = stream
        # One for all these graphs, since torch keeps the memory of each stream apart, and not that of the other graphs,
        # since the library's products have a workspace for each stream.
        self._capture_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._captured: dict[Capacity, _CapturedGraph] = {}

    def __contains__(self, capacity: Capacity) -> bool:
        return capacity in self._captured

    def capture(self, model: EncoderWithHeads, capacity: Capacity) -> None:
        """Capture the graph of a capacity."""
        run, head, token_head = model.run, model.head, model.token_head
        keeps_hidden = head is None or capacity.tokens <= MAX_TOKENS_WITH_HIDDEN
        batch = DeviceBatch.view_storage(self._storage, capacity)
        copy_in(_build_full_batch(capacity, self._max_positions), capacity, self._storage)

        def forward() -> tuple[Tensor | None, Tensor | None, Tensor | None]:
            hidden = run(batch)
            rows = None if head is None else head(hidden, batch)
            if keeps_hidden:
                return hidden, rows, None
            return None, rows, None if token_head is None else token_head(hidden)

        def give_results() -> list[Tensor]:
            assert head is not None, "there are results"
            hidden = run(batch)
            return [head(hidden, batch), *([] if token_head is None else [token_head(hidden)])]

        self._warm_up(forward)
        graph, (hidden, rows, token_rows) = self._record(forward)
        direct = None
        if head is not None and capacity.tokens <= MAX_DIRECT_TOKENS:
            shapes = [tuple(result.shape) for result in self._warm_up(give_results)]
            direct = DirectGraph(
                capacity, self._storage, give_results, lambda work: self._record(work)[0], shapes
            )
        self._captured[capacity] = _CapturedGraph(graph, batch, hidden, rows, token_rows, direct)

    def drop(self) -> None:
        """Drop all graphs and their memory."""
        self._captured.clear()
        self._pool = torch.cuda.graph_pool_handle()
        torch.cuda.empty_cache()

    def _warm_up(self, work: Callable[[], T]) -> T:
        """Do what will be captured once outside of a capture: there kernels are compiled, and libraries choose their
        algorithms."""
        self._capture_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._capture_stream):
            result = work()
        torch.cuda.current_stream().wait_stream(self._capture_stream)
        return result

    def _record(self, work: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
        graph = torch.cuda.CUDAGraph()
        # torch's own stream for captures belongs to the device that captured first.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._capture_stream):
            result = work()
        return graph, result

    def submit(
        self, batch: PackedBatch, capacity: Capacity, forward_output: OutputLevel
    ) -> DeviceOutput | None:
        """Submit a batch; None where more is required than a replay of the graph gives."""
        captured = self._captured[capacity]
        if forward_output > captured.available:
            return None
        tokens, sequences = batch.tokens, len(batch.cu_seqlens) - 1
        results = None
        if captured.direct is not None and forward_output is not OutputLevel.HIDDEN:
            results = captured.direct.submit(batch)
        if results is not None:
            return DeviceOutput(
                None,
                None,
                captured.batch,
                DirectRows(results, 0, sequences),
                pending_token_rows=None
                if forward_output is OutputLevel.ROWS
                else DirectRows(results, 1, tokens),
            )
        with use_stream(self._stream):
            copy_in(batch, capacity, self._storage)
            captured.graph.replay()
        rows = None if captured.rows is None else captured.rows[:sequences]
        if forward_output is OutputLevel.ROWS:
            return DeviceOutput(None, rows, captured.batch, stream=self._stream)
        hidden = None if captured.hidden is None else captured.hidden[:tokens]
        token_rows = None if captured.token_rows is None else captured.token_rows[:tokens]
        own = captured.batch.trim(tokens, sequences)
        return DeviceOutput(hidden, rows, own, stream=self._stream, token_rows=token_rows)


class Graphs:
    """The captured graphs of one encoder and its heads."""

    def __init__(
        self,
        model: EncoderWithHeads,
        capacities: Sequence[Capacity],
        max_positions: int,
        *,
        min_concurrent_batch_tokens: int = MIN_CONCURRENT_BATCH_TOKENS,
        max_concurrent_batch_tokens: int = MAX_TOKENS,
    ) -> None:
        """Capture graphs within the share of memory; what has no graph runs without.

        max_positions: `Encoder.max_positions`. min_concurrent_batch_tokens, max_concurrent_batch_tokens: bounds of the
        tokens of the graphs that are captured on the second stream as well.
        """
        among = sorted(capacities, key=lambda capacity: capacity.tokens)
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        # What torch holds for nobody would count as the graphs' own.
        torch.cuda.empty_cache()
        max_bytes = torch.cuda.memory_reserved() + int(MEMORY_SHARE * total)
        second_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._streams = [GraphStream(among[-1], max_positions, stream) for stream in (None, second_stream)]
        first, second = self._streams
        _fill(partial(first.capture, model), first, among, max_bytes)
        self.capacities = tuple(capacity for capacity in among if capacity in first)
        second_stream_capacities = [
            capacity
            for capacity in self.capacities
            if min_concurrent_batch_tokens <= capacity.tokens <= max_concurrent_batch_tokens
        ]
        _fill(partial(second.capture, model), second, second_stream_capacities, max_bytes)
        torch.cuda.empty_cache()
        self._submitted = 0

    def __call__(self, batch: PackedBatch, forward_output: OutputLevel) -> DeviceOutput | None:
        """Submit `batch`, or None where no graph can run it."""
        number = find_bucket(batch, self.capacities)
        if number is None:
            return None
        capacity = self.capacities[number]
        streams = [stream for stream in self._streams if capacity in stream]
        # The large batch before this one is in the other.
        self._submitted += len(streams) > 1
        return streams[self._submitted % len(streams)].submit(batch, capacity, forward_output)


def _fill(
    capture: Callable[[Capacity], None], stream: GraphStream, among: Sequence[Capacity], max_bytes: int
) -> None:
    """Capture graphs of ascending capacities on a stream until torch has reserved `max_bytes` bytes. The largest one
    that fits is the first: all others run in its memory."""
    left = list(among)
    while left:
        capture(left.pop())
        if torch.cuda.memory_reserved() <= max_bytes:
            break
        stream.drop()
    for capacity in left:
        capture(capacity)
        if torch.cuda.memory_reserved() > max_bytes:
            return
