"""One segment of a file: asked for, judged by its answer, written as it comes, asked for again where it was cut."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx2

from embedserve_runtime.errors import CertificateUntrusted, SourceUnavailable
from embedserve_runtime.model.sources.hosts import Hosts, Patience
from embedserve_runtime.model.sources.partial import Partial, Segment
from embedserve_runtime.model.sources.progress import Progress
from embedserve_runtime.model.sources.remote import Source, connection_error

HASH_EVERY = 4 << 20


class Alive(Protocol):
    """Raises when the work must end, for example because its folder is another's now."""

    def __call__(self) -> None: ...


class Ears(Protocol):
    """Who hears of a file's progress."""

    def gives_parts(self, partial: Partial, first: Segment) -> None:
        """The source gives parts of this file: its other segments can be asked for too."""

    def grew(self, partial: Partial) -> None:
        """There is more to hash."""


class _Again(Exception):
    """An answer after which the same is asked once more; `counts` as a failure, or is only the host's wish to wait."""

    def __init__(self, why: str, *, counts: bool = True) -> None:
        super().__init__(why)
        self.counts = counts


@dataclass(frozen=True, slots=True)
class Plan:
    """What is fetched from where to where. folder: holds contents and notes; may have an earlier process's."""

    source: Source
    name: str
    folder: Path
    alive: Alive


class Reader:
    """Used by several threads, each with a segment of its own. `stopped` ends them all at the next piece of content."""

    def __init__(
        self, plan: Plan, progress: Progress, patience: Patience, client: httpx2.Client, most: int
    ) -> None:
        """most: requests at once to one host."""
        self.stopped = threading.Event()
        self._plan = plan
        self._progress = progress
        self._patience = patience
        self._hosts = Hosts(patience, most)
        self._client = client

    def bring(self, partial: Partial, segment: Segment, ears: Ears) -> None:
        """Try until the segment is here, or the source has been without progress too often.

        Raises what the source explains, SourceUnavailable, CertificateUntrusted or OSError.
        """
        failures = 0
        while not self.stopped.is_set() and partial.has(segment):
            before = partial.done
            try:
                self._ask(partial, segment, ears)
            except _Again as again:
                problem: Exception = SourceUnavailable(f"{self._plan.name}: {partial.file.path}: {again}")
                counts = again.counts
            except httpx2.HTTPError as error:
                problem, counts = connection_error(f"{self._plan.name}: {partial.file.path}", error), True
            else:
                return
            if isinstance(problem, CertificateUntrusted):
                raise problem
            if partial.done > before:
                failures = 0
            elif counts:
                failures += 1
            if failures >= self._patience.tries:
                raise problem
            self.stopped.wait(self._patience.pause_s(max(failures, 1)))

    def _ask(self, partial: Partial, segment: Segment, ears: Ears) -> None:
        request = self._plan.source.request(partial.file)
        url, headers = request.url, dict(request.headers)
        is_shortcut = partial.resolved is not None
        if partial.resolved is not None:
            url, headers = partial.resolved, {}
        if segment.end is None or segment.position > 0 or segment.end != partial.size:
            last = "" if segment.end is None else segment.end - 1
            headers["Range"] = f"bytes={segment.position}-{last}"
        if partial.file.etag is not None:
            headers["If-Match"] = partial.file.etag
        with (
            self._hosts.turn(httpx2.URL(url).host, self.stopped),
            self._client.stream("GET", url, headers=headers) as response,
        ):
            if self.stopped.is_set():
                return
            self._judge(partial, response, is_shortcut=is_shortcut)
            self._take(partial, segment, response, ears)

    def _judge(self, partial: Partial, response: httpx2.Response, *, is_shortcut: bool) -> None:
        """Returns where content follows. Raises _Again, or what the source explains."""
        status, headers, host = response.status_code, response.headers, response.url.host
        if response.history:
            partial.resolved = str(response.url)
        if status in (200, 206):
            self._hosts.answered(host)
            partial.is_checked = self._plan.source.vouches(headers)
        elif status == 416 and _total(headers) == 0:
            pass  # an empty file has no part
        elif status == 429 or (status == 503 and "retry-after" in headers):
            self._hosts.refused(host, headers)
            raise _Again(f"{host} asks to wait", counts=False)
        elif status >= 500 or status == 408:
            raise _Again(f"{host} answered HTTP {status}")
        elif is_shortcut:
            partial.resolved = None  # signed addresses age
            raise _Again(f"{host} answered HTTP {status}")
        else:
            raise self._plan.source.explain(status, headers, partial.file)

    def _take(self, partial: Partial, segment: Segment, response: httpx2.Response, ears: Ears) -> None:
        had_size = partial.size is not None
        if response.status_code == 416:
            partial.make_whole(segment, 0)
        elif response.status_code == 206:
            total = _total(response.headers)
            if total is not None and partial.size not in (None, total):
                raise self._plan.source.explain(412, response.headers, partial.file)
            if total is not None:
                partial.learn_size(total)
            ears.gives_parts(partial, segment)
        elif segment.position > 0 or segment.end != partial.size or not had_size:
            length = response.headers.get("content-length")
            self._progress.had(-partial.done)
            partial.make_whole(segment, int(length) if length is not None else None)
        if not had_size:
            self._progress.expect(partial.size or 0)
        self._store(partial, segment, response, ears)
        if segment.end is None:
            partial.end_at(segment)
            self._progress.expect(partial.size or 0)
        if not segment.is_done:
            raise _Again("the connection was cut")
        partial.take_note()
        ears.grew(partial)

    def _store(self, partial: Partial, segment: Segment, response: httpx2.Response, ears: Ears) -> None:
        since_hash = 0
        for content in response.iter_raw():
            left = len(content) if segment.end is None else segment.end - segment.position
            if len(content) > left:
                raise self._plan.source.explain(412, response.headers, partial.file)
            partial.write(segment, content)
            self._progress.arrived(len(content))
            since_hash += len(content)
            if since_hash >= HASH_EVERY:
                since_hash = 0
                ears.grew(partial)
            if self.stopped.is_set():
                return


def _total(headers: Mapping[str, str]) -> int | None:
    """Size of the whole file, by the header of an answer with a part of it."""
    total = headers.get("content-range", "").rpartition("/")[2]
    return int(total) if total.isdigit() else None
