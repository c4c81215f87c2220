"""One model from its source into the store."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from embedserve_runtime.config import ModelSettings
from embedserve_runtime.errors import (
    ConfigError,
    ModelError,
    ModelFileMissing,
    ModelInvalid,
    ModelNotFound,
    SourceUnavailable,
    UnsupportedArchitecture,
)
from embedserve_runtime.model.exports import ADVICE, can_export
from embedserve_runtime.model.shipped import chosen_file
from embedserve_runtime.model.sources.archive import ArchiveSource, unpack
from embedserve_runtime.model.sources.hosts import Hosts, Patience
from embedserve_runtime.model.sources.hub import HubSource, too_many_requests
from embedserve_runtime.model.sources.progress import Progress
from embedserve_runtime.model.sources.reading import Plan
from embedserve_runtime.model.sources.remote import Listing, RemoteFile, Source
from embedserve_runtime.model.sources.selection import (
    description_files,
    external_files,
    is_safe,
    weight_files,
)
from embedserve_runtime.model.sources.transfer import Transfer
from embedserve_runtime.model.store import Arrived, Name, Reference, Store, StoredFile
from embedserve_runtime.model.store.manifest import file_sha256
from embedserve_runtime.model.store.staging import (
    Staging,
    earlier_writer,
    live_writer,
    need_writable,
    staged,
    sweep,
    wait_for,
)
from embedserve_runtime.model.store.volume import (
    free_bytes,
    link_or_copy,
    make_folder,
    need_bytes,
    volume_errors,
)

LOGGER = logging.getLogger(__name__)
HUB = "the hub"
RESERVE = 16 << 20
"""Bytes that stay free beside the model: manifests, notes, what the file system needs for itself."""


def fetch_into(
    store: Store, name: Name, settings: ModelSettings, progress: Progress, patience: Patience
) -> Reference:
    """Resolve the source and bring what is missing.

    Where another process fetches the same content already, waits for it and takes what it made. Raises ModelError,
    SourceUnavailable, CertificateUntrusted or VolumeError.
    """
    with volume_errors(store.root):
        need_writable(store.root)
    source = source_of(settings)
    listing = _resolved(source, patience)
    LOGGER.info("fetching model", extra={"source": settings.source, "revision": listing.commit})
    key = Name(source=name.source, revision=listing.commit, variant=name.variant).key[:24]
    while True:
        other = live_writer(store.root, key)
        if other is None:
            try:
                with volume_errors(store.root), staged(store.root, key) as staging:
                    _yield_to_earlier(store, staging)
                    # Another one may have brought it between our first look and now.
                    known = store.find(name)
                    return (
                        known
                        or _Fetch(store, name, settings, source, listing, staging, progress, patience).run()
                    )
            except _Earlier as earlier:
                other = earlier.folder
        progress.enter("waiting for another process that fetches the same model")
        wait_for(other)
        if (found := store.find(name)) is not None:
            return found


class _Earlier(Exception):
    """Of two writers that began at the same time, the other one was first."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder


def _yield_to_earlier(store: Store, staging: Staging) -> None:
    earlier = earlier_writer(store.root, staging)
    if earlier is not None:
        raise _Earlier(earlier)


def source_of(settings: ModelSettings) -> Source:
    """Raises ConfigError or ModelInvalid."""
    if settings.source.startswith("s3://"):
        # Imported here: the library is of use for this source only.
        from embedserve_runtime.model.sources.s3 import S3Source

        return S3Source(settings)
    if settings.source.startswith(("https://", "http://")):
        return ArchiveSource(settings)
    return HubSource(settings)


def _resolved(source: Source, patience: Patience) -> Listing:
    """The source's listing, asked for again while it is in trouble."""
    hosts, stopped, failures = Hosts(patience, 1), threading.Event(), 0
    while True:
        try:
            with hosts.turn(HUB, stopped):
                listing = source.listing()
        except SourceUnavailable as error:
            headers = too_many_requests(error.__cause__)
            if headers is not None:
                hosts.refused(HUB, headers)
                continue
            failures += 1
            if failures >= patience.tries_to_list:
                raise
            stopped.wait(patience.pause_s(failures))
        else:
            break
    unsafe = next((file.path for file in listing.files if not is_safe(file.path)), None)
    if unsafe is not None:
        raise ModelInvalid(f"the source has a file whose path leads out of the model's folder: {unsafe!r}")
    return listing


