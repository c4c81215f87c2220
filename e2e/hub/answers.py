"""What the hub answers, as values: no sockets here.

The status codes and the ``X-Error-Code`` header are what ``huggingface_hub`` turns into its exceptions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from e2e.hub.access import Access
from e2e.hub.repositories import DEFAULT_BRANCH, Repositories, Revision, StoredFile

INFO = re.compile(r"/api/models/(?P<repository>[^/]+/[^/]+)(/revision/(?P<revision>[^/]+))?")
TREE = re.compile(r"/api/models/(?P<repository>[^/]+/[^/]+)/tree/(?P<revision>[^/]+)(/(?P<folder>.+))?")
RESOLVE = re.compile(r"/(?P<repository>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")
RANGE = re.compile(r"bytes=(?P<first>\d*)-(?P<last>\d*)")


@dataclass(frozen=True)
class Question:
    path: str
    """The path with its query, as it stands in the request line."""

    token: str | None = None
    byte_range: str | None = None


@dataclass(frozen=True)
class Content:
    """Part of a file: from ``start`` up to but without ``end``."""

    file: StoredFile
    start: int
    end: int


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | Content = b""


class Refusal(Exception):
    """An error answer on its way to the client."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code

    def answer(self) -> Answer:
        headers = {"Content-Type": "application/json", "X-Error-Message": self.message}
        if self.code is not None:
            headers["X-Error-Code"] = self.code
        return Answer(self.status, headers, json.dumps({"error": self.message}).encode())


@dataclass(frozen=True)
class Hub:
    repositories: Repositories
    access: Access

    def answer(self, question: Question) -> Answer:
        try:
            return self._route(question)
        except Refusal as refusal:
            return refusal.answer()

    def _route(self, question: Question) -> Answer:
        if not self.access.knows(question.token):
            raise Refusal(401, "Invalid credentials in Authorization header")
        url = urlsplit(question.path)
        if url.path == "/healthz":
            return _json({"status": "ok"})
        if url.path == "/api/whoami-v2":
            return self._who(question.token)
        if match := INFO.fullmatch(url.path):
            name, revision = match["repository"], match["revision"] or DEFAULT_BRANCH
            details = "blobs=true" in url.query.lower()
            return _json(self._info(self._revision(name, revision, question.token), details=details))
        if match := TREE.fullmatch(url.path):
            revision = self._revision(match["repository"], match["revision"], question.token)
            return _json(
                _tree(revision, unquote(match["folder"] or ""), "recursive=true" in url.query.lower())
            )
        if match := RESOLVE.fullmatch(url.path):
            revision = self._revision(match["repository"], match["revision"], question.token)
            return self._resolve(revision, unquote(match["file"]), question)
        raise Refusal(404, "Sorry, we can't find the page you are looking for.")

    def _who(self, token: str | None) -> Answer:
        if token is None:
            raise Refusal(401, "Invalid username or password.")
        return _json({"type": "user", "name": "reader" if token in self.access.readers else "stranger"})

    def _revision(self, repository: str, name: str, token: str | None) -> Revision:
        repository = unquote(repository)
        if not self.repositories.exists(repository):
            # Without a token the hub does not tell a missing repository from a private one.
            raise Refusal(401 if token is None else 404, "Repository not found", "RepoNotFound")
        revision = self.repositories.revision(repository, unquote(name))
        if revision is None:
            raise Refusal(404, f"Invalid rev id: {unquote(name)}", "RevisionNotFound")
        return revision

    def _info(self, revision: Revision, *, details: bool) -> dict[str, object]:
        return {
            "_id": revision.commit[:24],
            "id": revision.repository,
            "modelId": revision.repository,
            "sha": revision.commit,
            "private": False,
            "gated": "manual" if revision.repository in self.access.gated else False,
            "disabled": False,
            "tags": ["license:apache-2.0"],
            "downloads": 0,
            "likes": 0,
            "siblings": [_sibling(file, details=details) for file in revision.files],
        }

    def _resolve(self, revision: Revision, name: str, question: Question) -> Answer:
        if not self.access.may_read_files(revision.repository, question.token):
            message = f"Access to model {revision.repository} is restricted."
            raise Refusal(401 if question.token is None else 403, message, "GatedRepo")
        file = revision.file(name)
        if file is None:
            raise Refusal(404, "Entry not found", "EntryNotFound")
        headers = {
            "Content-Type": "application/octet-stream",
            "ETag": f'"{file.etag}"',
            "X-Repo-Commit": revision.commit,
            "Accept-Ranges": "bytes",
        }
        if file.is_large:
            headers |= {"X-Linked-Etag": f'"{file.etag}"', "X-Linked-Size": str(file.size)}
        return _content(file, headers, question.byte_range)


def _tree(revision: Revision, folder: str, recursive: bool) -> list[dict[str, object]]:
    prefix = f"{folder}/" if folder else ""
    entries: list[dict[str, object]] = [
        {"type": "directory", "path": path, "oid": revision.commit, "size": 0}
        for path in revision.folders()
        if path.startswith(prefix)
    ]
    entries += [_tree_entry(file) for file in revision.files if file.name.startswith(prefix)]
    if not recursive:
        entries = [entry for entry in entries if "/" not in str(entry["path"]).removeprefix(prefix)]
    if folder and not entries:
        raise Refusal(404, f"{folder} does not exist on {revision.branch}", "EntryNotFound")
    return entries


def _sibling(file: StoredFile, *, details: bool) -> dict[str, object]:
    entry: dict[str, object] = {"rfilename": file.name}
    if details:
        entry |= {"size": file.size, "blobId": file.blob_id}
    if details and file.is_large:
        entry["lfs"] = {"sha256": file.sha256, "size": file.size, "pointerSize": 135}
    return entry


def _tree_entry(file: StoredFile) -> dict[str, object]:
    entry: dict[str, object] = {"type": "file", "path": file.name, "oid": file.blob_id, "size": file.size}
    if file.is_large:
        entry["lfs"] = {"oid": file.sha256, "size": file.size, "pointerSize": 135}
    return entry


def _content(file: StoredFile, headers: dict[str, str], byte_range: str | None) -> Answer:
    if byte_range is None:
        return Answer(200, headers, Content(file, 0, file.size))
    bounds = _bounds(byte_range, file.size)
    if bounds is None:
        return Answer(416, headers | {"Content-Range": f"bytes */{file.size}"})
    start, end = bounds
    return Answer(
        206, headers | {"Content-Range": f"bytes {start}-{end - 1}/{file.size}"}, Content(file, start, end)
    )


def _bounds(byte_range: str, size: int) -> tuple[int, int] | None:
    """Start and end (exclusive) of a single range; nothing when it lies outside of the file."""
    match = RANGE.fullmatch(byte_range.strip())
    if match is None or not (match["first"] or match["last"]):
        return None
    if not match["first"]:
        start, end = max(0, size - int(match["last"])), size
    else:
        start = int(match["first"])
        end = min(size, int(match["last"]) + 1) if match["last"] else size
    return (start, end) if start < end else None


def _json(value: object) -> Answer:
    return Answer(200, {"Content-Type": "application/json"}, json.dumps(value).encode())
