"""Fetches one model from its source into the store."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from embedserve_runtime.config import ModelSettings
from embedserve_runtime.config.network import check_network_environment
from embedserve_runtime.errors import (
    ConfigError,
    ModelError,
    ModelFileMissing,
    ModelInvalid,
    ModelNotFound,
    SourceUnavailable,
    UnsupportedArchitecture,
    UnsupportedInputs,
)
from embedserve_runtime.model.bundled_onnx import choose_file
from embedserve_runtime.model.exports import ADVICE, can_export
from embedserve_runtime.model.folder import read_folder
from embedserve_runtime.progress import display_work
from embedserve_runtime.sources.archive import ArchiveSource, unpack
from embedserve_runtime.sources.host_limits import HostLimiters, RetryPolicy
from embedserve_runtime.sources.hub import HubSource, find_rate_limit_headers
from embedserve_runtime.sources.progress import Progress
from embedserve_runtime.sources.remote import Listing, RemoteFile, Source
from embedserve_runtime.sources.segments import FetchPlan
from embedserve_runtime.sources.selection import (
    is_safe,
    list_external_files,
    select_description_files,
    select_weight_files,
)
from embedserve_runtime.sources.transfer import Transfer
from embedserve_runtime.store import FetchedFile, ModelName, ModelReference, Store, StoredFile
from embedserve_runtime.store.manifest import hash_file
from embedserve_runtime.store.staging import (
    Staging,
    find_earlier_writer,
    find_live_writer,
    open_staging,
    remove_abandoned_folders,
    require_writable,
    wait_for_writer,
)
from embedserve_runtime.store.volume import (
    count_free_bytes,
    link_or_copy,
    make_folder,
    require_free_bytes,
    volume_errors,
)

log = logging.getLogger(__name__)
RESERVE = 16 << 20
"""Bytes that stay free besides the model: manifests, notes, what the file system needs for itself."""


def fetch_into(
    store: Store, name: ModelName, settings: ModelSettings, progress: Progress, retry_policy: RetryPolicy
) -> ModelReference:
    """Resolve the source and bring what is missing.

    Where another process fetches the same content already, waits for it and takes what it made. Raises ModelError,
    SourceUnavailable, CertificateUntrusted or VolumeError.
    """
    with display_work(progress.get_work_state):
        return _fetch_into(store, name, settings, progress, retry_policy)


def _fetch_into(
    store: Store, name: ModelName, settings: ModelSettings, progress: Progress, retry_policy: RetryPolicy
) -> ModelReference:
    with volume_errors(store.root):
        require_writable(store.root)
    source = open_source(settings)
    listing = list_source(source, retry_policy)
    log.info("fetching model", extra={"source": settings.source_name, "revision": listing.commit})
    key = ModelName(source=name.source, revision=listing.commit, variant=name.variant).key[:24]
    while True:
        writer = find_live_writer(store.root, key)
        if writer is None:
            try:
                with volume_errors(store.root), open_staging(store.root, key) as staging:
                    _yield_to_earlier(store, staging)
                    # Another one may have brought it between our first look and now.
                    stored = store.find(name)
                    return (
                        stored
                        or _Fetcher(
                            store, name, settings, source, listing, staging, progress, retry_policy
                        ).run()
                    )
            except _EarlierWriter as earlier:
                writer = earlier.folder
        progress.enter("waiting for another process that fetches the same model")
        wait_for_writer(writer)
        if (fetched := store.find(name)) is not None:
            return fetched


class _EarlierWriter(Exception):
    """Another writer that began at the same time was first."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder


def _yield_to_earlier(store: Store, staging: Staging) -> None:
    earlier = find_earlier_writer(store.root, staging)
    if earlier is not None:
        raise _EarlierWriter(earlier)


def open_source(settings: ModelSettings) -> Source:
    """Return the source that the settings name, once its clients can use the proxies and certificates of the
    environment. Raises ConfigError or ModelInvalid."""
    check_network_environment(os.environ)
    if settings.source.startswith("s3://"):
        # Imported here: the library is of use for this source only.
        from embedserve_runtime.sources.s3 import S3Source

        return S3Source(settings)
    if settings.source.startswith(("https://", "http://")):
        return ArchiveSource(settings)
    return HubSource(settings)


def list_source(source: Source, retry_policy: RetryPolicy) -> Listing:
    """List the source's files; asks again while the source is in trouble."""
    limiters, stopped, failures = HostLimiters(retry_policy, 1), threading.Event(), 0
    while True:
        try:
            with limiters.request_slot(source.host, stopped):
                listing = source.list_files()
        except SourceUnavailable as error:
            headers = find_rate_limit_headers(error.__cause__)
            if headers is not None:
                limiters.record_refusal(source.host, headers)
                continue
            failures += 1
            if failures >= retry_policy.max_listing_attempts:
                raise
            stopped.wait(retry_policy.compute_pause_s(failures))
        else:
            break
    unsafe = next((file.path for file in listing.files if not is_safe(file.path)), None)
    if unsafe is not None:
        raise ModelInvalid(f"the source has a file whose path leads out of the model's folder: {unsafe!r}")
    return listing


