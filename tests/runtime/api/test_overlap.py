"""Nothing that goes on around the engine waits for it."""

from __future__ import annotations

import asyncio

from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from tests.support.in_process_server import serve_in_process
from tests.support.tiny_runners import GatedRun, build_mean_run


async def test_texts_are_read_and_tokenised_and_answers_written_while_the_engine_runs() -> None:
    mean, second_batch = build_mean_run(), GatedRun()

    def run(batch: PackedBatch) -> FloatArray:
        return mean(batch) if len(first_batch.batches) == 1 else second_batch(batch)

    first_batch = GatedRun(run)
    async with serve_in_process(first_batch) as server:
        first = asyncio.create_task(server.client.post("/embed", json={"inputs": "hello"}))
        await asyncio.to_thread(first_batch.entered.acquire)
        second = asyncio.create_task(server.client.post("/embed", json={"inputs": ["good", "world"]}))
        while server.dispatcher.queued_inputs < 2:  # noqa: ASYNC110  # turns of the loop, no time
            await asyncio.sleep(0)
        first_batch.release()
        await asyncio.to_thread(second_batch.entered.acquire)
        answer = await first
        assert (answer.status_code, len(answer.json()), second.done()) == (200, 1, False)
        second_batch.release()
        assert len((await second).json()) == 2
