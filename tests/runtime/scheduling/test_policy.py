"""The batching rules, case by case and as a model that hypothesis drives."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from embedserve_runtime.errors import BatchTooLarge, Overloaded
from embedserve_runtime.scheduling.policy import (
    LOOK_AHEAD,
    MAX_RETRY_SECONDS,
    MIN_RETRY_SECONDS,
    BatchPart,
    BatchPlan,
    Limits,
    RequestQueue,
)

NEVER = float("inf")


def policy_with(*requests: list[int], batch_tokens: int = 100, queue_tokens: int = 10_000) -> RequestQueue:
    """Requests 1, 2, … with the given input lengths, in that order."""
    policy = RequestQueue(Limits(batch_tokens, queue_tokens, queue_inputs=1_000))
    for number, lengths in enumerate(requests, 1):
        policy.admit(number, lengths, NEVER)
    return policy


def batches_of(policy: RequestQueue) -> list[dict[int, tuple[int, ...]]]:
    batches = []
    while batch := policy.form_batch(0.0):
        batches.append({part.request_id: tuple(part.inputs) for part in batch.parts})
    return batches


CASES = [
    pytest.param([[10]], [{1: (0,)}], id="one input is one batch"),
    pytest.param([[60], [60]], [{1: (0,)}, {2: (0,)}], id="the budget closes a batch"),
    pytest.param([[50], [50]], [{1: (0,), 2: (0,)}], id="the budget may be met exactly"),
    pytest.param(
        [[60], [60], [40]], [{1: (0,), 3: (0,)}, {2: (0,)}], id="what fits goes before what does not"
    ),
    pytest.param([[500]], [{1: (0,)}], id="an input over the budget runs alone"),
    pytest.param([[10], [500], [10]], [{1: (0,), 3: (0,)}, {2: (0,)}], id="and makes room for others first"),
    pytest.param([[5, 30, 10]], [{1: (1, 2, 0)}], id="the longest inputs of a request go first"),
    pytest.param([[40, 90, 30]], [{1: (1,)}, {1: (0, 2)}], id="the longest that fits fills the rest"),
    pytest.param(
        [[50, 50, 50, 50], [50]], [{1: (3,), 2: (0,)}, {1: (1, 2)}, {1: (0,)}], id="requests take turns"
    ),
]


@pytest.mark.parametrize(("requests", "want_batches"), CASES)
def test_batches(requests: list[list[int]], want_batches: list[dict[int, tuple[int, ...]]]) -> None:
    batches = batches_of(policy_with(*requests))
    assert [{r: tuple(sorted(i)) for r, i in batch.items()} for batch in batches] == [
        {r: tuple(sorted(i)) for r, i in batch.items()} for batch in want_batches
    ]


def test_inside_a_request_the_longest_input_is_cut_first() -> None:
    first = policy_with([5, 60, 70]).form_batch(0.0)
    assert first is not None
    assert (list(first.parts[0].inputs), first.tokens) == ([2, 0], 75)


def test_a_request_that_fits_as_a_whole_is_taken_as_it_came() -> None:
    assert policy_with([5, 30, 10]).form_batch(0.0) == BatchPlan(
        (BatchPart(1, range(3)),), tokens=45, inputs=3, clients=(None,)
    )


def test_a_single_query_behind_ten_thousand_texts_is_in_the_next_batch() -> None:
    policy = RequestQueue(Limits(batch_tokens=4_096, queue_tokens=10**7, queue_inputs=20_000))
    policy.admit(1, [300] * 10_000, NEVER)
    policy.form_batch(0.0)
    policy.admit(2, [12], NEVER)
    batch = policy.form_batch(0.0)
    assert batch is not None
    assert BatchPart(2, range(1)) in batch.parts


def test_ten_thousand_texts_go_on_while_queries_fill_every_batch() -> None:
    policy = RequestQueue(Limits(batch_tokens=1_000, queue_tokens=10**7, queue_inputs=20_000))
    policy.admit(0, [100] * 10_000, NEVER)
    turns = []
    for cut in range(100):
        for query in range(10):
            policy.admit(1 + 10 * cut + query, [100], NEVER)
        batch = policy.form_batch(0.0)
        assert batch is not None
        turns += [cut for part in batch.parts if part.request_id == 0]
    # A turn comes round when the queries that were there before it have been served, never later.
    backlogs = [sum(1 for turn in turns if turn < cut) * 2 for cut in turns]
    gaps = [after - before for before, after in itertools.pairwise(turns)]
    assert all(gap <= backlog // 10 + 2 for gap, backlog in zip(gaps, backlogs[1:], strict=True))


def test_nothing_behind_the_look_ahead_is_visited() -> None:
    long, short = [60], [5]
    policy = policy_with(*[long] * (LOOK_AHEAD + 2), short)
    first = policy.form_batch(0.0)
    assert first is not None
    assert [part.request_id for part in first.parts] == [1]


def test_a_cancelled_request_leaves_the_queue_at_once() -> None:
    policy = policy_with([10, 10], [20])
    policy.abort(1)
    policy.abort(1)
    assert (policy.queued_inputs, policy.queued_tokens) == (1, 20)
    assert batches_of(policy) == [{2: (0,)}]


def test_a_request_past_its_deadline_is_dropped_by_the_cut() -> None:
    policy = policy_with()
    policy.admit(1, [10], deadline=5.0)
    policy.admit(2, [10], deadline=6.0)
    batch = policy.form_batch(now=5.0)
    assert batch == BatchPlan((BatchPart(2, range(1)),), tokens=10, inputs=1, clients=(None,))
    assert policy.queued_inputs == 0


@pytest.mark.parametrize(
    ("lengths", "error"),
    [
        pytest.param([60], Overloaded, id="more tokens than are free now"),
        pytest.param([1] * 9, Overloaded, id="more inputs than are free now"),
        pytest.param([101], BatchTooLarge, id="more tokens than ever"),
        pytest.param([1] * 11, BatchTooLarge, id="more inputs than ever"),
    ],
)
def test_a_full_queue_refuses_and_keeps_its_state(lengths: list[int], error: type[Exception]) -> None:
    policy = RequestQueue(Limits(batch_tokens=50, queue_tokens=100, queue_inputs=10))
    policy.admit(1, [25, 25], NEVER)
    with pytest.raises(error):
        policy.admit(2, lengths, NEVER)
    assert (policy.queued_inputs, policy.queued_tokens) == (2, 50)
    assert policy.form_batch(0.0) == BatchPlan(
        (BatchPart(1, range(2)),), tokens=50, inputs=2, clients=(None,)
    )


@pytest.mark.parametrize(
    ("rate", "want_seconds"),
    [
        pytest.param(None, MIN_RETRY_SECONDS, id="nothing measured yet"),
        pytest.param(10.0, 5.0, id="the excess of 50 tokens over the rate"),
        pytest.param(1_000.0, MIN_RETRY_SECONDS, id="never less than a second"),
        pytest.param(0.01, MAX_RETRY_SECONDS, id="never for ever"),
    ],
)
def test_retry_after_comes_from_the_measured_rate(rate: float | None, want_seconds: float) -> None:
    policy = policy_with([90], queue_tokens=100)
    policy.tokens_per_second = rate
    with pytest.raises(Overloaded) as caught:
        policy.admit(2, [60], NEVER)
    assert caught.value.retry_after == want_seconds


def test_the_rate_follows_the_batches_that_ran() -> None:
    policy = policy_with([100])
    policy.record(1_000, 1.0)
    assert policy.queue_seconds == pytest.approx(0.1)
    for _ in range(50):
        policy.record(2_000, 1.0)
    assert policy.tokens_per_second == pytest.approx(2_000, rel=0.01)


def admit_all(policy: RequestQueue, client: str, numbers: range, length: int) -> None:
    for number in numbers:
        policy.admit(number, [length], NEVER, client)


def test_a_client_with_a_hundred_requests_has_no_more_of_a_batch_than_one_with_two() -> None:
    policy = RequestQueue(Limits(batch_tokens=40, queue_tokens=10_000, queue_inputs=1_000))
    admit_all(policy, "large", range(100), length=10)
    admit_all(policy, "small", range(100, 102), length=10)
    batch = policy.form_batch(0.0)
    assert batch is not None
    assert sorted(part.request_id for part in batch.parts) == [0, 1, 100, 101]


def test_a_request_of_one_client_waits_for_one_quantum_of_each_other_client_and_no_longer() -> None:
    policy = RequestQueue(Limits(batch_tokens=10, queue_tokens=10_000, queue_inputs=1_000))
    for client in range(5):
        admit_all(policy, f"client-{client}", range(100 * client, 100 * client + 50), length=10)
    policy.admit(999, [10], NEVER, "new")
    numbers = [
        part.request_id for _ in range(6) for part in (policy.form_batch(0.0) or BatchPlan((), 0, 0)).parts
    ]
    assert numbers == [0, 100, 200, 300, 400, 999]


@pytest.mark.parametrize(
    ("clients", "share"),
    [
        pytest.param(1, 600, id="one client has half of the queue"),
        pytest.param(2, 400, id="two have a third each"),
        pytest.param(3, 300, id="three have a quarter each"),
    ],
)
def test_clients_share_the_queue_and_leave_room_for_one_more(clients: int, share: int) -> None:
    policy = RequestQueue(Limits(batch_tokens=10, queue_tokens=1_200, queue_inputs=10_000))
    held = [0] * clients
    refused: set[int] = set()
    for number in range(2 * 1_200):
        client = number % clients
        try:
            policy.admit(number, [1], NEVER, f"client-{client}")
        except Overloaded:
            refused.add(client)
        else:
            held[client] += 1
    assert len(refused) == clients
    assert all(abs(tokens - share) <= 1 for tokens in held), held
    policy.admit(9_999, [1] * (share - clients), NEVER, "new")


def test_a_client_alone_may_send_what_fills_an_empty_queue() -> None:
    policy = RequestQueue(Limits(batch_tokens=10, queue_tokens=100, queue_inputs=100))
    policy.admit(1, [100], NEVER, "alone")
    assert policy.queued_tokens == 100


EXPRESS_CASES = [
    pytest.param({"idle": [[5]]}, {"idle"}, id="a client that runs nothing"),
    pytest.param({"idle": [[5], [7, 7]], "new": [[9]]}, {"idle", "new"}, id="all of them together"),
    pytest.param({"runs": [[5]]}, set[str](), id="not one of which a batch runs"),
    pytest.param({"runs": [[5]], "idle": [[5]]}, {"idle"}, id="only those that run nothing"),
    pytest.param({"idle": [[30, 20]], "new": [[9]]}, {"new"}, id="not one with more than a batch waiting"),
    pytest.param({"idle": [[25]], "new": [[20]]}, {"idle"}, id="no more than a batch of all"),
    pytest.param({None: [[5]]}, set[str](), id="not those that are not told apart"),
]


@pytest.mark.parametrize(("waiting", "want_clients"), EXPRESS_CASES)
def test_who_is_in_a_batch_beside_the_others(
    waiting: dict[str | None, list[list[int]]], want_clients: set[str]
) -> None:
    policy = RequestQueue(Limits(batch_tokens=40, queue_tokens=10_000, queue_inputs=1_000))
    policy.admit(0, [40], NEVER, "runs")
    assert policy.form_batch(0.0)
    numbers = itertools.count(1)
    want: dict[int, int] = {}
    for client, requests in waiting.items():
        for lengths in requests:
            number = next(numbers)
            policy.admit(number, lengths, NEVER, client)
            if client in want_clients:
                want[number] = len(lengths)
    batch = policy.form_express_batch(0.0)
    assert {part.request_id: len(part.inputs) for part in batch.parts} == want if batch else not want
    assert batch is None or set(batch.clients) == want_clients


def test_a_client_runs_beside_the_others_again_once_its_batch_has_ended() -> None:
    policy = RequestQueue(Limits(batch_tokens=40, queue_tokens=10_000, queue_inputs=1_000))
    policy.admit(1, [5], NEVER, "idle")
    batch = policy.form_express_batch(0.0)
    assert batch is not None
    policy.admit(2, [5], NEVER, "idle")
    assert policy.form_express_batch(0.0) is None
    policy.end_batch(batch.clients)
    assert policy.form_express_batch(0.0) is not None


def test_a_client_that_is_not_told_apart_may_fill_the_queue() -> None:
    policy = RequestQueue(Limits(batch_tokens=10, queue_tokens=100, queue_inputs=100))
    for number in range(10):
        policy.admit(number, [10], NEVER)
    assert policy.queued_tokens == 100


@dataclass
class Expected:
    """A request that was admitted, as the model of the policy knows it."""

    lengths: list[int]
    deadline: float
    max_cuts: int
    client: str | None
    waiting: set[int] = field(default_factory=set)
    cuts_waited: int = 0
    served: bool = False


class QueueModel(RuleBasedStateMachine):
    """Any order of admissions, cancellations, passing time and cuts."""

    LIMITS = Limits(batch_tokens=64, queue_tokens=2_000, queue_inputs=60)
    CLIENTS: tuple[str | None, ...] = (None,)

    def __init__(self) -> None:
        super().__init__()
        self.policy = RequestQueue(self.LIMITS)
        self.now = 0.0
        self.number = 0
        self.live: dict[int, Expected] = {}
        self.gone: set[int] = set()

    @rule(
        lengths=st.lists(st.integers(1, 100), min_size=1, max_size=30),
        patience=st.one_of(st.just(NEVER), st.integers(1, 10)),
        client_index=st.integers(0, 2),
    )
    def admit(self, lengths: list[int], patience: float, client_index: int) -> None:
        self.number += 1
        client = self.CLIENTS[client_index % len(self.CLIENTS)]
        free = Counter(
            tokens=self.LIMITS.queue_tokens - self.policy.queued_tokens,
            inputs=self.LIMITS.queue_inputs - self.policy.queued_inputs,
        )
        own = [request for request in self.live.values() if request.client == client]
        if client is not None:
            free["inputs"] -= sum(len(request.waiting) for request in own)
            free["tokens"] -= sum(request.lengths[i] for request in own for i in request.waiting)
        fits = sum(lengths) <= free["tokens"] and len(lengths) <= free["inputs"]
        try:
            self.policy.admit(self.number, lengths, self.now + patience, client)
        except (Overloaded, BatchTooLarge):
            assert not fits
            return
        assert fits
        # One cut for each of its client's requests before it, and in each of them one for every other client.
        max_cuts = len(own) if client is None else (len(own) + 1) * len(self.CLIENTS)
        self.live[self.number] = Expected(
            lengths, self.now + patience, max_cuts, client, waiting=set(range(len(lengths)))
        )

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.live)))
        self.policy.abort(number)
        del self.live[number]
        self.gone.add(number)

    @rule(seconds=st.integers(1, 5))
    def let_time_pass(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def cut(self) -> None:
        batch = self.policy.form_batch(self.now)
        for number in [n for n, request in self.live.items() if request.deadline <= self.now]:
            # The cut drops it when it comes by; a caller that saw the deadline pass cancels it.
            self.policy.abort(number)
            del self.live[number]
            self.gone.add(number)
        if batch is None:
            assert not self.live, "work that waits is never left lying"
            return
        self.check(batch)

    def check(self, batch: BatchPlan, *, is_express: bool = False) -> None:
        lengths = [self.live[part.request_id].lengths[index] for part in batch.parts for index in part.inputs]
        assert len({part.request_id for part in batch.parts}) == len(batch.parts)
        assert batch.tokens == sum(lengths)
        assert batch.inputs == len(lengths)
        assert batch.tokens <= self.LIMITS.batch_tokens or batch.inputs == 1, "the budget is kept"
        served = {part.request_id for part in batch.parts}
        assert not served & self.gone, "cancelled and expired requests never run"
        for part in batch.parts:
            request = self.live[part.request_id]
            assert set(part.inputs) <= request.waiting, "nothing runs twice"
            request.waiting -= set(part.inputs)
            request.served = True
            if not request.waiting:
                del self.live[part.request_id]
        for request in self.live.values():
            if not request.served and not is_express:
                request.cuts_waited += 1
                assert request.cuts_waited <= request.max_cuts, "how long anyone waits is bounded"

    @invariant()
    def what_waits_is_what_was_admitted_and_not_taken(self) -> None:
        expired = {n for n, request in self.live.items() if request.deadline <= self.now}
        waiting = [r.lengths[i] for r in self.live.values() for i in r.waiting]
        assert self.policy.queued_inputs == len(waiting) or expired
        assert self.policy.queued_tokens == sum(waiting) or expired

    def teardown(self) -> None:
        """Everything that is left comes out, so nothing was lost."""
        for number in [n for n, request in self.live.items() if request.deadline <= self.now]:
            self.policy.abort(number)
            del self.live[number]
        while batch := self.policy.form_batch(self.now):
            self.check(batch)
        assert not self.live
        assert (self.policy.queued_inputs, self.policy.queued_tokens) == (0, 0)


TestQueueModel = QueueModel.TestCase
TestQueueModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


class ClientQueueModel(QueueModel):
    """The same with several clients, who share the queue."""

    CLIENTS = ("one", "another", "a third")

    def __init__(self) -> None:
        super().__init__()
        self.running: list[BatchPlan] = []

    @rule()
    def cut_beside_the_others(self) -> None:
        owners = {number: request.client for number, request in self.live.items()}
        batch = self.policy.form_express_batch(self.now)
        if batch is None:
            return
        clients = {owners[part.request_id] for part in batch.parts}
        assert clients == set(batch.clients)
        assert not clients & {client for running in self.running for client in running.clients}
        self.check(batch, is_express=True)
        clients_left = {request.client for request in self.live.values()}
        assert not clients & clients_left, "all that such a client has is taken"

    @precondition(lambda self: self.running)
    @rule()
    def end_the_oldest_batch(self) -> None:
        self.policy.end_batch(self.running.pop(0).clients)

    def check(self, batch: BatchPlan, *, is_express: bool = False) -> None:
        super().check(batch, is_express=is_express)
        self.running.append(batch)


TestClientQueueModel = ClientQueueModel.TestCase
TestClientQueueModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
