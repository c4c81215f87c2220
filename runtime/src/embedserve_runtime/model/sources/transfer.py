"""Many files at once from one source to the disk: some threads that read segments, one that hashes what arrived,
one that has the disk write it."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence

from embedserve_runtime.errors import HashMismatch
from embedserve_runtime.model.sources.hosts import Patience
from embedserve_runtime.model.sources.partial import Partial, Segment
from embedserve_runtime.model.sources.progress import Progress
from embedserve_runtime.model.sources.reading import Plan, Reader
from embedserve_runtime.model.sources.remote import RemoteFile, http_client
from embedserve_runtime.model.store import Arrived

CONNECTIONS = 6
ATTEMPTS = 3
"""How often a file is fetched whose content is not what its hash says."""


class Transfer:
    """The connections of one fetch; used for several batches of files, one after the other."""

    def __init__(self, plan: Plan, progress: Progress, patience: Patience) -> None:
        self._plan = plan
        self._progress = progress
        self._client = http_client(patience.connect_s, patience.read_s, CONNECTIONS)
        self._reader = Reader(plan, progress, patience, self._client, CONNECTIONS)

    def __enter__(self) -> Transfer:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def opened(self, files: Sequence[RemoteFile]) -> list[Partial]:
        """Look at what is there of the files already. Raises OSError."""
        partials = [Partial(self._plan.folder, file) for file in files]
        for partial in partials:
            self._progress.expect(partial.size or 0)
            self._progress.had(partial.done)
        return partials

    def fetch(self, partials: Sequence[Partial]) -> list[Arrived]:
        """Bring all of them, checked. Raises what the source explains, HashMismatch, SourceUnavailable, OSError."""
        return _Crew(self._plan, self._progress, self._reader, partials).run()


class _Crew:
    """One batch of files. The first error ends the work of all."""

    def __init__(self, plan: Plan, progress: Progress, reader: Reader, partials: Sequence[Partial]) -> None:
        self._plan = plan
        self._progress = progress
        self._reader = reader
        self._stopped = reader.stopped
        self._partials = partials
        self._waiting: deque[tuple[Partial, Segment]] = deque()
        self._started: set[int] = set()
        self._left = len(partials)
        self._arrived: list[Arrived] = []
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._to_hash: queue.SimpleQueue[Partial | None] = queue.SimpleQueue()
        self._to_flush: queue.SimpleQueue[Partial | None] = queue.SimpleQueue()

    def run(self) -> list[Arrived]:
        for partial in self._partials:
            self._begin(partial)
        self._stopped.clear()
        readers = [
            threading.Thread(target=self._guard, args=(self._read_on,), name=f"fetch-{number}", daemon=True)
            for number in range(min(CONNECTIONS, sum(max(1, len(each.segments)) for each in self._partials)))
        ]
        others = [
            threading.Thread(target=self._guard, args=(work,), name=f"fetch-{name}", daemon=True)
            for name, work in (("hash", self._hash_on), ("flush", self._flush_on))
        ]
        try:
            for thread in (*readers, *others):
                thread.start()
            with self._changed:
                while self._left and self._error is None:
                    self._changed.wait(1.0)
                    self._plan.alive()
        finally:
            self._end((*readers, *others))
        if self._error is not None:
            raise self._error
        return self._arrived

    def _end(self, threads: Sequence[threading.Thread]) -> None:
        self._stopped.set()
        with self._changed:
            self._changed.notify_all()
        self._to_hash.put(None)
        self._to_flush.put(None)
        for thread in threads:
            thread.join()
        for partial in self._partials:
            partial.leave()

    def _begin(self, partial: Partial) -> None:
        """Ask for one part first: the answer says whether the source gives parts at all."""
        unfinished = partial.unfinished
        with self._changed:
            self._started.discard(id(partial))
            if unfinished:
                self._waiting.append((partial, unfinished[0]))
            self._changed.notify_all()
        self._to_hash.put(partial)

    def gives_parts(self, partial: Partial, first: Segment) -> None:
        with self._changed:
            if id(partial) in self._started:
                return
            self._started.add(id(partial))
            self._waiting.extend((partial, each) for each in partial.unfinished if each is not first)
            self._changed.notify_all()

    def grew(self, partial: Partial) -> None:
        self._to_hash.put(partial)

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again by `run`, in the thread that waits
            with self._changed:
                self._error = self._error or error
                self._stopped.set()
                self._changed.notify_all()

    def _read_on(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._stopped.is_set():
                    self._changed.wait(1.0)
                if self._stopped.is_set():
                    return
                partial, segment = self._waiting.popleft()
            self._reader.bring(partial, segment, self)

    def _hash_on(self) -> None:
        finished: set[int] = set()
        while (partial := self._to_hash.get()) is not None and not self._stopped.is_set():
            if id(partial) in finished:
                continue
            partial.hash_on()
            if partial.take_flush():
                self._to_flush.put(partial)
            if not partial.is_hashed:
                continue
            if (found := partial.mismatch()) is not None:
                self._again(partial, found)
                continue
            finished.add(id(partial))
            arrived = Arrived(partial.finish(), partial.path)
            with self._changed:
                self._arrived.append(arrived)
                self._left -= 1
                self._changed.notify_all()

    def _flush_on(self) -> None:
        while (partial := self._to_flush.get()) is not None and not self._stopped.is_set():
            partial.flush()

    def _again(self, partial: Partial, found: str) -> None:
        check = partial.file.check
        if partial.attempts >= ATTEMPTS:
            wanted = f"{check.kind} {check.value}" if check is not None else "another one"
            raise HashMismatch(
                f"{self._plan.name}: {partial.file.path} is not what it should be, {ATTEMPTS} times in a row: its "
                f"hash is {found} and should be {wanted}"
            )
        self._progress.had(-partial.done)
        partial.restart()
        self._begin(partial)
