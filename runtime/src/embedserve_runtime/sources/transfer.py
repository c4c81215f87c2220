"""Many files at once from one source to the disk: some threads that read segments, one that hashes what arrived,
one that has the disk write it."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence

from embedserve_runtime.errors import HashMismatch
from embedserve_runtime.sources.host_limits import RetryPolicy
from embedserve_runtime.sources.partial import FileSegment, PartialFile
from embedserve_runtime.sources.progress import Progress
from embedserve_runtime.sources.remote import RemoteFile, build_http_client
from embedserve_runtime.sources.segments import FetchPlan, SegmentDownloader
from embedserve_runtime.store import FetchedFile

CONNECTIONS = 6
ATTEMPTS = 3
"""Attempts to fetch a file whose content is not what its hash says."""


class Transfer:
    """The connections of one fetch; used for several batches of files, one after another."""

    def __init__(self, plan: FetchPlan, progress: Progress, retry_policy: RetryPolicy) -> None:
        self._plan = plan
        self._progress = progress
        self._client = build_http_client(retry_policy.connect_s, retry_policy.read_s, CONNECTIONS)
        self._downloader = SegmentDownloader(plan, progress, retry_policy, self._client, CONNECTIONS)

    def __enter__(self) -> Transfer:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def open_partials(self, files: Sequence[RemoteFile]) -> list[PartialFile]:
        """Find out how much of the files is there already. Raises OSError."""
        partials = [PartialFile(self._plan.folder, file) for file in files]
        for partial in partials:
            self._progress.add_expected(partial.size or 0)
            self._progress.add_existing(partial.done)
        return partials

    def fetch(self, partials: Sequence[PartialFile]) -> list[FetchedFile]:
        """Download all of them and check their hashes. Raises what the source explains, HashMismatch,
        SourceUnavailable, OSError."""
        return _ParallelDownload(self._plan, self._progress, self._downloader, partials).run()


class _ParallelDownload:
    """Downloads several files at once. The first error ends all downloads."""

    def __init__(
        self,
        plan: FetchPlan,
        progress: Progress,
        downloader: SegmentDownloader,
        partials: Sequence[PartialFile],
    ) -> None:
        self._plan = plan
        self._progress = progress
        self._downloader = downloader
        self._stopped = downloader.stopped
        self._partials = partials
        self._waiting: deque[tuple[PartialFile, FileSegment]] = deque()
        self._started: set[int] = set()
        self._left = len(partials)
        self._arrived: list[FetchedFile] = []
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._to_hash: queue.SimpleQueue[PartialFile | None] = queue.SimpleQueue()
        self._to_flush: queue.SimpleQueue[PartialFile | None] = queue.SimpleQueue()

    def run(self) -> list[FetchedFile]:
        for partial in self._partials:
            self._enqueue(partial)
        self._stopped.clear()
        downloaders = [
            threading.Thread(
                target=self._guard, args=(self._download_segments,), name=f"fetch-{number}", daemon=True
            )
            for number in range(min(CONNECTIONS, sum(max(1, len(each.segments)) for each in self._partials)))
        ]
        hashers = [
            threading.Thread(target=self._guard, args=(work,), name=f"fetch-{name}", daemon=True)
            for name, work in (("hash", self._hash_files), ("flush", self._flush_files))
        ]
        try:
            for thread in (*downloaders, *hashers):
                thread.start()
            with self._changed:
                while self._left and self._error is None:
                    self._changed.wait(1.0)
                    self._plan.check_cancelled()
        finally:
            self._stop((*downloaders, *hashers))
        if self._error is not None:
            raise self._error
        return self._arrived

    def _stop(self, threads: Sequence[threading.Thread]) -> None:
        self._stopped.set()
        with self._changed:
            self._changed.notify_all()
        self._to_hash.put(None)
        self._to_flush.put(None)
        for thread in threads:
            # Ctrl-C may come before all of them have been started.
            if thread.is_alive():
                thread.join()
        for partial in self._partials:
            partial.leave()

    def _enqueue(self, partial: PartialFile) -> None:
        """Request one part first: the answer says whether the source answers ranges at all."""
        unfinished = partial.unfinished
        with self._changed:
            self._started.discard(id(partial))
            if unfinished:
                self._waiting.append((partial, unfinished[0]))
            self._changed.notify_all()
        self._to_hash.put(partial)

    def on_ranges_supported(self, partial: PartialFile, first: FileSegment) -> None:
        with self._changed:
            if id(partial) in self._started:
                return
            self._started.add(id(partial))
            self._waiting.extend((partial, each) for each in partial.unfinished if each is not first)
            self._changed.notify_all()

    def on_bytes_written(self, partial: PartialFile) -> None:
        self._to_hash.put(partial)

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again by `run`, in the thread that waits
            with self._changed:
                self._error = self._error or error
                self._stopped.set()
                self._changed.notify_all()

    def _download_segments(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._stopped.is_set():
                    self._changed.wait(1.0)
                if self._stopped.is_set():
                    return
                partial, segment = self._waiting.popleft()
            self._downloader.download(partial, segment, self)

    def _hash_files(self) -> None:
        finished: set[int] = set()
        while (partial := self._to_hash.get()) is not None and not self._stopped.is_set():
            if id(partial) in finished:
                continue
            partial.hash_more()
            if partial.take_flush():
                self._to_flush.put(partial)
            if not partial.is_hashed:
                continue
            if (digest := partial.find_mismatch()) is not None:
                self._restart(partial, digest)
                continue
            finished.add(id(partial))
            arrived = FetchedFile(partial.finish(), partial.path)
            with self._changed:
                self._arrived.append(arrived)
                self._left -= 1
                self._changed.notify_all()

    def _flush_files(self) -> None:
        while (partial := self._to_flush.get()) is not None and not self._stopped.is_set():
            partial.flush()

    def _restart(self, partial: PartialFile, digest: str) -> None:
        expected = partial.file.expected_hash
        if partial.attempts >= ATTEMPTS:
            expected_text = f"{expected.kind} {expected.value}" if expected is not None else "another one"
            raise HashMismatch(
                f"{self._plan.name}: {partial.file.path} is not what it should be, {ATTEMPTS} times in a row: its "
                f"hash is {digest} and should be {expected_text}"
            )
        self._progress.add_existing(-partial.done)
        partial.restart()
        self._enqueue(partial)
