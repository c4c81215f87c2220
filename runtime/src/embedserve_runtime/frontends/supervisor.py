"""Starts the front-end processes, replaces those that die, and ends them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import mmap
import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from embedserve_runtime.errors import FrontEndFailure
from embedserve_runtime.frontends.engine_channel import EngineChannel, Peer
from embedserve_runtime.frontends.front_end import FrontEndSettings, ServerStatus
from embedserve_runtime.frontends.messages import (
    HEARTBEAT_SECONDS,
    Configure,
    ModelOpened,
    StatusChanged,
    Stop,
)
from embedserve_runtime.frontends.pickling import to_pickle
from embedserve_runtime.scheduling.dispatcher import Dispatcher
from embedserve_runtime.server.sockets import Ports
from embedserve_runtime.service.loaded_model import LoadedModel
from embedserve_runtime.service.readiness import Phase
from embedserve_runtime.telemetry.metrics import Metrics, read_cpu_seconds
from embedserve_runtime.telemetry.series import NUMBER_BYTES, Row, view_row
from embedserve_runtime.tokenizing import TextTokenizer

log = logging.getLogger(__name__)

# A process that lives shorter than this has failed to start rather than died at work.
SHORT_LIFE_SECONDS = 10.0
MAX_SHORT_LIVES = 5
MAX_PAUSE_SECONDS = 5.0


class WorkerSupervisor:
    """The front ends of one server, one for each of `ports`; their listening sockets share the port."""

    def __init__(self, settings: FrontEndSettings, ports: Sequence[Ports], metrics: Metrics) -> None:
        self.channel = self.observer = EngineChannel(metrics, metrics.page)
        self.settings = settings
        self.metrics = metrics
        self.status = ServerStatus(Phase.LOADING, "the model is being loaded")
        self.model: LoadedModel | None = None
        self._is_stopping = False
        self._slots = [_Slot(self, f"http-{index}", its) for index, its in enumerate(ports)]
        self._tasks = [asyncio.create_task(slot.keep_running()) for slot in self._slots]

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    async def wait_for_failure(self) -> None:
        """Wait until a process cannot be kept running, and raise FrontEndFailure."""
        await asyncio.gather(*self._tasks)
        # All have ended, as they were told to. The server has not: gRPC may be answering still.
        await asyncio.Event().wait()

    def set_status(self, status: ServerStatus) -> None:
        self.status = status
        self.channel.broadcast(StatusChanged(to_pickle(status)))

    async def open(self, model: LoadedModel, tokenizer: TextTokenizer, dispatcher: Dispatcher) -> None:
        """Start the processes, and return when all can answer requests. They make tokenizers of their own."""
        self.model = model
        self.channel.open(dispatcher)
        self.channel.broadcast(ModelOpened(to_pickle(model)))
        await asyncio.gather(*(slot.is_open.wait() for slot in self._slots))

    def stop(self) -> None:
        """Have them accept no more, answer what they have, and end."""
        self._is_stopping = True
        self.channel.broadcast(Stop())

    async def wait_finished(self) -> None:
        """Wait, after `stop`, until all processes have ended."""
        await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """End what is left."""
        self._is_stopping = True
        for slot in self._slots:
            slot.kill()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        self.channel.close()


class _Slot:
    """One front end's slot: its sockets and the memory that it counts in outlive its process."""

    def __init__(self, workers: WorkerSupervisor, name: str, ports: Ports) -> None:
        self.is_open = asyncio.Event()
        self._workers = workers
        self._name = name
        self._ports = ports
        self._process: asyncio.subprocess.Process | None = None
        self._starts = itertools.count(1)
        self._memory, self._row = _shared_row(workers.metrics.series.layout.size)
        workers.metrics.add_row(self._row)

    async def keep_running(self) -> None:
        """Have a process run here until the server stops. Raises FrontEndFailure."""
        loop = asyncio.get_running_loop()
        short_lives = 0
        while True:
            started = loop.time()
            code = await self._run_process()
            if self._workers.is_stopping:
                return
            lived = loop.time() - started
            short_lives = short_lives + 1 if lived < SHORT_LIFE_SECONDS else 0
            if short_lives == MAX_SHORT_LIVES:
                raise FrontEndFailure(
                    f"a front-end process has died {short_lives} times in a row, last with code {code}; "
                    "its log lines say why"
                )
            log.warning(
                "a front-end process died, starting another",
                extra={"worker": self._name, "code": code, "seconds": round(lived, 3)},
            )
            self._workers.metrics.worker_replaced()
            if short_lives > 1:
                await asyncio.sleep(min(0.1 * 2**short_lives, MAX_PAUSE_SECONDS))

    async def _run_process(self) -> int:
        """Run one process from its start to its end; return its exit code, below 0 the signal that it died of."""
        workers = self._workers
        # Of one that died messages may still come in; they are not its successor's.
        identity = f"{self._name}.{next(self._starts)}"
        peer = workers.channel.add(
            identity.encode(), on_hello=self._send_state, on_ready=self.is_open.set, on_failure=self.kill
        )
        process: asyncio.subprocess.Process | None = None
        watch: asyncio.Task[None] | None = None
        try:
            self._process = process = await _spawn(
                workers.channel.address, identity, self._ports, self._memory
            )
            workers.metrics.pids[self._name] = process.pid
            watch = asyncio.create_task(self._kill_when_hung(peer, process.pid))
            return await process.wait()
        finally:
            if watch:
                watch.cancel()
            workers.channel.remove(peer)
            if process:
                self.kill()
                await process.wait()
                _engine_end(process).close()
            workers.metrics.pids.pop(self._name, None)
            workers.metrics.series.clear_gauges(self._row)
            self.is_open.clear()

    async def _kill_when_hung(self, peer: Peer, pid: int) -> None:
        """Kill a process that answers no more: one that lives and does nothing keeps its listening socket, and the
        connections that come to it."""
        while not peer.is_hung(read_cpu_seconds(pid)):  # noqa: ASYNC110  # what it waits for is that nothing happens
            await asyncio.sleep(HEARTBEAT_SECONDS)
        log.error("a front-end process does nothing any more, killing it", extra={"worker": self._name})
        self.kill()

    def _send_state(self, peer: Peer) -> None:
        workers = self._workers
        settings = replace(workers.settings, waits_for_model=workers.model is not None)
        peer.send(Configure(to_pickle(settings)))
        peer.send(StatusChanged(to_pickle(workers.status)))
        if workers.model:
            peer.send(ModelOpened(to_pickle(workers.model)))
        if workers.is_stopping:
            peer.send(Stop())

    def kill(self) -> None:
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()


async def _spawn(address: str, identity: str, ports: Ports, memory: int) -> asyncio.subprocess.Process:
    """Start a process in a session of its own: signals for the server's group are not for it. It ends when its standard
    input does, whose other end only this process holds."""
    handles = (memory, *ports.handles())
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "embedserve_runtime.frontends.worker",
        address,
        identity,
        *map(str, handles),
        pass_fds=handles,
        stdin=asyncio.subprocess.PIPE,
        start_new_session=True,
    )


def _engine_end(process: asyncio.subprocess.Process) -> asyncio.StreamWriter:
    """Return the engine's end of the pipe that is the process's standard input."""
    assert process.stdin is not None, "spawned with a pipe"
    return process.stdin


def _shared_row(size: int) -> tuple[int, Row]:
    """Return shared memory that has no file name, as its descriptor and a view of it."""
    handle = os.memfd_create("embedserve-metrics")
    os.ftruncate(handle, max(1, size * NUMBER_BYTES))
    return handle, view_row(memoryview(mmap.mmap(handle, size * NUMBER_BYTES)))
