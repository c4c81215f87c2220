"""Several front-end processes before one engine, as real processes with the real MiniLM."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import numpy as np
import pytest

from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.heads.dense import normalize
from embedserve_runtime.runners.base import Runner
from embedserve_runtime.tokenizing import TextTokenizer, TruncationRules
from tests.support.models import small_minilm
from tests.support.server_process import ServerProcess, list_front_ends, send_signal_under_load, start_server
from tests.support.static_models import Saved
from tests.support.texts import parity_texts
from tests.support.tolerances import FP32_MAX_ABS_DIFF

WORKERS = 2
SETTINGS = {"server": {"http_workers": WORKERS}}


@pytest.fixture(scope="module")
def server(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with start_server(minilm, tmp_path_factory.mktemp("workers"), SETTINGS) as started:
        started.wait_until_ready()
        yield started


def metric(server: ServerProcess, series: str) -> float:
    page = httpx.get(f"{server.management}/metrics").text
    return next(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(f"{series} "))


def until(server: ServerProcess, series: str, value: float) -> None:
    while metric(server, series) != value:
        pass


def test_vectors_are_those_of_the_model(server: ServerProcess, minilm_runner: Runner) -> None:
    texts = parity_texts(12)
    tokenizer = TextTokenizer.from_card(minilm_runner.card)
    batch = PackedBatch.pack(tokenizer.encode(texts, "", TruncationRules(truncate=True)))
    rows = minilm_runner.run(batch, OutputKind.DENSE).dense
    assert rows is not None
    answer = httpx.post(f"{server.address}/embed", json={"inputs": texts}, timeout=60)
    assert np.abs(np.array(answer.json()) - normalize(rows)).max() <= FP32_MAX_ABS_DIFF


def test_front_ends_load_no_weights_and_no_engine_library(server: ServerProcess) -> None:
    assert len(list_front_ends(server)) == WORKERS
    for pid in list_front_ends(server):
        maps = Path(f"/proc/{pid}/maps").read_text()
        assert "tokenizers" in maps
        assert [name for name in ("onnxruntime", "torch", ".safetensors") if name in maps] == []
    for index in range(WORKERS):
        series = f'embedserve_resident_memory_bytes{{process="http-{index}"}}'
        assert (
            0 < metric(server, series) < metric(server, 'embedserve_resident_memory_bytes{process="engine"}')
        )


async def test_connections_spread_over_the_processes_and_their_counts_add_up(server: ServerProcess) -> None:
    ok, wrong = (f'embedserve_requests_total{{route="/embed",status="{code}"}}' for code in (200, 422))
    before = await asyncio.to_thread(lambda: (metric(server, ok), metric(server, wrong)))
    makers: list[str] = []

    async def ask(index: int) -> None:
        body: dict[str, object] = {"inputs": "a"} if index % 3 else {"inputs": {}}
        async with httpx.AsyncClient(base_url=server.address, timeout=60) as client:
            for _ in range(3):
                answer = await client.post("/embed", json=body)
                makers.append(answer.headers["x-request-id"].partition("-")[0])

    await asyncio.gather(*(ask(index) for index in range(24)))
    # Each process counts a request when its answer has left.
    await asyncio.to_thread(until, server, ok, before[0] + 48)
    await asyncio.to_thread(until, server, wrong, before[1] + 24)
    assert len(set(makers)) == WORKERS


async def test_a_client_that_hangs_up_leaves_the_queue_of_the_engine_empty(server: ServerProcess) -> None:
    host, port = server.address.removeprefix("http://").split(":")
    body = json.dumps({"inputs": parity_texts(200) * 5}).encode()
    head = b"POST /embed HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body)
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(head + body)
    await writer.drain()
    while await asyncio.to_thread(metric, server, "embedserve_queue_depth") < 100:
        pass
    writer.close()
    await asyncio.to_thread(until, server, "embedserve_queue_depth", 0)
    await asyncio.to_thread(until, server, "embedserve_requests_in_flight", 0)
    assert (
        await asyncio.to_thread(metric, server, 'embedserve_requests_total{route="/embed",status="499"}') == 1
    )


async def stop_awaited_process(pids: Sequence[int], answers: Counter[int]) -> int:
    """Stop a front end that clients wait for, and return its process id. answers: of each of twelve clients so far.

    A client opens an idle connection again without a word. While a process is stopped, those with a connection to it
    get no answer.
    """

    async def wait_for_answers() -> Counter[int]:
        target = answers.total() + 36
        while answers.total() < target:  # noqa: ASYNC110  # turns of the loop, no time
            await asyncio.sleep(0)
        return answers.copy()

    await wait_for_answers()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
        before, after = await wait_for_answers(), await wait_for_answers()
        if any(after[number] == before[number] for number in range(12)):
            return pid
        os.kill(pid, signal.SIGCONT)
    raise AssertionError("no client waits for any of the processes")


async def test_a_killed_front_end_is_replaced_and_costs_the_others_nothing(server: ServerProcess) -> None:
    counter = 'embedserve_requests_total{route="/embed",status="200"}'
    replaced = await asyncio.to_thread(metric, server, "embedserve_http_workers_replaced_total")
    counted = await asyncio.to_thread(metric, server, counter)
    front_ends = list_front_ends(server)
    addressed = [identity_of(pid) for pid in front_ends]
    answers: Counter[int] = Counter()
    broken: set[str] = set()
    unbroken: set[str] = set()
    killed = asyncio.Event()
    answers_after = asyncio.Event()

    async def ask(number: int) -> None:
        """Ask on one connection, so with one process, until it breaks or the others have been answered after the
        kill."""
        maker = ""
        async with httpx.AsyncClient(base_url=server.address, timeout=60) as client:
            try:
                while not answers_after.is_set():
                    answer = await client.post("/embed", json={"inputs": "a text"})
                    assert answer.status_code == 200
                    maker = answer.headers["x-request-id"].partition("-")[0]
                    answers[number] += 1
                    if killed.is_set():
                        unbroken.add(maker)
                        answers_after.set()
                unbroken.add(maker)
            except httpx.TransportError:
                broken.add(maker)

    asking = [asyncio.create_task(ask(number)) for number in range(12)]
    os.kill(await stop_awaited_process(front_ends, answers), signal.SIGKILL)
    await asyncio.to_thread(until, server, "embedserve_http_workers_replaced_total", replaced + 1)
    killed.set()
    await asyncio.gather(*asking)
    assert len(broken) == 1, "the connections of one process"
    assert not broken & unbroken
    await asyncio.to_thread(until, server, "embedserve_http_workers", WORKERS)
    (successor,) = {identity_of(pid) for pid in list_front_ends(server)} - {*addressed}
    assert successor, "messages of the dead one cannot be taken for its successor's"
    # What the dead process had answered is still counted; of its last answers one each may be counted and not have
    # come, or have come and not be counted.
    counts = await asyncio.to_thread(metric, server, counter) - counted
    assert abs(counts - answers.total()) <= len(asking)
    async with httpx.AsyncClient(base_url=server.address, timeout=60) as client:
        assert (await client.post("/embed", json={"inputs": "a"})).status_code == 200


async def test_a_front_end_that_hangs_is_killed_and_replaced(server: ServerProcess) -> None:
    replaced = await asyncio.to_thread(metric, server, "embedserve_http_workers_replaced_total")
    hung = list_front_ends(server)[0]
    os.kill(hung, signal.SIGSTOP)  # its sockets go on accepting connections
    await asyncio.to_thread(until, server, "embedserve_http_workers_replaced_total", replaced + 1)
    await asyncio.to_thread(until, server, "embedserve_http_workers", WORKERS)
    assert hung not in list_front_ends(server)
    async with httpx.AsyncClient(base_url=server.address, timeout=60) as client:
        assert (await client.post("/embed", json={"inputs": "a"})).status_code == 200


def identity_of(pid: int) -> str:
    """Return what the engine's process knows a front end by."""
    arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return arguments[arguments.index("embedserve_runtime.frontends.worker") + 2]