def choose_graph(settings: ModelSettings, folder: Path, names: Sequence[str]) -> str | None:
    """Return the ONNX file that is run, of those among `names`; None where the weights are. folder: the small files of
    the model. Raises ModelError or ConfigError."""
    try:
        return choose_file(read_folder(folder), names, settings.onnx_file)
    except UnsupportedArchitecture as error:
        message = error.message.replace(str(folder), settings.source_name)
        if isinstance(error, UnsupportedInputs):
            raise UnsupportedInputs(message) from error
        if can_export() or settings.export_elsewhere:
            return None  # its weights are what an export is made from
        raise UnsupportedArchitecture(f"{message}; {ADVICE}") from error
    except (ModelError, ConfigError) as error:
        raise type(error)(error.message.replace(str(folder), settings.source_name)) from error


@dataclass(frozen=True, slots=True)
class _Fetcher:
    """Fetches a model into the staging folder of one writer."""

    store: Store
    name: ModelName
    settings: ModelSettings
    source: Source
    listing: Listing
    staging: Staging
    progress: Progress
    retry_policy: RetryPolicy

    def run(self) -> ModelReference:
        plan = FetchPlan(self.source, self.settings.source_name, self.staging.files, self.staging.check)
        with Transfer(plan, self.progress, self.retry_policy) as transfer:
            self.progress.enter("fetching")
            if isinstance(self.source, ArchiveSource):
                arrived = self._unpack_archive(self._fetch_files(transfer, self.listing.files)[0])
            else:
                arrived = self._fetch_selected(transfer)
        if not arrived:
            raise ModelNotFound(f"{self.settings.source_name} at {self.listing.commit} holds no model files")
        self.progress.enter("storing")
        return self.store.add(self.staging, arrived, self.name, self.listing.commit, self.listing.licence)

    def _fetch_selected(self, transfer: Transfer) -> list[FetchedFile]:
        """Fetch the small files, and then the weights that these show to be run."""
        files = {file.path: file for file in self.listing.files}
        names = list(files)
        arrived = self._fetch_files(transfer, [files[name] for name in select_description_files(names)])
        view = self._build_view(arrived)
        graph = choose_graph(self.settings, view, names)
        if graph is None:
            remaining = [
                name
                for name in select_weight_files(names)
                if name not in {arrival.stored.path for arrival in arrived}
            ]
            return arrived + self._fetch_files(transfer, [files[name] for name in remaining])
        arrived += self._fetch_files(transfer, [files[graph]])
        external = list_external_files(self._build_view(arrived), graph)
        missing = [name for name in external if name not in files]
        if missing:
            raise ModelFileMissing(
                f"{', '.join(missing)}, weights of {graph}, not found in {self.settings.source_name}"
            )
        return arrived + self._fetch_files(transfer, [files[name] for name in external])

    def _unpack_archive(self, archive: FetchedFile) -> list[FetchedFile]:
        """Unpack the files that a model needs from an archive that has arrived."""
        self.progress.enter("unpacking")
        folder = self.staging.folder / "unpacked"
        make_folder(folder)
        names = unpack(archive.file, folder)
        graph = choose_graph(self.settings, folder, names)
        weights = (
            select_weight_files(names) if graph is None else [graph, *list_external_files(folder, graph)]
        )
        return [
            _describe_file(folder, name)
            for name in dict.fromkeys([*select_description_files(names), *weights])
        ]

    def _fetch_files(self, transfer: Transfer, files: Sequence[RemoteFile]) -> list[FetchedFile]:
        """Take files from the store where it has them, else download them.

        Raises VolumeFull before the first byte where they have no room.
        """
        here = {file.path: stored for file in files if (stored := self._find_stored(file)) is not None}
        partials = transfer.open_partials([file for file in files if file.path not in here])
        needed = sum((partial.size or 0) - partial.done for partial in partials) + RESERVE
        if partials and count_free_bytes(self.store.root) < needed:
            remove_abandoned_folders(self.store.root, 0.0)
            require_free_bytes(self.store.root, needed)
        return [*here.values(), *(transfer.fetch(partials) if partials else [])]

    def _find_stored(self, file: RemoteFile) -> FetchedFile | None:
        blob = self.store.find_blob(file.sha256, file.size) if file.sha256 is not None else None
        if blob is None or file.sha256 is None:
            return None
        size = blob.stat().st_size
        self.progress.add_expected(size)
        self.progress.add_existing(size)
        return FetchedFile(StoredFile(path=file.path, size=size, sha256=file.sha256), blob)

    def _build_view(self, arrived: Sequence[FetchedFile]) -> Path:
        """Build a folder in which what arrived has its own names. What is written to later has no second name here."""
        view = self.staging.folder / "view"
        for arrival in arrived:
            path = view / arrival.stored.path
            if not path.exists() and not path.name.endswith(".safetensors"):
                make_folder(path.parent)
                link_or_copy(arrival.file, path)
        make_folder(view)
        return view


def _describe_file(folder: Path, name: str) -> FetchedFile:
    path = folder / name
    return FetchedFile(StoredFile(path=name, size=path.stat().st_size, sha256=hash_file(path)), path)
