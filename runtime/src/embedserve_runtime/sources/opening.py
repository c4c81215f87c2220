"""Opens the model of the settings as a local folder: where it is, from the store, or fetched into the store."""

from __future__ import annotations

import errno
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from embedserve_runtime.config import ModelSettings
from embedserve_runtime.errors import ModelNotFound, ModelNotStored
from embedserve_runtime.sources.hub_cache import find_snapshot
from embedserve_runtime.store import ModelName, ModelReference, Store
from embedserve_runtime.store.volume import volume_errors

if TYPE_CHECKING:
    from embedserve_runtime.sources.host_limits import RetryPolicy
    from embedserve_runtime.sources.progress import Progress

log = logging.getLogger(__name__)
LOCAL_REVISION = "local"
_NAME_WITH_REVISION = re.compile(r"(?P<name>[\w.-]+(/[\w.-]+)?)@(?P<revision>\S+)")
REMOTE = ("https://", "http://", "s3://")


@dataclass(frozen=True, slots=True)
class LocatedModel:
    """A model folder on this machine. revision: the commit, or "local"; digest: of its files, None when local.
    licence: as the source names it, None where it does not."""

    folder: Path
    revision: str
    digest: str | None
    size: int
    licence: str | None = None


def open_model(settings: ModelSettings) -> LocatedModel:
    """Open the folder of the model: local, else from the store, else fetched into it.

    What is in the store is compared by size and taken without asking anyone; that works on a read-only mount and
    offline. Raises ModelError, SourceUnavailable (ModelNotStored offline), CertificateUntrusted or VolumeError.
    """
    return _open_folder(settings, None, None)


def fetch_model(
    settings: ModelSettings, progress: Progress | None = None, retry_policy: RetryPolicy | None = None
) -> LocatedModel:
    """Open a model and note in the store that it is wanted, which keeps `store gc` from removing it."""
    located = _open_folder(settings, progress, retry_policy)
    if located.digest is not None:
        Store(settings.store).record_use(
            ModelReference(name=build_store_key(settings), commit=located.revision, digest=located.digest)
        )
    return located


def find_present_model(settings: ModelSettings) -> LocatedModel | None:
    """Return the folder of the model where it is on this machine, or in the store; None where it has to be fetched."""
    local = _find_local_model(settings.source)
    if local is not None:
        return local
    store = Store(settings.store)
    with volume_errors(store.root):
        reference = store.find(build_store_key(settings))
    return None if reference is None else _locate_stored(store, reference)


def record_identity(settings: ModelSettings, located: LocatedModel, vector_space: str) -> None:
    """Write into the model's manifest which vectors it gives under these settings."""
    if located.digest is not None:
        reference = ModelReference(
            name=build_store_key(settings), commit=located.revision, digest=located.digest
        )
        Store(settings.store).record_use(reference, vector_space)


def build_store_key(settings: ModelSettings) -> ModelName:
    """Build the key under which the store keeps the model: everything that decides its files."""
    is_hub = not settings.source.startswith(REMOTE)
    return ModelName(
        source=settings.source_name,
        revision=settings.revision if is_hub else settings.sha256 or settings.s3_url or "",
        variant=settings.onnx_file,
        refresh=settings.refresh,
    )


def _open_folder(
    settings: ModelSettings, progress: Progress | None, retry_policy: RetryPolicy | None
) -> LocatedModel:
    local = _find_local_model(settings.source)
    if local is not None:
        return local
    store, name = Store(settings.store), build_store_key(settings)
    with volume_errors(store.root):
        damage = store.find_damage(name)
        reference = store.find(name)
    if reference is None:
        if settings.offline:
            raise ModelNotStored(
                f"{settings.source_name} at {settings.revision} cannot be taken from the store {settings.store}: "
                f"{damage}; offline mode is set, so it is not fetched: run `embedserve fetch` with the same settings "
                "online"
            )
        log.info("not in the store", extra={"source": settings.source_name, "problem": damage})
        reference = _fetch_folder(store, name, settings, progress, retry_policy)
    return _locate_stored(store, reference)


def _locate_stored(store: Store, reference: ModelReference) -> LocatedModel:
    manifest = store.read_manifest(reference.digest)
    return LocatedModel(
        folder=store.get_folder(reference.digest),
        revision=reference.commit,
        digest=reference.digest,
        size=manifest.size,
        licence=manifest.licence,
    )


def _fetch_folder(
    store: Store,
    name: ModelName,
    settings: ModelSettings,
    progress: Progress | None,
    retry_policy: RetryPolicy | None,
) -> ModelReference:
    # Imported here: the libraries of the sources take a quarter of the time in which a server starts.
    from embedserve_runtime.sources.fetching import fetch_into
    from embedserve_runtime.sources.host_limits import RetryPolicy
    from embedserve_runtime.sources.progress import Progress

    return fetch_into(store, name, settings, progress or Progress(), retry_policy or RetryPolicy())


def _find_local_model(source: str) -> LocatedModel | None:
    if source.startswith(REMOTE):
        return None
    folder = Path(source).expanduser()
    if _is_folder(folder):
        snapshot = find_snapshot(folder)
        revision = LOCAL_REVISION
        if snapshot is not None:
            folder, revision = snapshot.folder, snapshot.commit
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        return LocatedModel(folder=folder.resolve(), revision=revision, digest=None, size=size)
    hint = _find_hint(source)
    if hint is not None:
        raise ModelNotFound(f"model.source {source} is no folder and no repository: {hint}")
    if folder.is_absolute() or source.startswith((".", "~")) or source.count("/") > 1:
        raise ModelNotFound(f"model folder {source} does not exist or is not a folder")
    if not _is_text(source):
        raise ModelNotFound(
            f"{source!r} is neither a folder that exists nor text, which a repository name is"
        )
    return None


def _find_hint(source: str) -> str | None:
    """Return how to write a source that is written as other programs have it."""
    if source.startswith("file:"):
        return f"write the folder without its scheme, as {'/' + source.removeprefix('file:').lstrip('/')}"
    if source.startswith("hf://"):
        return f"write a repository without its scheme, as {source.removeprefix('hf://')}"
    if (match := _NAME_WITH_REVISION.fullmatch(source)) is not None:
        return f"write it as {match['name']} and set model.revision (--revision {match['revision']})"
    return None


def _is_folder(path: Path) -> bool:
    """Return whether a path is that of a folder; one that is too long to be any is not."""
    try:
        return path.is_dir()
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return False


def _is_text(source: str) -> bool:
    """Return whether a source is text: an argument may be bytes that are not UTF-8, as the name of a folder may."""
    try:
        source.encode()
    except UnicodeEncodeError:
        return False
    return True
