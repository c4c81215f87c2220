"""The shell: every request gets exactly one outcome, whatever the engine, the clock and the clients do."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedserve_runtime.cpu.priority import GIVE_WAY_BY, MAX_NICE, read_nice
from embedserve_runtime.errors import BatchTooLarge, DeadlineExceeded, EngineFailure, NotReady, Overloaded
from embedserve_runtime.forward.arrays import FloatArray, Int32Array
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.runners.protocol import BatchRunner
from embedserve_runtime.scheduling.batches import BatchRequest, CompletedRequest
from embedserve_runtime.scheduling.clients import Client
from embedserve_runtime.scheduling.dispatcher import Dispatcher
from embedserve_runtime.scheduling.policy import Limits
from embedserve_runtime.scheduling.recovery import MAX_RUNS
from tests.support.tiny_models import DIMENSIONS
from tests.support.tiny_runners import GatedRun, OverlappingRunner, Run, TinyRunner, build_mean_run

LATER = 3_600.0


@dataclass
class Seen:
    """An observer that counts."""

    batches: list[tuple[int, int, bool]] = field(default_factory=list)
    clients: list[tuple[str, int, int, int, str | None]] = field(default_factory=list)

    def batch_done(self, *, inputs: int, tokens: int, padding: int, seconds: float, failed: bool) -> None:
        assert seconds >= 0
        self.batches.append((inputs, tokens, failed))

    def client_request(
        self, client: str, *, requests: int, inputs: int, tokens: int, refusal: str | None
    ) -> None:
        self.clients.append((client, requests, inputs, tokens, refusal))


@asynccontextmanager
async def dispatcher(
    *engines: Run | BatchRunner,
    limits: Limits | None = None,
    observer: Seen | None = None,
    express: Run | None = None,
) -> AsyncIterator[Dispatcher]:
    built = Dispatcher(
        [engine if isinstance(engine, BatchRunner) else TinyRunner(engine) for engine in engines],
        limits or Limits(64, 10_000, 1_000),
        clock=perf_counter,
        observer=observer or Seen(),
        express_runner=None if express is None else TinyRunner(express),
    )
    try:
        yield built
    finally:
        built.close("the test is over")


def ids(*values: int) -> Int32Array:
    return np.array(values, dtype=np.int32)


def dense_of(sequences: Sequence[Int32Array]) -> BatchRequest:
    return BatchRequest(sequences, OutputKind.DENSE)


def dense_rows(completed: CompletedRequest) -> FloatArray:
    assert completed.results.dense is not None
    return completed.results.dense


def deadline(seconds: float = LATER) -> float:
    return perf_counter() + seconds


async def entered(gate: GatedRun) -> None:
    """The engine is inside a batch."""
    await asyncio.to_thread(gate.entered.acquire)


async def test_rows_come_back_in_the_order_of_the_inputs_over_many_batches() -> None:
    observer = Seen()
    rng = np.random.default_rng(1)
    sequences = [rng.integers(0, 20, rng.integers(1, 60)).astype(np.int32) for _ in range(100)]
    async with dispatcher(build_mean_run(), observer=observer) as built:
        completed = await built.submit(dense_of(sequences), deadline())
    run = build_mean_run()
    want_rows = np.concatenate([run(PackedBatch.pack([sequence])) for sequence in sequences])
    np.testing.assert_allclose(dense_rows(completed), want_rows, rtol=1e-6)
    assert len(observer.batches) > 10
    assert sum(inputs for inputs, _, _ in observer.batches) == 100
    assert all(tokens <= 64 for _, tokens, _ in observer.batches)


async def test_requests_that_arrive_while_the_engine_runs_share_the_next_batch() -> None:
    gate = GatedRun()
    async with dispatcher(gate) as built:
        first = asyncio.create_task(built.submit(dense_of([ids(1)]), deadline()))
        await entered(gate)
        later = [asyncio.create_task(built.submit(dense_of([ids(2, 3)]), deadline())) for _ in range(5)]
        await asyncio.sleep(0)
        gate.release()
        await asyncio.gather(first, *later)
    assert [batch.lengths.tolist() for batch in gate.batches] == [[1], [2] * 5]


async def test_another_budget_holds_for_the_batches_that_are_formed_from_then_on() -> None:
    observer = Seen()
    async with dispatcher(build_mean_run(), observer=observer) as built:
        built.change_batch_tokens(5)
        await built.submit(dense_of([ids(1, 2)] * 6), deadline())
    assert built.limits.batch_tokens == 5
    assert [tokens for _, tokens, _ in observer.batches] == [4, 4, 4]


async def test_it_is_idle_while_no_request_waits_or_runs() -> None:
    gate = GatedRun()
    async with dispatcher(gate) as built:
        assert (built.is_idle, built.num_admitted) == (True, 0)
        waiting = asyncio.create_task(built.submit(dense_of([ids(1)]), deadline()))
        await entered(gate)
        assert (built.is_idle, built.num_admitted) == (False, 1)
        gate.release()
        await waiting
        assert (built.is_idle, built.num_admitted) == (True, 1)


async def test_a_cancelled_request_leaves_the_queue_and_never_runs() -> None:
    gate = GatedRun()
    async with dispatcher(gate) as built:
        first = asyncio.create_task(built.submit(dense_of([ids(1)]), deadline()))
        await entered(gate)
        cancelled = asyncio.create_task(built.submit(dense_of([ids(7, 7)]), deadline()))
        stays = asyncio.create_task(built.submit(dense_of([ids(2)]), deadline()))
        await asyncio.sleep(0)
        assert built.queued_inputs == 2
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert built.queued_inputs == 1
        gate.release()
        await asyncio.gather(first, stays)
    assert [batch.token_ids.tolist() for batch in gate.batches] == [[1], [2]]


async def test_a_passed_deadline_answers_while_the_engine_is_still_busy() -> None:
    gate = GatedRun()
    async with dispatcher(gate) as built:
        running = asyncio.create_task(built.submit(dense_of([ids(1)]), deadline()))
        await entered(gate)
        with pytest.raises(DeadlineExceeded):
            await built.submit(dense_of([ids(2)]), deadline(0.0))
        assert built.queued_inputs == 0
        gate.release()
        await running
    assert [batch.token_ids.tolist() for batch in gate.batches] == [[1]]


async def test_a_full_queue_refuses_with_the_time_to_come_back() -> None:
    gate = GatedRun()
    async with dispatcher(gate, limits=Limits(10, 20, 100)) as built:
        built.learn_rate(2.0)
        running = asyncio.create_task(built.submit(dense_of([ids(1)]), deadline()))
        await entered(gate)
        waiting = asyncio.create_task(built.submit(dense_of([ids(*range(10)), ids(*range(8))]), deadline()))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded) as caught:
            await built.submit(dense_of([ids(*range(10))]), deadline())
        assert caught.value.retry_after == 4.0
        gate.release()
        await asyncio.gather(running, waiting)


@pytest.mark.parametrize(
    "failure",
    [EngineFailure("out of memory"), RuntimeError("a foreign library's error")],
    ids=["the engine's own failure", "any other exception"],
)
async def test_a_failing_batch_fails_its_requests_and_no_others(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    observer = Seen()
    good = build_mean_run()

    def run(batch: PackedBatch) -> FloatArray:
        if 13 in batch.token_ids:
            raise failure
        return good(batch)

    async with dispatcher(run, limits=Limits(4, 1_000, 100), observer=observer) as built:
        bad = built.submit(dense_of([ids(13, 13, 13, 13), ids(1, 1, 1, 1)]), deadline())
        fine = built.submit(dense_of([ids(2, 2, 2, 2)]), deadline())
        outcomes = await asyncio.gather(bad, fine, return_exceptions=True)
        assert isinstance(outcomes[0], EngineFailure)
        assert isinstance(outcomes[1], CompletedRequest)
        after = await built.submit(dense_of([ids(3)]), deadline())
        assert dense_rows(after).shape == (1, 8)
        assert built.queued_inputs == 0
    assert [failed for _, _, failed in observer.batches].count(True) == 1


@pytest.mark.parametrize("bad", [(), (0,), (7,), (3, 4), tuple(range(9))], ids=lambda bad: f"bad: {bad}")
async def test_in_a_batch_that_fails_only_the_bad_inputs_fail_their_requests(bad: tuple[int, ...]) -> None:
    gate = GatedRun(failing_on(13))
    async with dispatcher(gate) as built:
        blocker = asyncio.create_task(built.submit(dense_of([ids(1)]), deadline()))
        await entered(gate)
        requests = [
            asyncio.create_task(built.submit(dense_of([ids(13 if number in bad else 2, number)]), deadline()))
            for number in range(9)
        ]
        await asyncio.sleep(0)
        gate.release()
        await blocker
        outcomes = await asyncio.gather(*requests, return_exceptions=True)
    assert [isinstance(outcome, EngineFailure) for outcome in outcomes] == [n in bad for n in range(9)]
    run = build_mean_run()
    for number, outcome in enumerate(outcomes):
        if isinstance(outcome, CompletedRequest):
            np.testing.assert_allclose(
                dense_rows(outcome), run(PackedBatch.pack([ids(2, number)])), rtol=1e-6
            )


async def test_an_engine_that_fails_on_everything_is_not_asked_for_ever() -> None:
    gate = GatedRun(failing_on(*range(20)))
    async with dispatcher(gate, limits=Limits(10_000, 20_000, 1_000)) as built:
        gate.release()
        with pytest.raises(EngineFailure):
            await built.submit(dense_of([ids(number % 20) for number in range(500)]), deadline())
    assert len(gate.batches) <= 1 + MAX_RUNS


async def test_a_request_whose_hidden_states_outgrow_its_bound_fails_and_leaves_nothing_behind() -> None:
    sequences = [ids(*[1] * 60)] * 10
    async with dispatcher(build_mean_run()) as built:
        request = BatchRequest(sequences, OutputKind.HIDDEN, max_bytes=60 * DIMENSIONS * 4)
        with pytest.raises(BatchTooLarge, match="send fewer inputs"):
            await built.submit(request, deadline())
        await built.submit(BatchRequest(sequences[:1], OutputKind.HIDDEN, request.max_bytes), deadline())
        assert built.queued_inputs == 0


async def test_hidden_states_come_with_the_rows_of_those_who_ask_even_out_of_a_failed_batch() -> None:
    gate = GatedRun(failing_on(13))
    async with dispatcher(gate) as built:
        blocker = asyncio.create_task(built.submit(dense_of([ids(1)]), deadline()))
        await entered(gate)
        plain = asyncio.create_task(built.submit(dense_of([ids(5)]), deadline()))
        with_hidden = asyncio.create_task(
            built.submit(BatchRequest([ids(2, 3), ids(4)], OutputKind.DENSE | OutputKind.HIDDEN), deadline())
        )
        bad = asyncio.create_task(built.submit(dense_of([ids(13)]), deadline()))
        await asyncio.sleep(0)
        gate.release()
        await blocker
        assert (await plain).results.hidden is None
        hidden = (await with_hidden).results.hidden
        with pytest.raises(EngineFailure):
            await bad
    run = build_mean_run()
    assert hidden is not None
    np.testing.assert_array_equal(hidden[0], run(PackedBatch.pack([ids(2), ids(3)])))
    np.testing.assert_array_equal(hidden[1], run(PackedBatch.pack([ids(4)])))


def failing_on(*tokens: int) -> Run:
    good = build_mean_run()

    def run(batch: PackedBatch) -> FloatArray:
        if np.isin(batch.token_ids, tokens).any():
            raise EngineFailure("cannot take this")
        return good(batch)

    return run


async def test_closing_fails_what_waits_and_refuses_what_comes() -> None:
    gate = GatedRun()
    built = Dispatcher([TinyRunner(gate)], Limits(64, 1_000, 100), clock=perf_counter, observer=Seen())
    running = asyncio.create_task(built.submit(dense_of([ids(1)]), deadline()))
    await entered(gate)
    waiting = asyncio.create_task(built.submit(dense_of([ids(2)]), deadline()))
    await asyncio.sleep(0)
    built.close("going down")
    outcomes = await asyncio.gather(running, waiting, return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["going down", "going down"]
    with pytest.raises(NotReady, match="going down"):
        await built.submit(dense_of([ids(3)]), deadline())
    gate.release()


@settings(max_examples=20, deadline=None)
@given(
    plan=st.lists(
        st.tuples(
            st.lists(st.integers(1, 40), min_size=1, max_size=12),
            st.sampled_from(["wait", "wait", "cancel", "expire"]),
        ),
        min_size=1,
        max_size=40,
    ),
    kinds=st.sampled_from([(TinyRunner,), (OverlappingRunner,), (TinyRunner, OverlappingRunner)]),
)
def test_every_request_gets_exactly_one_outcome(
    plan: list[tuple[list[int], str]], kinds: tuple[type[TinyRunner], ...]
) -> None:
    asyncio.run(_all_have_outcomes(plan, [kind(build_mean_run()) for kind in kinds]))


async def _all_have_outcomes(plan: list[tuple[list[int], str]], engines: Sequence[TinyRunner]) -> None:
    rng = np.random.default_rng(2)
    run = build_mean_run()
    async with dispatcher(*engines, limits=Limits(64, 1_500, 60)) as built:

        async def one(lengths: list[int], fate: str) -> str:
            sequences = [rng.integers(0, 20, length).astype(np.int32) for length in lengths]
            task = asyncio.ensure_future(
                built.submit(dense_of(sequences), deadline(0.0 if fate == "expire" else LATER))
            )
            if fate == "cancel":
                await asyncio.sleep(0)
                task.cancel()
            try:
                completed = await task
            except asyncio.CancelledError:
                return "cancelled"
            except (DeadlineExceeded, Overloaded) as error:
                return type(error).__name__
            want_rows = np.concatenate([run(PackedBatch.pack([sequence])) for sequence in sequences])
            np.testing.assert_allclose(dense_rows(completed), want_rows, rtol=1e-6)
            return "answered"

        outcomes = await asyncio.gather(*(one(lengths, fate) for lengths, fate in plan))
        for (_, fate), outcome in zip(plan, outcomes, strict=True):
            allowed = {
                "wait": {"answered"},
                "cancel": {"answered", "cancelled"},
                "expire": {"answered", "DeadlineExceeded"},
            }
            assert outcome in allowed[fate] | {"Overloaded"}
        assert (built.queued_inputs, built.queued_tokens) == (0, 0)


@pytest.mark.parametrize(
    ("batch_number", "want_batches"),
    [
        pytest.param(1, [[1], [2], [3]], id="cut ahead: what arrives later is in the batch after"),
        pytest.param(0, [[1], [2, 3]], id="the call of an earlier batch comes too late and does nothing"),
    ],
)
async def test_the_next_batch_is_prepared_while_one_runs(
    batch_number: int, want_batches: list[list[int]]
) -> None:
    gate = GatedRun()
    async with dispatcher(gate) as built:
        running = asyncio.create_task(built.submit(dense_of([ids(1)]), deadline()))
        await entered(gate)
        early = asyncio.create_task(built.submit(dense_of([ids(2)]), deadline()))
        await asyncio.sleep(0)
        built._prepare(batch_number)
        late = asyncio.create_task(built.submit(dense_of([ids(3)]), deadline()))
        await asyncio.sleep(0)
        gate.release()
        await asyncio.gather(running, early, late)
    assert [batch.token_ids.tolist() for batch in gate.batches] == want_batches


async def taken(engine: OverlappingRunner) -> None:
    """The engine has been given one more batch."""
    await asyncio.to_thread(engine.taken.acquire)


async def test_an_engine_that_overlaps_has_the_next_batch_before_the_first_has_ended_and_no_third() -> None:
    gate = GatedRun()
    engine = OverlappingRunner(gate)
    async with dispatcher(engine, limits=Limits(1, 1_000, 100)) as built:
        requests = []
        for number in range(4):
            requests.append(asyncio.create_task(built.submit(dense_of([ids(number)]), deadline())))
            await asyncio.sleep(0)
        await entered(gate)
        await taken(engine)
        await taken(engine)
        assert built.queued_inputs == 2
        assert not engine.taken.acquire(blocking=False)
        gate.release()
        completed = await asyncio.gather(*requests)
    assert [batch.token_ids.tolist() for batch in gate.batches] == [[0], [1], [2], [3]]
    run = build_mean_run()
    for number, request in enumerate(completed):
        np.testing.assert_array_equal(dense_rows(request), run(PackedBatch.pack([ids(number)])))


@pytest.mark.parametrize("fails_at", ["submission", "results"])
async def test_of_overlapping_batches_only_bad_inputs_fail(fails_at: str) -> None:
    if fails_at == "submission":
        engine = OverlappingRunner(build_mean_run(), refused=13)
    else:
        engine = OverlappingRunner(failing_on(13))
    async with dispatcher(engine, limits=Limits(8, 1_000, 100)) as built:
        requests = [built.submit(dense_of([ids(13 if n % 5 == 0 else 2, n)]), deadline()) for n in range(20)]
        outcomes = await asyncio.gather(*requests, return_exceptions=True)
    # 13 itself is one of the numbers.
    want = [number % 5 == 0 or number == 13 for number in range(20)]
    assert [isinstance(outcome, EngineFailure) for outcome in outcomes] == want


async def test_engines_behind_one_queue_run_at_the_same_time() -> None:
    first, second = GatedRun(), GatedRun()
    async with dispatcher(first, second, limits=Limits(1, 1_000, 100)) as built:
        requests = [
            asyncio.create_task(built.submit(dense_of([ids(number)]), deadline())) for number in range(6)
        ]
        await entered(first)
        await entered(second)
        assert built.queued_inputs == 4
        first.release()
        second.release()
        await asyncio.gather(*requests)
    first_ids = [int(batch.token_ids[0]) for gate in (first, second) for batch in gate.batches]
    assert sorted(first_ids) == [*range(6)]


async def test_a_batch_under_way_when_the_queue_closes_is_waited_for() -> None:
    gate = GatedRun()
    engine = OverlappingRunner(gate)
    built = Dispatcher([engine], Limits(1, 1_000, 100), clock=perf_counter, observer=Seen())
    # The last of equal inputs is taken first.
    running = asyncio.create_task(built.submit(dense_of([ids(1), ids(2), ids(3)]), deadline()))
    await entered(gate)
    await taken(engine)
    await taken(engine)
    built.close("going down")
    with pytest.raises(NotReady, match="going down"):
        await running
    gate.release()
    built.join(LATER)
    assert [batch.token_ids.tolist() for batch in gate.batches] == [[3], [2]]


async def test_nothing_is_kept_of_an_answered_request_until_its_deadline() -> None:
    def submit(built: Dispatcher) -> tuple[weakref.ref[object], asyncio.Future[object]]:
        future = asyncio.get_running_loop().create_future()

        def settle(outcome: object) -> None:
            future.set_result(outcome)

        built.start(dense_of([ids(1)]), deadline(), settle)
        return weakref.ref(settle), future

    async with dispatcher(build_mean_run()) as built:
        request, outcome_of_request = submit(built)
        await outcome_of_request
        # The engine's thread lets go of its batch after it has handed over the outcome.
        while request() is not None:  # turns of the loop, no time
            await asyncio.sleep(0)
            gc.collect()


async def test_an_engine_that_is_given_twice_runs_two_batches_at_once_and_no_third() -> None:
    gate = GatedRun()
    engine = TinyRunner(gate)
    async with dispatcher(engine, engine) as built:
        running = [
            asyncio.create_task(built.submit(dense_of([ids(*[number] * 64)]), deadline()))
            for number in range(3)
        ]
        await entered(gate)
        await entered(gate)
        assert (len(gate.batches), built.queued_inputs) == (2, 1)
        gate.release()
        completed = await asyncio.gather(*running)
    run = build_mean_run()
    want_rows = [run(PackedBatch.pack([ids(*[number] * 64)])) for number in range(3)]
    np.testing.assert_allclose([dense_rows(request) for request in completed], want_rows, rtol=1e-6)


def dense_by(client: str | None, *values: int) -> BatchRequest:
    return BatchRequest([ids(*values)], OutputKind.DENSE, client=None if client is None else Client(client))


async def test_a_client_that_runs_nothing_is_answered_while_the_batch_of_another_runs() -> None:
    gate, express = GatedRun(), build_mean_run()
    async with dispatcher(gate, express=express) as built:
        large = asyncio.create_task(built.submit(dense_by("large", *[1] * 64), deadline()))
        await entered(gate)
        waiting = asyncio.create_task(built.submit(dense_by("large", 2, 2), deadline()))
        completed = await built.submit(dense_by("small", 3, 3), deadline())
        np.testing.assert_allclose(dense_rows(completed), express(PackedBatch.pack([ids(3, 3)])), rtol=1e-6)
        assert not large.done()
        assert built.queued_inputs == 1, "the large client waits for its own batch"
        gate.release()
        await asyncio.gather(large, waiting)
    assert [batch.lengths.tolist() for batch in gate.batches] == [[64], [2]]


@pytest.mark.parametrize(
    "client", [pytest.param("large", id="the same client"), pytest.param(None, id="one that has no name")]
)
async def test_nothing_runs_beside_the_batches_of_a_single_client(client: str | None) -> None:
    gate, express = GatedRun(), GatedRun()
    async with dispatcher(gate, express=express) as built:
        first = asyncio.create_task(built.submit(dense_by(client, *[1] * 64), deadline()))
        await entered(gate)
        later = [asyncio.create_task(built.submit(dense_by(client, 2), deadline())) for _ in range(3)]
        await asyncio.sleep(0)
        gate.release()
        await asyncio.gather(first, *later)
    assert [batch.lengths.tolist() for batch in gate.batches] == [[64], [1, 1, 1]]
    assert not express.batches


async def test_batches_beside_the_others_are_counted_and_do_not_change_the_rate() -> None:
    gate, observer = GatedRun(), Seen()
    async with dispatcher(gate, express=build_mean_run(), observer=observer) as built:
        built.learn_rate(64.0)
        large = asyncio.create_task(built.submit(dense_by("large", *[1] * 64), deadline()))
        await entered(gate)
        await built.submit(dense_by("small", 3), deadline())
        assert built.queue_depth.tokens_per_second == 64.0
        gate.release()
        await large
    assert [tokens for _, tokens, _ in observer.batches] == [1, 64]


async def test_threads_that_run_batches_give_way_once_a_batch_has_run_beside_them() -> None:
    nice: list[int] = []
    mean, gate = build_mean_run(), GatedRun()

    def run(batch: PackedBatch) -> FloatArray:
        nice.append(read_nice())
        return gate(batch)

    async with dispatcher(run, express=mean) as built:
        large = asyncio.create_task(built.submit(dense_by("large", 1), deadline()))
        await entered(gate)
        await built.submit(dense_by("small", 1), deadline())
        gate.release()
        await large
        for _ in range(1000):
            if len(nice) > 1:
                break
            # It runs beside the others where no thread has come back for work yet.
            await built.submit(dense_by("large", 1), deadline())
    assert nice == [read_nice(), min(read_nice() + GIVE_WAY_BY, MAX_NICE)]
