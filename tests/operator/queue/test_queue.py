"""The work queue: one pass at a time for a key, no event lost, pauses that grow and end."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from embedserve_operator.queue.work_queue import KeyQueue, WorkQueue

KEYS = st.sampled_from(["a", "b", "c"])


class QueueMachine(RuleBasedStateMachine):
    """Every order of events, passes, failures and time."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: KeyQueue[str] = KeyQueue(base_delay=1.0, max_delay=8.0)
        self.now = 0.0
        self.working: set[str] = set()
        self.owed: set[str] = set()
        """Keys to which something happened after their last pass began, or whose pass failed."""

    @rule(key=KEYS)
    def something_happens(self, key: str) -> None:
        self.queue.add(key)
        self.owed.add(key)

    @rule(key=KEYS)
    def all_are_looked_over(self, key: str) -> None:
        self.queue.add_low_priority(key)
        self.owed.add(key)

    @rule()
    def a_worker_asks(self) -> None:
        key = self.queue.get(self.now)
        if key is None:
            return
        assert key not in self.working, "two workers on one key"
        assert key in self.owed, "a pass that nothing asked for"
        self.working.add(key)
        self.owed.discard(key)

    @precondition(lambda self: self.working)
    @rule(succeeded=st.booleans(), data=st.data())
    def a_pass_ends(self, succeeded: bool, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.working)))
        self.working.discard(key)
        self.queue.done(key, self.now, succeeded=succeeded)
        if not succeeded:
            self.owed.add(key)

    @rule(seconds=st.floats(0.0, 20.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def no_pause_is_longer_than_the_limit(self) -> None:
        due = self.queue.next_due()
        assert due is None or due <= self.now + 8.0

    def teardown(self) -> None:
        """Whatever happened, everything owed gets its pass."""
        for busy in sorted(self.working):
            self.queue.done(busy, self.now, succeeded=True)
        self.working.clear()
        self.now += 8.0
        served = set()
        while (key := self.queue.get(self.now)) is not None:
            served.add(key)
        assert self.owed <= served


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


def test_pauses_double_up_to_the_limit_and_success_forgets_them() -> None:
    queue: KeyQueue[str] = KeyQueue(base_delay=1.0, max_delay=5.0)
    queue.add("a")
    pauses, now = [], 0.0
    for _ in range(4):
        assert queue.get(now) == "a"
        queue.done("a", now, succeeded=False)
        due = queue.next_due()
        assert due is not None
        pauses.append(due - now)
        now = due
    assert pauses == [1.0, 2.0, 4.0, 5.0]
    assert queue.get(now) == "a"
    queue.done("a", now, succeeded=True)
    queue.add("a")
    assert queue.get(now) == "a"
    queue.done("a", now, succeeded=False)
    assert queue.next_due() == now + 1.0


def test_a_new_event_ends_a_pause() -> None:
    queue: KeyQueue[str] = KeyQueue(base_delay=60.0, max_delay=60.0)
    queue.add("a")
    assert queue.get(0.0) == "a"
    queue.done("a", 0.0, succeeded=False)
    assert queue.get(1.0) is None
    queue.add("a")
    assert queue.get(1.0) == "a"


def test_a_hundred_events_during_a_pass_are_one_more_pass() -> None:
    queue: KeyQueue[str] = KeyQueue(base_delay=1.0, max_delay=1.0)
    queue.add("a")
    assert queue.get(0.0) == "a"
    for _ in range(100):
        queue.add("a")
    assert queue.get(0.0) is None
    queue.done("a", 0.0, succeeded=True)
    assert queue.get(0.0) == "a"
    queue.done("a", 0.0, succeeded=True)
    assert queue.get(0.0) is None


def test_what_something_happened_to_comes_before_what_is_only_looked_over() -> None:
    queue: KeyQueue[str] = KeyQueue(base_delay=1.0, max_delay=1.0)
    for key in ("a", "b", "c"):
        queue.add_low_priority(key)
    queue.add("c")
    queue.add("d")
    assert [queue.get(0.0) for _ in range(5)] == ["c", "d", "a", "b", None]


async def test_between_two_keys_everybody_else_has_a_turn() -> None:
    """Passes that change nothing never wait, and the Lease has to be renewed among thousands of them."""
    queue: WorkQueue[int] = WorkQueue(base_delay=1.0, max_delay=1.0)
    for key in range(100):
        queue.add_low_priority(key)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(count_turns())
    while (number := await queue.get(0.0)) is not None:
        queue.done(number, succeeded=True)
    task.cancel()
    assert turns >= 100


def test_endless_failure_does_not_overflow() -> None:
    queue: KeyQueue[str] = KeyQueue(base_delay=1.0, max_delay=60.0)
    queue.add("a")
    now = 0.0
    for _ in range(2000):
        assert queue.get(now) == "a"
        queue.done("a", now, succeeded=False)
        now += 60.0


async def test_waiting_workers_share_what_comes() -> None:
    queue: WorkQueue[str] = WorkQueue(base_delay=1.0, max_delay=1.0)
    waiting = [asyncio.create_task(queue.get(60.0)) for _ in range(2)]
    queue.add("a")
    queue.add("b")
    assert sorted(str(key) for key in await asyncio.gather(*waiting)) == ["a", "b"]


async def test_a_worker_is_woken_when_a_pause_ends() -> None:
    queue: WorkQueue[str] = WorkQueue(base_delay=0.01, max_delay=0.01)
    queue.add("a")
    assert await queue.get(1.0) == "a"
    queue.done("a", succeeded=False)
    assert await queue.get(60.0) == "a"


@pytest.mark.parametrize("longest", [0.0, 0.01])
async def test_a_worker_gets_nothing_when_nothing_happens(longest: float) -> None:
    assert await WorkQueue[str](base_delay=1.0, max_delay=1.0).get(longest) is None
