"""What is packed on one side is what the other side reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from embedserve_runtime import errors
from embedserve_runtime.engines.base import FlatTokens, Int32Array, PackedBatch, Tokens, TokenSequence
from embedserve_runtime.errors import EmbedserveError, Overloaded, RequestError
from embedserve_runtime.frontends.frames import (
    BrokenStream,
    FrameReader,
    Kind,
    frame,
    pack_backlog,
    pack_completed,
    pack_error,
    pack_order,
    unpack_backlog,
    unpack_completed,
    unpack_error,
    unpack_order,
)
from embedserve_runtime.results import Output, Results, SparseVector
from embedserve_runtime.scheduling.policy import Backlog
from embedserve_runtime.scheduling.work import Completed, Order


def ids(*values: int) -> Int32Array:
    return np.array(values, dtype=np.int32)


SEQUENCES: dict[str, Sequence[Tokens]] = {
    "one text": [ids(1, 2, 3)],
    "texts that lie end to end": FlatTokens(ids(1, 2, 3, 4, 5), ids(0, 2, 3, 5)),
    "several of other lengths": [ids(1), ids(2, 3, 4, 5), ids(6, 7)],
    "pairs with token types": [TokenSequence(ids(1, 2), ids(0, 1)), TokenSequence(ids(3), ids(1))],
    "a typed one among plain ones": [ids(9), TokenSequence(ids(1, 2), ids(0, 1))],
    "a query beside a document": [TokenSequence(ids(1, 2), query=True), ids(3)],
    "a query with tokens that attention does not see": [
        TokenSequence(ids(1, 2, 9), query=True, attended=2),
        TokenSequence(ids(4), query=True),
    ],
    "prompts that pooling leaves out": [TokenSequence(ids(1, 2, 3), None, 2), TokenSequence(ids(4), None, 0)],
}


@pytest.mark.parametrize("sequences", SEQUENCES.values(), ids=SEQUENCES)
@pytest.mark.parametrize("most_bytes", [None, 1_000], ids=["without bound", "bounded"])
def test_an_order_makes_the_same_batch_on_the_other_side(
    sequences: Sequence[Tokens], most_bytes: int | None
) -> None:
    order = Order(sequences, Output.DENSE | Output.HIDDEN, most_bytes)
    got, deadline = unpack_order(b"".join(pack_order(order, 123.25)))
    assert (got.wanted, got.most_bytes, deadline) == (order.wanted, most_bytes, 123.25)
    batch, want_batch = PackedBatch.pack(got.sequences), PackedBatch.pack(sequences)
    for name in ("token_ids", "cu_seqlens", "token_types", "unpooled", "queries"):
        value, want_value = getattr(batch, name), getattr(want_batch, name)
        assert (value is None) == (want_value is None), name
        if value is not None:
            assert value.flags.writeable, name
            np.testing.assert_array_equal(value, want_value, name)


def floats(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(1).standard_normal(shape, dtype=np.float32)


RESULTS = {
    "dense rows": Results(dense=floats(3, 8)),
    "a view of a wider array": Results(dense=floats(3, 16)[:, ::2]),
    "logits": Results(logits=floats(2, 1)),
    "sparse, one of them empty": Results(
        sparse=[SparseVector(ids(3, 5), floats(2)), SparseVector(ids(), floats(0))]
    ),
    "states of every token": Results(hidden=[floats(2, 4), floats(5, 4)]),
    "all at once": Results(
        floats(2, 8),
        floats(2, 3),
        [SparseVector(ids(1), floats(1)), SparseVector(ids(2), floats(1))],
        [floats(1, 4), floats(2, 4)],
        [floats(3, 4), floats(1, 4)],
    ),
}


@pytest.mark.parametrize("results", RESULTS.values(), ids=RESULTS)
def test_results_come_back_bit_by_bit(results: Results) -> None:
    done = unpack_completed(b"".join(pack_completed(Completed(results, 0.25, 0.5))))
    assert (done.queue_seconds, done.engine_seconds) == (0.25, 0.5)
    for name in ("dense", "logits"):
        np.testing.assert_array_equal(getattr(done.results, name), getattr(results, name), name)
    assert [(s.indices.tolist(), s.values.tolist()) for s in done.results.sparse or ()] == [
        (s.indices.tolist(), s.values.tolist()) for s in results.sparse or ()
    ]
    for name in ("multi_vectors", "hidden"):
        got, want = getattr(done.results, name), getattr(results, name)
        assert (got is None) == (want is None)
        for one, want_one in zip(got or (), want or (), strict=True):
            np.testing.assert_array_equal(one, want_one)


def request_errors() -> Sequence[type[EmbedserveError]]:
    found = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RequestError)
    ]
    assert len(found) > 10
    return found


@pytest.mark.parametrize("kind", request_errors())
def test_every_error_of_a_request_keeps_its_class(kind: type[EmbedserveError]) -> None:
    error = Overloaded("voll", 7.0) if kind is Overloaded else kind("was wrong: é")
    got = unpack_error(b"".join(pack_error(error)))
    assert type(got) is kind
    assert got.message == error.message
    assert getattr(got, "retry_after", None) == getattr(error, "retry_after", None)


@pytest.mark.parametrize("rate", [None, 1_000.0])
def test_what_waits_is_told_as_it_is(rate: float | None) -> None:
    backlog = Backlog(3, 400, rate)
    assert unpack_backlog(pack_backlog(backlog)) == backlog


@pytest.mark.parametrize("step", [1, 7, 1_000])
def test_frames_are_found_in_a_stream_cut_anywhere(step: int) -> None:
    sent = [(Kind.CANCEL, 2**40, b""), (Kind.PAGE, 1, b"x" * 100), (Kind.STOP, 0, b"")]
    stream = b"".join(frame(kind, number, payload) for kind, number, payload in sent)
    reader = FrameReader()
    got = [one for start in range(0, len(stream), step) for one in reader.feed(stream[start : start + step])]
    assert [(one.kind, one.number, one.payload) for one in got] == sent


@pytest.mark.parametrize("junk", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 16], ids=["HTTP", "ones"])
def test_what_is_no_frame_is_refused(junk: bytes) -> None:
    with pytest.raises(BrokenStream):
        list(FrameReader().feed(junk))