# Python imports it at its start. In front ends, a request of three texts becomes a message that contradicts itself.
BROKEN_FRONT_ENDS = """
import sys

if "embedserve_runtime.frontends.worker" in sys.orig_argv:
    from msgspec.structs import replace
    from embedserve_runtime.frontends.front_end_channel import FrontEndChannel
    from embedserve_runtime.frontends.messages import Submit

    well_formed = FrontEndChannel.send

    def send(channel, message):
        if isinstance(message, Submit) and len(message.lengths) == 3:
            message = replace(message, lengths=[])
        well_formed(channel, message)

    FrontEndChannel.send = send
"""


def test_a_front_end_that_sends_a_malformed_message_is_killed_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(BROKEN_FRONT_ENDS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    Saved().save(tmp_path / "model")
    with start_server(tmp_path / "model", tmp_path, SETTINGS) as server:
        server.wait_until_ready()
        before = {*list_front_ends(server)}
        with httpx.Client(base_url=server.address, timeout=60) as client:
            assert client.post("/embed", json={"inputs": ["a", "b"]}, timeout=60).status_code == 200
            with pytest.raises(httpx.TransportError):
                client.post("/embed", json={"inputs": ["a", "b", "c"]})
        until(server, "embedserve_http_workers_replaced_total", 1)
        until(server, "embedserve_http_workers", WORKERS)
        assert len(before & {*list_front_ends(server)}) == WORKERS - 1
        assert (
            httpx.post(f"{server.address}/embed", json={"inputs": ["a", "b"]}, timeout=60).status_code == 200
        )
        server.stop(signal.SIGTERM)
        assert server.wait_for_exit() == 0
    (died,) = [line for line in server.lines if line["message"].startswith("a front-end process died")]
    assert died["code"] == -signal.SIGKILL


@pytest.mark.thorough
async def test_sigterm_under_load_fails_no_accepted_request(minilm: Path, tmp_path: Path) -> None:
    settings = {"server": {"http_workers": WORKERS, "endpoint_drain_seconds": 0.3}}
    with start_server(minilm, tmp_path, settings) as server:
        server.wait_until_ready()
        statuses = await send_signal_under_load(server, signal.SIGTERM)
        assert statuses == [200] * 16
        assert server.wait_for_exit() == 0
    assert server.lines[-1]["message"] == "stopped"


def test_front_ends_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    settings = {"server": {"http_workers": WORKERS, "management_port": None}}
    with start_server(small_minilm(tmp_path / "model"), tmp_path, settings) as server:
        server.wait_until_ready()
        page = httpx.get(f"{server.address}/metrics").text
        assert f"embedserve_http_workers {WORKERS}.0" in page
        assert httpx.get(f"{server.address}/readyz").json()["status"] == "Ready"
        pids = list_front_ends(server)
        server.process.kill()
        for pid in pids:
            while is_running(pid):
                pass


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_key_that_is_rotated_counts_in_every_process(minilm: Path, tmp_path: Path) -> None:
    keys = tmp_path / "api-keys"
    keys.write_text("old-key")
    settings = {"server": {"http_workers": WORKERS, "api_keys_file": str(keys)}}
    with start_server(minilm, tmp_path, settings) as guarded:
        guarded.wait_until_ready()

        def statuses(key: str) -> set[int]:
            """Return the statuses of requests over as many connections as reach every process."""
            headers = {"authorization": f"Bearer {key}"}
            return {
                httpx.post(
                    f"{guarded.address}/embed", json={"inputs": "a"}, headers=headers, timeout=60
                ).status_code
                for _ in range(8 * WORKERS)
            }

        assert statuses("old-key") == {200}
        assert statuses("new-key") == {401}
        keys.with_suffix(".next").write_text("new-key")
        keys.with_suffix(".next").replace(keys)
        while statuses("new-key") != {200}:
            pass
        assert statuses("old-key") == {401}
