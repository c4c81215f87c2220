"""Self-checks of pods run beside the passes: those that do not answer are in nobody's way but their namespace's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from embedserve_operator.apply.pod_client import PodClient
from embedserve_operator.apply.self_checks import MAX_RUNNING, MAX_RUNNING_OF_NAMESPACE, SelfCheckRunner
from embedserve_operator.kube.references import ObjectKey
from embedserve_operator.plan import SelfCheckRequest
from embedserve_operator.queue.work_queue import WorkQueue
from embedserve_operator.state.pods import PodState
from tests.operator.running_checks import wait_for_self_checks

SILENT, SOUND = "127.0.0.4", "127.0.0.5"
ANSWER = {"vector_space": "vs1-0123456789abcdef0123", "dimensions": 384, "problems": []}


@dataclass
class Pods:
    """Pods at two addresses: those at one answer, those at the other only when they are told to."""

    unanswered: int = 0
    """The number of requests that the silent pods have not answered."""
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    problems: list[str] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        if request.transport.get_extra_info("sockname")[0] == SILENT:
            self.unanswered += 1
            await self.may_answer.wait()
        return web.json_response({**ANSWER, "problems": self.problems}, status=503 if self.problems else 200)


@asynccontextmanager
async def checking() -> AsyncIterator[tuple[Pods, SelfCheckRunner, WorkQueue[ObjectKey], PodClient]]:
    pods, queue = Pods(), WorkQueue[ObjectKey](base_delay=1.0, max_delay=60.0)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", pods.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    first = web.TCPSite(runner, SOUND, 0)
    await first.start()
    port = runner.addresses[0][1]
    await web.TCPSite(runner, SILENT, port).start()
    try:
        async with PodClient(message_timeout=60, check_timeout=600, port=port) as client:
            yield pods, SelfCheckRunner(client, queue), queue, client
    finally:
        pods.may_answer.set()
        assert runner.server is not None
        # Whatever is still open when the loop ends fails a later test by its warning.
        async with asyncio.timeout(60):
            while runner.server.connections:  # noqa: ASYNC110  # aiohttp has no event for it
                await asyncio.sleep(0)
        await runner.cleanup()


def pod(address: str, number: int = 0) -> SelfCheckRequest:
    name = f"docs-{number}"
    run = f"{name}/0"
    return SelfCheckRequest(PodState(name, "r", "t", "c", "Ready", None, None, address=address, run_id=run))


async def take_key(queue: WorkQueue[ObjectKey]) -> ObjectKey:
    """The next resource that gets a pass."""
    async with asyncio.timeout(60):
        key = await queue.get(60)
    assert key is not None
    queue.done(key, succeeded=True)
    return key


async def test_services_whose_pods_do_not_answer_leave_room_for_another_namespace() -> None:
    elsewhere = ObjectKey("other", "docs")
    async with checking() as (pods, checks, queue, client):
        for number in range(2 * MAX_RUNNING):
            checks.request(ObjectKey("silent", f"docs-{number}"), (pod(SILENT, number),))
        checks.request(elsewhere, (pod(SOUND),))
        assert await take_key(queue) == elsewhere
        assert client.get_replies(elsewhere)["docs-0/0"].self_check is not None
        assert pods.unanswered <= MAX_RUNNING_OF_NAMESPACE


async def test_a_pod_that_is_being_asked_is_not_asked_again() -> None:
    key = ObjectKey("silent", "docs")
    async with checking() as (pods, checks, queue, _):
        for _ in range(3):
            checks.request(key, (pod(SILENT),))
            await asyncio.sleep(0)
        pods.may_answer.set()
        assert await take_key(queue) == key
        assert pods.unanswered == 1


async def test_a_pod_that_did_not_pass_is_told_at_once_and_asked_again_after_a_pause() -> None:
    key = ObjectKey("search", "docs")
    async with checking() as (pods, checks, queue, client):
        pods.problems = ["different texts gave the same vector"]
        checks.request(key, (pod(SOUND),))
        assert await take_key(queue) == key
        check = client.get_replies(key)["docs-0/0"].self_check
        assert check is not None
        assert check.problem == "different texts gave the same vector"
        checks.request(key, (pod(SOUND),))
        await wait_for_self_checks()
        assert await queue.get(0.0) is None, "the pause is not over"
        pods.problems = []
        assert await take_key(queue) == key, "the pause is over"
        checks.request(key, (pod(SOUND),))
        assert await take_key(queue) == key
        check = client.get_replies(key)["docs-0/0"].self_check
        assert check is not None
        assert not check.problem


async def test_the_end_of_the_operator_ends_what_is_asked() -> None:
    async with checking() as (_, checks, queue, _client):
        running = asyncio.create_task(checks.run())
        await asyncio.sleep(0)
        checks.request(ObjectKey("silent", "docs"), (pod(SILENT),))
        running.cancel()
        await asyncio.wait((running,))
        await wait_for_self_checks()
        assert await queue.get(0.0) is None
