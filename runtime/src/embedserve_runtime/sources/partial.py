"""Tracks a partially downloaded file: the bytes that are on the disk, and the hash of those from its start.

Beside the content lies a note of what is done, written after the content it speaks of, so that the next process goes
on from there. The hash is made while the file grows, by a reader that follows the bytes without a gap.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from embedserve_runtime.sources.remote import RemoteFile
from embedserve_runtime.store.manifest import StoredFile
from embedserve_runtime.store.volume import make_folder

SEGMENT = 32 << 20
NOTE_EVERY = 8 << 20
FLUSH_EVERY = 64 << 20
CHUNK = 1 << 20
CONTENT, NOTES = "content", "notes"


class Hash(Protocol):
    """The interface of a `hashlib` hash."""

    def update(self, content: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


@dataclass(slots=True)
class FileSegment:
    """Bytes from `start` to before `end`; the first `done` of them are here. end: None while it is not known."""

    start: int
    end: int | None
    done: int = 0

    @property
    def position(self) -> int:
        return self.start + self.done

    @property
    def is_done(self) -> bool:
        return self.end is not None and self.position >= self.end


class PartialFile:
    """The state of a partially downloaded file. Segments are written by one thread each; the hash is made by one
    thread."""

    def __init__(self, folder: Path, file: RemoteFile) -> None:
        """Go on from what an earlier process left in `folder`, if that was of the same content."""
        self.file = file
        self.path = folder / CONTENT / file.path
        self.size = file.size
        self.resolved: str | None = None
        """The address that the last answer came from, if that was after a redirect."""
        self.attempts = 1
        self.is_checked = True
        self._note = folder / NOTES / f"{hashlib.sha256(file.path.encode()).hexdigest()}.json"
        self._lock = threading.RLock()
        self._flushing = threading.Lock()
        self._since_note = 0
        make_folder(self.path.parent)
        make_folder(self._note.parent)
        self.segments = self._read_note() or _split_into_segments(file.size)
        self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        self._hashed = 0
        self._flushed = 0
        self._sha256 = hashlib.sha256()
        self._other_hash: Hash | None = None

    @property
    def done(self) -> int:
        return sum(segment.done for segment in self.segments)

    @property
    def is_done(self) -> bool:
        with self._lock:
            return self.size is not None and all(segment.is_done for segment in self.segments)

    @property
    def unfinished(self) -> list[FileSegment]:
        with self._lock:
            return [segment for segment in self.segments if not segment.is_done]

    @property
    def is_hashed(self) -> bool:
        return self.is_done and self._hashed == self.size

    def take_flush(self) -> bool:
        """Return whether a flush is due: once for every `FLUSH_EVERY` bytes. Called by the thread that hashes."""
        if self._hashed - self._flushed < FLUSH_EVERY:
            return False
        self._flushed = self._hashed
        return True

    def learn_size(self, size: int) -> None:
        """Set the size that the source did not say before; the segments after the first are new."""
        with self._lock:
            if self.size is None:
                self.size = size
                first = self.segments[0]
                self.segments = [first, *_split_into_segments(size)[1:]]
                first.end = min(SEGMENT, size)

    def make_whole(self, segment: FileSegment, size: int | None) -> None:
        """Turn this segment into all of the file, from the start, since the source gives no parts."""
        with self._lock:
            self.size = size if size is not None else self.size
            segment.start, segment.end, segment.done = 0, self.size, 0
            self.segments = [segment]
            self._start_hash()

    def has(self, segment: FileSegment) -> bool:
        with self._lock:
            return any(each is segment for each in self.segments)

    def end_at(self, segment: FileSegment) -> None:
        """Set the end of the file where its content ended, if nothing else had said where."""
        with self._lock:
            segment.end = self.size = segment.position

    def write(self, segment: FileSegment, content: bytes) -> None:
        """Write content at the position of a segment. Raises OSError."""
        view = memoryview(content)
        while view:
            written = os.pwrite(self._handle, view, segment.position)
            segment.done += written
            view = view[written:]
        self._since_note += len(content)
        if self._since_note >= NOTE_EVERY:
            self.take_note()

    def take_note(self) -> None:
        """Write down what is here, after it is here. Raises OSError."""
        with self._lock:
            self._since_note = 0
            if self.file.expected_hash is None:
                os.fdatasync(self._handle)  # nothing else would notice a hole that a crash of the node leaves
            note = {
                "version": self._version,
                "size": self.size,
                "done": [each.done for each in self.segments],
            }
            temporary = self._note.with_suffix(".new")
            temporary.write_text(json.dumps(note), encoding="utf-8")
            temporary.replace(self._note)

    def hash_more(self) -> None:
        """Hash what follows without a gap and is not hashed yet. Raises OSError."""
        if self.size is None:
            return  # git's hash begins with the size
        if (
            self._other_hash is None
            and self.file.expected_hash is not None
            and self.file.expected_hash.kind != "sha256"
        ):
            self._other_hash = _build_hasher(self.file.expected_hash.kind, self.size)
        until = self._count_without_gap()
        while self._hashed < until:
            content = os.pread(self._handle, min(CHUNK, until - self._hashed), self._hashed)
            if not content:
                raise OSError(f"{self.path} is shorter than what was written to it")
            self._sha256.update(content)
            if self._other_hash is not None:
                self._other_hash.update(content)
            self._hashed += len(content)

    def flush(self) -> None:
        """Have the disk hold what was written, while more comes: at the end little is left to wait for, and a container
        with little memory has it free of pages that wait for the disk. Raises OSError."""
        with self._flushing:
            if self._handle >= 0:
                os.fdatasync(self._handle)

    def find_mismatch(self) -> str | None:
        """Return the hash of the complete file if it is not the expected one."""
        expected = self.file.expected_hash
        digest = (self._sha256 if self._other_hash is None else self._other_hash).hexdigest()
        return digest if self.is_checked and expected is not None and digest != expected.value else None

    def finish(self) -> StoredFile:
        """Have the disk hold the content. Raises OSError."""
        os.fsync(self._handle)
        self.close()
        return StoredFile(path=self.file.path, size=self.size or 0, sha256=self._sha256.hexdigest())

    def restart(self) -> None:
        """Forget the content: the hash says that it is wrong. Raises OSError."""
        with self._lock:
            self._note.unlink(missing_ok=True)
            os.ftruncate(self._handle, 0)
            self.attempts += 1
            self.resolved = None
            self.segments = _split_into_segments(self.size)
            self._start_hash()

    def leave(self) -> None:
        """Close the file; what is here is noted for the next process, where it can be."""
        if self._handle >= 0:
            with contextlib.suppress(OSError):
                self.take_note()
            self.close()

    def close(self) -> None:
        with self._flushing:
            if self._handle >= 0:
                os.close(self._handle)
                self._handle = -1

    @property
    def _version(self) -> str:
        return self.file.expected_hash.value if self.file.expected_hash is not None else self.file.etag or ""

    def _start_hash(self) -> None:
        self._hashed = self._flushed = 0
        self._sha256 = hashlib.sha256()
        self._other_hash = None

    def _count_without_gap(self) -> int:
        with self._lock:
            for segment in self.segments:
                if not segment.is_done:
                    return segment.position
            return self.size or 0

    def _read_note(self) -> list[FileSegment] | None:
        """Read the segments that a note lists, if it is of the same content and of bytes that the file has; else
        None."""
        try:
            note = json.loads(self._note.read_bytes())
            length = self.path.stat().st_size
            segments = _split_into_segments(int(note["size"]))
            for segment, done in zip(segments, note["done"], strict=True):
                segment.done = int(done)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        fits = note["version"] == self._version != "" and self.file.size in (None, note["size"])
        holds = all(each.position <= min(length, each.end or 0) for each in segments if each.done)
        if not (fits and holds):
            return None
        self.size = int(note["size"])
        return segments


def _split_into_segments(size: int | None) -> list[FileSegment]:
    if size is None:
        return [FileSegment(0, None)]
    return [FileSegment(start, min(start + SEGMENT, size)) for start in range(0, max(size, 1), SEGMENT)]


def _build_hasher(kind: str, size: int) -> Hash:
    if kind == "md5":
        return hashlib.md5(usedforsecurity=False)
    digest = hashlib.sha1(usedforsecurity=False)
    digest.update(b"blob %d\0" % size)
    return digest
