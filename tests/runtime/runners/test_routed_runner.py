"""Two models behind one runner: each sequence goes its way, and the next batch may come while one runs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from embedserve_runtime.errors import EngineFailure
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch, TokenSequence
from embedserve_runtime.forward.engine import MemoryStatus
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.runners.base import RoutedRunner, Runner, TaskRunner
from embedserve_runtime.scheduling.batches import BatchRequest, CompletedRequest
from embedserve_runtime.scheduling.policy import Limits
from tests.runtime.scheduling.test_dispatcher import deadline, dense_rows, dispatcher, ids, taken
from tests.support.tiny_runners import GatedRun, OverlappingRunner, Run, TinyRunner, build_mean_run

MIXED = (True, False, False, True, True)
WAYS = {
    "documents": (False,) * 3,
    "queries": (True,) * 3,
    "both in turns": MIXED,
}


def negated(run: Run) -> Run:
    """So that a sequence that has gone the wrong way shows."""
    return lambda batch: -run(batch)


def text(number: int, *, query: bool) -> TokenSequence:
    return TokenSequence(np.arange(number, 2 * number + 1, dtype=np.int32), is_query_role=query)


def routed(documents: TinyRunner, queries: TinyRunner) -> RoutedRunner:
    # Nobody reads their cards.
    return RoutedRunner(cast("Runner", documents), cast("Runner", queries))


def expected(sequences: list[TokenSequence]) -> FloatArray:
    ways = {False: build_mean_run(), True: negated(build_mean_run())}
    return np.concatenate(
        [ways[sequence.is_query_role](PackedBatch.pack([sequence])) for sequence in sequences]
    )


@pytest.mark.parametrize(
    ("documents", "queries", "under_way"),
    [
        pytest.param(TinyRunner, TinyRunner, 1, id="neither overlaps"),
        pytest.param(OverlappingRunner, TinyRunner, 2, id="documents overlap"),
        pytest.param(TinyRunner, OverlappingRunner, 2, id="queries overlap"),
        pytest.param(OverlappingRunner, OverlappingRunner, 2, id="both overlap"),
    ],
)
def test_each_sequence_gets_what_its_way_gives_alone(
    documents: type[TinyRunner], queries: type[TinyRunner], under_way: int
) -> None:
    runner = routed(documents(build_mean_run()), queries(negated(build_mean_run())))
    assert runner.max_in_flight == under_way
    batches = [[text(n, query=query) for n, query in enumerate(ways)] for ways in WAYS.values()]
    submitted = [
        runner.submit(PackedBatch.pack(batch), OutputKind.DENSE | OutputKind.HIDDEN) for batch in batches
    ]
    for batch, each in zip(batches, submitted, strict=True):
        results = each.results()
        np.testing.assert_array_equal(results.dense, expected(batch))
        assert [len(states) for states in results.hidden or ()] == [len(each) for each in batch]


async def test_a_routed_model_has_the_next_batch_of_both_ways_before_the_first_has_ended() -> None:
    gates = GatedRun(), GatedRun(negated(build_mean_run()))
    engines = OverlappingRunner(gates[0]), OverlappingRunner(gates[1])
    texts = [TokenSequence(ids(n), is_query_role=n % 2 == 1) for n in range(6)]
    # One of each way in a batch.
    async with dispatcher(routed(*engines), limits=Limits(2, 1_000, 100)) as built:
        request = asyncio.create_task(built.submit(BatchRequest(texts, OutputKind.DENSE), deadline()))
        for engine in engines:
            await taken(engine)
            await taken(engine)
        assert built.queued_inputs == 2
        for gate in gates:
            gate.release()
        np.testing.assert_array_equal(dense_rows(await request), expected(texts))
    assert [[batch.token_ids.tolist() for batch in gate.batches] for gate in gates] == [
        [[4], [2], [0]],
        [[5], [3], [1]],
    ]


@pytest.mark.parametrize("way", [False, True], ids=["document", "query"])
async def test_a_text_that_one_way_refuses_fails_alone(way: bool) -> None:
    ways = [OverlappingRunner(build_mean_run()), OverlappingRunner(negated(build_mean_run()))]
    ways[way] = replace(ways[way], refused=7)
    texts = [TokenSequence(ids(n, 2), is_query_role=query) for n in (1, 7, 3) for query in (False, True)]
    async with dispatcher(routed(*ways), limits=Limits(8, 1_000, 100)) as built:
        requests = [built.submit(BatchRequest([text], OutputKind.DENSE), deadline()) for text in texts]
        outcomes = await asyncio.gather(*requests, return_exceptions=True)
    for each, outcome in zip(texts, outcomes, strict=True):
        if each.is_query_role == way and each.ids[0] == 7:
            assert isinstance(outcome, EngineFailure)
        else:
            assert isinstance(outcome, CompletedRequest)
            np.testing.assert_array_equal(dense_rows(outcome), expected([each]))


@pytest.mark.parametrize(
    ("documents", "queries", "want"),
    [
        pytest.param(None, None, None, id="neither is limited"),
        pytest.param(100, None, 100, id="one is limited"),
        pytest.param(100, 50, 50, id="both are limited"),
    ],
)
def test_the_memory_of_both_ways_is_told_as_one(
    documents: int | None, queries: int | None, want: int | None
) -> None:
    ways = [
        TinyRunner(build_mean_run(), memory=MemoryStatus(failures, limit))
        for failures, limit in ((1, documents), (2, queries))
    ]
    assert routed(*ways).memory == MemoryStatus(3, want)


def test_each_sequence_of_a_model_with_tasks_gets_what_its_task_gives_alone() -> None:
    plain, scales = build_mean_run(), [np.float32(scale) for scale in (1, 10, -3)]

    def multiplied(scale: np.float32) -> Run:
        return lambda batch: scale * plain(batch)

    runner = TaskRunner([cast("Runner", TinyRunner(multiplied(scale))) for scale in scales])
    for tasks in ((0, 0), (2, 2), (1, 0, 2, 1)):
        sequences = [
            TokenSequence(np.arange(n, 2 * n + 1, dtype=np.int32), task=task) for n, task in enumerate(tasks)
        ]
        vectors = runner.run(PackedBatch.pack(sequences), OutputKind.DENSE).dense
        want = [
            scales[task] * plain(PackedBatch.pack([sequence]))
            for task, sequence in zip(tasks, sequences, strict=True)
        ]
        np.testing.assert_array_equal(vectors, np.concatenate(want))
