"""Reads what describes a model out of its source, without its weights: the small files, and the headers of safetensors
files, which say the shape of each tensor.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import httpx2
import msgspec

from embedserve_runtime.config import ModelSettings
from embedserve_runtime.errors import ModelInvalid, SourceUnavailable
from embedserve_runtime.sources.archive import ArchiveSource
from embedserve_runtime.sources.fetching import choose_graph, list_source, open_source
from embedserve_runtime.sources.host_limits import RetryPolicy
from embedserve_runtime.sources.progress import Progress
from embedserve_runtime.sources.remote import RemoteFile, Source, build_connection_error, build_http_client
from embedserve_runtime.sources.segments import FetchPlan
from embedserve_runtime.sources.selection import select_description_files, select_weight_files
from embedserve_runtime.sources.transfer import Transfer
from embedserve_runtime.store.volume import link_or_copy, make_folder

SAFETENSORS = ".safetensors"
_LENGTH_BYTES = 8
"""Bytes of the number that a safetensors file begins with: the length of its header."""
_FIRST_BYTES = 1 << 20
"""Bytes that are asked for first: most headers are shorter."""
_MAX_HEADER_BYTES = 100 << 20
"""The longest header that the format allows."""


@dataclass(frozen=True, slots=True)
class ModelOutline:
    """The facts about a model that are known before it is fetched.

    revision: the commit. size: bytes of the files that a fetch would bring. licence: as the source names it. folder:
    the small files, beside files instead of weights that have their headers and sizes, and no content; None where
    what runs cannot be described without its weights: ONNX files, pickles and archives.
    """

    revision: str
    size: int
    licence: str | None
    folder: Path | None


class _Tensor(msgspec.Struct):
    data_offsets: tuple[int, int] = (0, 0)


def fetch_outline(
    settings: ModelSettings, folder: Path, retry_policy: RetryPolicy | None = None
) -> ModelOutline:
    """Fetch the outline of a model into an empty folder. Raises ModelError, SourceUnavailable, CertificateUntrusted or
    OSError."""
    policy = retry_policy or RetryPolicy()
    source = open_source(settings)
    listing = list_source(source, policy)
    with closing(_HeaderReader(source, settings.source_name, policy)) as reader:
        if isinstance(source, ArchiveSource):
            return ModelOutline(listing.commit, reader.read_size(listing.files[0]), None, None)
        files = {file.path: file for file in listing.files}
        small = [name for name in select_description_files(files) if not name.endswith(SAFETENSORS)]
        _fetch_small_files(settings, source, [files[name] for name in small], folder, policy)
        graph = choose_graph(settings, folder / "model", list(files))
        if graph is not None:
            weights = [name for name in files if name.startswith(graph)]
        else:
            weights = [
                *select_weight_files(list(files)),
                *(name for name in select_description_files(files) if name.endswith(SAFETENSORS)),
            ]
            for name in weights:
                if name.endswith(SAFETENSORS):
                    reader.write_outline(files[name], folder / "model" / name)
    is_described = graph is None and all(name.endswith(SAFETENSORS) for name in weights)
    return ModelOutline(
        revision=listing.commit,
        size=_count_bytes([files[name] for name in {*small, *weights}], folder / "model"),
        licence=listing.licence,
        folder=folder / "model" if is_described else None,
    )


def _fetch_small_files(
    settings: ModelSettings, source: Source, files: Sequence[RemoteFile], folder: Path, policy: RetryPolicy
) -> None:
    """Fetch files whole, into the subfolder `model`."""
    parts = folder / "parts"
    make_folder(parts)
    make_folder(folder / "model")
    plan = FetchPlan(source, settings.source_name, parts, lambda: None)
    with Transfer(plan, Progress(), policy) as transfer:
        partials = transfer.open_partials(files)
        for arrived in transfer.fetch(partials) if partials else ():
            path = folder / "model" / arrived.stored.path
            make_folder(path.parent)
            link_or_copy(arrived.file, path)


def _count_bytes(files: Iterable[RemoteFile], folder: Path) -> int:
    """Return the size of the files: as the source says, else as they have arrived."""
    return sum(
        file.size
        if file.size is not None
        else (folder / file.path).stat().st_size
        if (folder / file.path).exists()
        else 0
        for file in files
    )


class _HeaderReader:
    """Reads the beginnings of files, one after another."""

    def __init__(self, source: Source, name: str, policy: RetryPolicy) -> None:
        self._source = source
        self._name = name
        self._policy = policy
        self._client = build_http_client(policy.connect_s, policy.read_s, 1)

    def close(self) -> None:
        self._client.close()

    def write_outline(self, file: RemoteFile, path: Path) -> None:
        """Write the header of a safetensors file, and let the file have its whole size. Raises ModelInvalid."""
        start, _ = self._read_start(file, _FIRST_BYTES)
        length = int.from_bytes(start[:_LENGTH_BYTES], "little")
        end = _LENGTH_BYTES + length
        if len(start) < _LENGTH_BYTES or length > _MAX_HEADER_BYTES:
            raise ModelInvalid(f"{self._name}: {file.path} is not a readable safetensors file")
        if end > len(start):
            start, _ = self._read_start(file, end)
        try:
            header = msgspec.json.decode(start[_LENGTH_BYTES:end], type=dict[str, msgspec.Raw])
            tensors = [
                msgspec.json.decode(raw, type=_Tensor)
                for name, raw in header.items()
                if name != "__metadata__"
            ]
        except msgspec.MsgspecError as error:
            raise ModelInvalid(
                f"{self._name}: {file.path} is not a readable safetensors file: {error}"
            ) from error
        make_folder(path.parent)
        with path.open("wb") as outline:
            outline.write(start[:end])
            outline.truncate(end + max((tensor.data_offsets[1] for tensor in tensors), default=0))

    def read_size(self, file: RemoteFile) -> int:
        """Return the size of a file as its server tells it; 0 where it does not."""
        return self._read_start(file, 1)[1]

    def _read_start(self, file: RemoteFile, count: int) -> tuple[bytes, int]:
        """Read the first bytes of a file, with the size of the whole; asks again while the source is in trouble."""
        failures = 0
        while True:
            try:
                return self._request(file, count)
            except httpx2.HTTPError as error:
                problem = build_connection_error(f"{self._name}: {file.path}", error)
            except SourceUnavailable as error:
                problem = error
            failures += 1
            if not isinstance(problem, SourceUnavailable) or failures >= self._policy.max_attempts:
                raise problem
            threading.Event().wait(self._policy.compute_pause_s(failures))

    def _request(self, file: RemoteFile, count: int) -> tuple[bytes, int]:
        request = self._source.request(file)
        headers = {**request.headers, "Range": f"bytes=0-{count - 1}"}
        with self._client.stream("GET", request.url, headers=headers) as response:
            if response.status_code == 416:
                return b"", 0  # an empty file has no part
            if response.status_code not in (200, 206):
                raise self._source.explain(response.status_code, response.headers, file)
            content = bytearray()
            # One that knows no ranges sends everything: the rest is not waited for.
            for piece in response.iter_raw():
                content += piece
                if len(content) >= count:
                    break
            return bytes(content[:count]), _read_total(response.headers)


def _read_total(headers: Mapping[str, str]) -> int:
    """Return the size of a file from the headers of an answer with its beginning; 0 where they do not say."""
    total = headers.get("content-range", "").rpartition("/")[2] or headers.get("content-length", "")
    return int(total) if total.isdigit() else 0
