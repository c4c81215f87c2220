"""Messages are read on one side as they were sent on the other, and nothing else is read."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
import zmq
from msgspec.structs import replace

from embedserve_runtime import errors
from embedserve_runtime.errors import EmbedserveError, Overloaded, RequestError
from embedserve_runtime.forward.arrays import Int32Array
from embedserve_runtime.forward.batch import FlatTokens, PackedBatch, Tokens, TokenSequence
from embedserve_runtime.forward.outputs import ModelOutput, OutputKind, SparseVector
from embedserve_runtime.frontends.codec import (
    INLINE_BYTES,
    Buffer,
    MessageDecodeError,
    MessageDecoder,
    MessageEncoder,
    engine_decoder,
    front_end_decoder,
)
from embedserve_runtime.frontends.messages import (
    Configure,
    EngineMessage,
    FrontEndMessage,
    Message,
    QueueDepthChanged,
    RequestCompleted,
    RequestFailed,
    Submit,
)
from embedserve_runtime.scheduling.batches import BatchRequest, CompletedRequest
from embedserve_runtime.scheduling.policy import QueueDepth


def received(parts: Sequence[Buffer]) -> list[zmq.Frame]:
    return [zmq.Frame(part) for part in parts]


def at_the_engine(message: FrontEndMessage) -> FrontEndMessage:
    return engine_decoder().decode(received(MessageEncoder().encode(message)))


def at_a_front_end(message: EngineMessage) -> EngineMessage:
    return front_end_decoder().decode(received(MessageEncoder().encode(message)))


def ids(*values: int) -> Int32Array:
    return np.array(values, dtype=np.int32)


SEQUENCES: dict[str, Sequence[Tokens]] = {
    "one text": [ids(1, 2, 3)],
    "a text beside the msgpack": [np.arange(INLINE_BYTES, dtype=np.int32)],
    "texts that lie end to end": FlatTokens(ids(1, 2, 3, 4, 5), ids(0, 2, 3, 5)),
    "several of other lengths": [ids(1), ids(2, 3, 4, 5), ids(6, 7)],
    "pairs with token types": [TokenSequence(ids(1, 2), ids(0, 1)), TokenSequence(ids(3), ids(1))],
    "a typed one among plain ones": [ids(9), TokenSequence(ids(1, 2), ids(0, 1))],
    "a query beside a document": [TokenSequence(ids(1, 2), is_query_role=True), ids(3)],
    "a query with tokens that attention does not see": [
        TokenSequence(ids(1, 2, 9), is_query_role=True, attended_length=2),
        TokenSequence(ids(4), is_query_role=True),
    ],
    "texts of two tasks": [TokenSequence(ids(1, 2), task=2), ids(3)],
    "prompts that pooling leaves out": [TokenSequence(ids(1, 2, 3), None, 2), TokenSequence(ids(4), None, 0)],
}


@pytest.mark.parametrize("sequences", SEQUENCES.values(), ids=SEQUENCES)
@pytest.mark.parametrize("max_bytes", [None, 1_000], ids=["without bound", "bounded"])
def test_an_order_makes_the_same_batch_on_the_other_side(
    sequences: Sequence[Tokens], max_bytes: int | None
) -> None:
    batch_request = BatchRequest(sequences, OutputKind.DENSE | OutputKind.HIDDEN, max_bytes)
    message = at_the_engine(Submit.build(7, batch_request, 123.25))
    assert isinstance(message, Submit)
    got = message.build_batch_request()
    assert (message.request_id, message.deadline) == (7, 123.25)
    assert (got.outputs, got.max_bytes) == (batch_request.outputs, max_bytes)
    batch, want_batch = PackedBatch.pack(got.sequences), PackedBatch.pack(sequences)
    for name in (
        "token_ids",
        "cu_seqlens",
        "token_types",
        "pool_starts",
        "queries",
        "attended_lengths",
        "tasks",
    ):
        value, want_value = getattr(batch, name), getattr(want_batch, name)
        assert (value is None) == (want_value is None), name
        if value is not None:
            assert value.flags.writeable, name
            np.testing.assert_array_equal(value, want_value, name)


class Rows(Message, frozen=True):
    """Spelled as msgspec sees NDArray from NumPy 2.5 on: a shape of another name."""

    values: np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def test_an_array_is_known_by_the_type_of_its_numbers_however_numpy_spells_it() -> None:
    rows = floats(2, 3)
    decoder: MessageDecoder[Rows] = MessageDecoder(Rows)
    np.testing.assert_array_equal(decoder.decode(received(MessageEncoder().encode(Rows(rows)))).values, rows)


def floats(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(1).standard_normal(shape, dtype=np.float32)


RESULTS = {
    "dense rows": ModelOutput(dense=floats(3, 8)),
    "dense rows beside the msgpack": ModelOutput(dense=floats(32, 768)),
    "some of a batch's rows": ModelOutput(dense=floats(64, 768)[16:48]),
    "a view of a wider array": ModelOutput(dense=floats(3, 16)[:, ::2]),
    "logits": ModelOutput(logits=floats(2, 1)),
    "sparse, one of them empty": ModelOutput(
        sparse=[SparseVector(ids(3, 5), floats(2)), SparseVector(ids(), floats(0))]
    ),
    "states of every token": ModelOutput(hidden=[floats(2, 4), floats(5, 4)]),
    "all at once": ModelOutput(
        floats(2, 8),
        floats(2, 3),
        [SparseVector(ids(1), floats(1)), SparseVector(ids(2), floats(1))],
        [floats(1, 4), floats(2, 4)],
        [floats(3, 4), floats(1, 4)],
    ),
}


@pytest.mark.parametrize("results", RESULTS.values(), ids=RESULTS)
def test_results_come_back_bit_by_bit(results: ModelOutput) -> None:
    message = at_a_front_end(RequestCompleted(7, CompletedRequest(results, 0.25, 0.5)))
    assert isinstance(message, RequestCompleted)
    assert message.request_id == 7
    completed = message.completed
    assert (completed.queue_seconds, completed.engine_seconds) == (0.25, 0.5)
    for name in ("dense", "logits"):
        np.testing.assert_array_equal(getattr(completed.results, name), getattr(results, name), name)
    assert [(s.indices.tolist(), s.values.tolist()) for s in completed.results.sparse or ()] == [
        (s.indices.tolist(), s.values.tolist()) for s in results.sparse or ()
    ]
    for name in ("multi_vectors", "hidden"):
        got, want = getattr(completed.results, name), getattr(results, name)
        assert (got is None) == (want is None)
        for got_one, want_one in zip(got or (), want or (), strict=True):
            np.testing.assert_array_equal(got_one, want_one)


def test_large_arrays_are_sent_from_where_they_are_and_read_where_they_came_in() -> None:
    rows = floats(32, 768)
    header, content = MessageEncoder().encode(
        RequestCompleted(1, CompletedRequest(ModelOutput(dense=rows), 0.0, 0.0))
    )
    assert np.shares_memory(np.frombuffer(content, dtype=np.float32), rows)
    frames = received([header, content])
    message = front_end_decoder().decode(frames)
    assert isinstance(message, RequestCompleted)
    got = message.completed.results.dense
    assert got is not None
    assert np.shares_memory(got, np.frombuffer(frames[1].buffer, dtype=np.float32))


def request_errors() -> Sequence[type[EmbedserveError]]:
    problems = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RequestError)
    ]
    assert len(problems) > 10
    return problems


@pytest.mark.parametrize("kind", request_errors())
def test_every_error_of_a_request_keeps_its_class(kind: type[EmbedserveError]) -> None:
    error = kind("voll", 7.0) if issubclass(kind, Overloaded) else kind("was wrong: é")
    got = error_at_a_front_end(error)
    assert type(got) is kind
    assert got.message == error.message
    assert getattr(got, "retry_after", None) == getattr(error, "retry_after", None)


def error_at_a_front_end(error: EmbedserveError) -> EmbedserveError:
    message = at_a_front_end(RequestFailed.build(1, error))
    assert isinstance(message, RequestFailed)
    return message.build_error()


def test_an_error_that_quotes_half_a_surrogate_pair_arrives_without_it() -> None:
    assert error_at_a_front_end(errors.InvalidInput("no \ud800 here")).message == "no ? here"


@pytest.mark.parametrize("rate", [None, 1_000.0])
def test_what_waits_is_told_as_it_is(rate: float | None) -> None:
    depth = QueueDepthChanged(QueueDepth(3, 400, rate))
    assert at_a_front_end(depth) == depth


def submit_with(token_ids: object) -> bytes:
    """The header of a request of one sequence of two tokens, with anything instead of its ids."""
    marks = [None] * 5  # types, starts of pooling, queries, attended lengths, tasks
    fields = ["Submit", 1, 9.0, OutputKind.DENSE.value, None, None, [2], token_ids, *marks]
    return msgspec.msgpack.encode(fields)


def test_a_request_written_by_hand_is_read() -> None:
    message = engine_decoder().decode(received([submit_with(["<i4", [2], bytes(8)])]))
    assert isinstance(message, Submit)
    assert [*PackedBatch.pack(message.build_batch_request().sequences).token_ids] == [0, 0]


MALFORMED: dict[str, Sequence[Buffer]] = {
    "HTTP": [b"GET / HTTP/1.1\r\n\r\n"],
    "nothing": [b""],
    "cut off": [submit_with(["<i4", [2], bytes(8)])[:-1]],
    "nested without end": [submit_with(["<i4", [2], bytes(8)])[:10] + b"\x91" * 100_000],
    "a message of an unknown kind": [msgspec.msgpack.encode(["Shutdown"])],
    "a message for a front end": MessageEncoder().encode(Configure(b"cos\nsystem\n(S'true'\ntR.")),
    "no array": [submit_with("ids")],
    "numbers of another type": [submit_with(["<i8", [2], bytes(16)])],
    "fewer bytes than its shape says": [submit_with(["<i4", [2], bytes(4)])],
    "more bytes than its shape says": [submit_with(["<i4", [2], bytes(12)])],
    "a shape below 0": [submit_with(["<i4", [-1, -2], bytes(8)])],
    "a shape of texts": [submit_with(["<i4", ["2"], bytes(8)])],
    "a part that has not come": [submit_with(["<i4", [2], 2]), bytes(8)],
    "its own header as an array": [submit_with(["<i4", [2], 0])],
    "a part counted from the end": [submit_with(["<i4", [2], -1]), bytes(8)],
}


@pytest.mark.parametrize("parts", MALFORMED.values(), ids=MALFORMED)
def test_what_is_no_message_of_a_front_end_is_refused(parts: Sequence[Buffer]) -> None:
    with pytest.raises(MessageDecodeError):
        engine_decoder().decode(received(parts))


SUBMIT = Submit.build(1, BatchRequest([ids(1, 2), ids(3)], OutputKind.DENSE), 9.0)
CONTRADICTIONS: dict[str, Submit] = {
    "fewer ids than its lengths say": replace(SUBMIT, token_ids=ids(1, 2)),
    "more ids than its lengths say": replace(SUBMIT, token_ids=ids(1, 2, 3, 4)),
    "ids in rows": replace(SUBMIT, token_ids=ids(1, 2, 3).reshape(1, 3)),
    "no sequence": replace(SUBMIT, lengths=[], token_ids=ids()),
    "types of fewer tokens": replace(SUBMIT, token_types=ids(1)),
    "prompts of more sequences": replace(SUBMIT, pool_starts=ids(1, 1, 1)),
    "queries of fewer sequences": replace(SUBMIT, is_query_mask=np.array([True])),
    "attention of fewer sequences": replace(SUBMIT, attended_lengths=ids(1)),
    "tasks of fewer sequences": replace(SUBMIT, tasks=ids(1)),
    "a deadline that is no number": replace(SUBMIT, deadline=float("nan")),
    "repeats of fewer sequences": replace(SUBMIT, repeats=[2]),
    "nothing wanted": replace(SUBMIT, outputs=OutputKind(0)),
}


@pytest.mark.parametrize("message", CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_request_that_contradicts_itself_is_refused(message: Submit) -> None:
    with pytest.raises(ValueError, match=r"a request with|token ids of|marks of|repeats of"):
        message.build_batch_request()


@pytest.mark.parametrize("sequences", [[ids(1, 2), ids(3)], [TokenSequence(ids(1), task=1), ids(3)]])
def test_repeats_of_a_request_arrive_with_it(sequences: Sequence[Tokens]) -> None:
    message = at_the_engine(Submit.build(1, BatchRequest(sequences, OutputKind.DENSE, repeats=[2, 1]), 9.0))
    assert isinstance(message, Submit)
    assert message.build_batch_request().repeats == [2, 1]


@pytest.mark.parametrize("length", [0, -1])
def test_a_sequence_without_tokens_is_refused(length: int) -> None:
    with pytest.raises(MessageDecodeError):
        at_the_engine(replace(SUBMIT, lengths=[3, length]))