@dataclass(frozen=True, slots=True)
class _Fetch:
    """The work of one writer in its staging folder."""

    store: Store
    name: Name
    settings: ModelSettings
    source: Source
    listing: Listing
    staging: Staging
    progress: Progress
    patience: Patience

    def run(self) -> Reference:
        plan = Plan(self.source, self.settings.source, self.staging.files, self.staging.check)
        with Transfer(plan, self.progress, self.patience) as transfer:
            self.progress.enter("fetching")
            if isinstance(self.source, ArchiveSource):
                arrived = self._unpacked(self._brought(transfer, self.listing.files)[0])
            else:
                arrived = self._selected(transfer)
        if not arrived:
            raise ModelNotFound(f"{self.settings.source} at {self.listing.commit} holds no model files")
        self.progress.enter("storing")
        return self.store.add(self.staging, arrived, self.name, self.listing.commit, self.listing.licence)

    def _selected(self, transfer: Transfer) -> list[Arrived]:
        """The small files, and then of the weights what they show to be run."""
        files = {file.path: file for file in self.listing.files}
        names = list(files)
        arrived = self._brought(transfer, [files[name] for name in description_files(names)])
        view = self._view(arrived)
        graph = self._chosen(view, names)
        if graph is None:
            wanted = [
                name for name in weight_files(names) if name not in {one.stored.path for one in arrived}
            ]
            return arrived + self._brought(transfer, [files[name] for name in wanted])
        arrived += self._brought(transfer, [files[graph]])
        external = external_files(self._view(arrived), graph)
        missing = [name for name in external if name not in files]
        if missing:
            raise ModelFileMissing(
                f"{', '.join(missing)}, weights of {graph}, not found in {self.settings.source}"
            )
        return arrived + self._brought(transfer, [files[name] for name in external])

    def _unpacked(self, archive: Arrived) -> list[Arrived]:
        """The files that a model needs of an archive that has arrived."""
        self.progress.enter("unpacking")
        folder = self.staging.folder / "unpacked"
        make_folder(folder)
        names = unpack(archive.file, folder)
        graph = self._chosen(folder, names)
        weights = weight_files(names) if graph is None else [graph, *external_files(folder, graph)]
        return [_arrived(folder, name) for name in dict.fromkeys([*description_files(names), *weights])]

    def _chosen(self, folder: Path, names: Sequence[str]) -> str | None:
        try:
            return chosen_file(folder, names, self.settings.onnx_file)
        except UnsupportedArchitecture as error:
            if can_export() or self.settings.export_elsewhere:
                return None  # its weights are what an export is made from
            words = error.message.replace(str(folder), self.settings.source)
            raise UnsupportedArchitecture(f"{words}; {ADVICE}") from error
        except (ModelError, ConfigError) as error:
            raise type(error)(error.message.replace(str(folder), self.settings.source)) from error

    def _brought(self, transfer: Transfer, files: Sequence[RemoteFile]) -> list[Arrived]:
        """From the store's own files where it has them, else from the source.

        Raises VolumeFull before the first byte where they have no room.
        """
        here = {file.path: found for file in files if (found := self._stored(file)) is not None}
        partials = transfer.opened([file for file in files if file.path not in here])
        needed = sum((partial.size or 0) - partial.done for partial in partials) + RESERVE
        if partials and free_bytes(self.store.root) < needed:
            sweep(self.store.root, 0.0)
            need_bytes(self.store.root, needed)
        return [*here.values(), *(transfer.fetch(partials) if partials else [])]

    def _stored(self, file: RemoteFile) -> Arrived | None:
        blob = self.store.blob(file.sha256, file.size) if file.sha256 is not None else None
        if blob is None or file.sha256 is None:
            return None
        size = blob.stat().st_size
        self.progress.expect(size)
        self.progress.had(size)
        return Arrived(StoredFile(path=file.path, size=size, sha256=file.sha256), blob)

    def _view(self, arrived: Sequence[Arrived]) -> Path:
        """A folder in which what arrived has its own names. What is written to later has no second name here."""
        view = self.staging.folder / "view"
        for one in arrived:
            path = view / one.stored.path
            if not path.exists() and not path.name.endswith(".safetensors"):
                make_folder(path.parent)
                link_or_copy(one.file, path)
        make_folder(view)
        return view


def _arrived(folder: Path, name: str) -> Arrived:
    path = folder / name
    return Arrived(StoredFile(path=name, size=path.stat().st_size, sha256=file_sha256(path)), path)
