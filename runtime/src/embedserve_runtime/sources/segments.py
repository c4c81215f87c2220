"""Downloads segments of a file: requests one, checks the answer, writes what arrives, and requests the rest if it was
cut."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx2

from embedserve_runtime.errors import CertificateUntrusted, SourceUnavailable
from embedserve_runtime.sources.host_limits import HostLimiters, RetryPolicy
from embedserve_runtime.sources.partial import FileSegment, PartialFile
from embedserve_runtime.sources.progress import Progress
from embedserve_runtime.sources.remote import Source, build_connection_error

HASH_EVERY = 4 << 20


class CancellationToken(Protocol):
    """Raises when the work must end, for example because another process has taken its folder over."""

    def __call__(self) -> None: ...


class ProgressCallbacks(Protocol):
    """Receives the progress of a file."""

    def on_ranges_supported(self, partial: PartialFile, first: FileSegment) -> None:
        """Note that the source answers ranges of this file, so that its other segments can be requested too."""

    def on_bytes_written(self, partial: PartialFile) -> None:
        """Note that more of the file can be hashed."""


class _RetryableResponse(Exception):
    """An answer after which the request is repeated.

    counts: whether it counts as a failure; the host's wish to wait does not.
    """

    def __init__(self, why: str, *, counts: bool = True) -> None:
        super().__init__(why)
        self.counts = counts


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """The files to fetch, and where from and where to.

    folder: holds contents and notes, maybe those of an earlier process.
    """

    source: Source
    name: str
    folder: Path
    check_cancelled: CancellationToken


class SegmentDownloader:
    """Downloads segments of files, on several threads with a segment each.

    stopped: ends them all at the next piece of content.

    max_requests: requests at once to one host.
    """

    def __init__(
        self,
        plan: FetchPlan,
        progress: Progress,
        retry_policy: RetryPolicy,
        client: httpx2.Client,
        max_requests: int,
    ) -> None:
        self.stopped = threading.Event()
        self._plan = plan
        self._progress = progress
        self._retry_policy = retry_policy
        self._limiters = HostLimiters(retry_policy, max_requests)
        self._client = client

    def download(self, partial: PartialFile, segment: FileSegment, callbacks: ProgressCallbacks) -> None:
        """Download a segment, unless the source has been without progress too often.

        Raises what the source explains, SourceUnavailable, CertificateUntrusted or OSError.
        """
        failures = 0
        while not self.stopped.is_set() and partial.has(segment):
            before = partial.done
            try:
                self._request(partial, segment, callbacks)
            except _RetryableResponse as response:
                problem: Exception = SourceUnavailable(f"{self._plan.name}: {partial.file.path}: {response}")
                counts = response.counts
            except httpx2.HTTPError as error:
                problem, counts = (
                    build_connection_error(f"{self._plan.name}: {partial.file.path}", error),
                    True,
                )
            else:
                return
            if isinstance(problem, CertificateUntrusted):
                raise problem
            if partial.done > before:
                failures = 0
            elif counts:
                failures += 1
            if failures >= self._retry_policy.max_attempts:
                raise problem
            self.stopped.wait(self._retry_policy.compute_pause_s(max(failures, 1)))

    def _request(self, partial: PartialFile, segment: FileSegment, callbacks: ProgressCallbacks) -> None:
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
            self._limiters.request_slot(httpx2.URL(url).host, self.stopped),
            self._client.stream("GET", url, headers=headers) as response,
        ):
            if self.stopped.is_set():
                return
            self._check_response(partial, response, is_shortcut=is_shortcut)
            self._accept(partial, segment, response, callbacks)

    def _check_response(self, partial: PartialFile, response: httpx2.Response, *, is_shortcut: bool) -> None:
        """Return if content follows. Raises _RetryableResponse, or what the source explains."""
        status, headers, host = response.status_code, response.headers, response.url.host
        if response.history:
            partial.resolved = str(response.url)
        if status in (200, 206):
            self._limiters.record_answer(host)
            partial.is_checked = self._plan.source.can_verify(headers)
        elif status == 416 and _parse_total_bytes(headers) == 0:
            pass  # an empty file has no part
        elif status == 429 or (status == 503 and "retry-after" in headers):
            self._limiters.record_refusal(host, headers)
            raise _RetryableResponse(f"{host} asks to wait", counts=False)
        elif status >= 500 or status == 408:
            raise _RetryableResponse(f"{host} answered HTTP {status}")
        elif is_shortcut:
            partial.resolved = None  # signed addresses age
            raise _RetryableResponse(f"{host} answered HTTP {status}")
        else:
            raise self._plan.source.explain(status, headers, partial.file)

    def _accept(
        self,
        partial: PartialFile,
        segment: FileSegment,
        response: httpx2.Response,
        callbacks: ProgressCallbacks,
    ) -> None:
        had_size = partial.size is not None
        if response.status_code == 416:
            partial.make_whole(segment, 0)
        elif response.status_code == 206:
            total = _parse_total_bytes(response.headers)
            if total is not None and partial.size not in (None, total):
                raise self._plan.source.explain(412, response.headers, partial.file)
            if total is not None:
                partial.learn_size(total)
            callbacks.on_ranges_supported(partial, segment)
        elif segment.position > 0 or segment.end != partial.size or not had_size:
            length = response.headers.get("content-length")
            self._progress.add_existing(-partial.done)
            partial.make_whole(segment, int(length) if length is not None else None)
        if not had_size:
            self._progress.add_expected(partial.size or 0)
        self._write_content(partial, segment, response, callbacks)
        if segment.end is None:
            partial.end_at(segment)
            self._progress.add_expected(partial.size or 0)
        if not segment.is_done:
            raise _RetryableResponse("the connection was cut")
        partial.take_note()
        callbacks.on_bytes_written(partial)

    def _write_content(
        self,
        partial: PartialFile,
        segment: FileSegment,
        response: httpx2.Response,
        callbacks: ProgressCallbacks,
    ) -> None:
        since_hash = 0
        for content in response.iter_raw():
            left = len(content) if segment.end is None else segment.end - segment.position
            if len(content) > left and response.status_code == 206:
                raise SourceUnavailable(
                    f"{self._plan.name}: {response.url.host} sent more of {partial.file.path} than the range that it "
                    "was asked for; it, or a proxy in front of it, ignores the end of a range"
                )
            if len(content) > left:
                raise self._plan.source.explain(412, response.headers, partial.file)
            partial.write(segment, content)
            self._progress.add_received(len(content))
            since_hash += len(content)
            if since_hash >= HASH_EVERY:
                since_hash = 0
                callbacks.on_bytes_written(partial)
            if self.stopped.is_set():
                return


def _parse_total_bytes(headers: Mapping[str, str]) -> int | None:
    """Return the size of the whole file, from the header of an answer with a part of it."""
    total = headers.get("content-range", "").rpartition("/")[2]
    return int(total) if total.isdigit() else None
