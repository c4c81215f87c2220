"""Where a model comes from: a local folder, or a repository of a Hugging Face compatible hub."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

# Read by the client library when it is imported: nothing is reported about us, and logs get no progress bars.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import httpx2  # the client library's own HTTP library: its transport errors come through unwrapped
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from embedserve_runtime.config import ModelSettings
from embedserve_runtime.errors import (
    ModelAccessDenied,
    ModelError,
    ModelFileMissing,
    ModelNotFound,
    SourceUnavailable,
)
from embedserve_runtime.model.heads.bge_m3 import FILES as BGE_M3_FILES
from embedserve_runtime.model.onnx_file import read_declared
from embedserve_runtime.model.pickles import ADVICE, can_read
from embedserve_runtime.model.shipped import chosen_file
from embedserve_runtime.model.store import Reference, Store

LOGGER = logging.getLogger(__name__)

# What a model folder needs; weights in other formats, exports and documents stay where they are.
SMALL = ("*.json", "*.txt", "*.model", "chat_template.jinja", *BGE_M3_FILES)
WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors")
MODULE_WEIGHTS = ("*/model.safetensors",)
UNWANTED = ("onnx/*", "openvino/*")
LOCAL_REVISION = "local"


@dataclass(frozen=True, slots=True)
class LocatedModel:
    """A model folder on this machine. revision: the commit, or "local"; digest: of its files, None when local."""

    folder: Path
    revision: str
    digest: str | None
    size: int


def open_model(settings: ModelSettings) -> LocatedModel:
    """The folder of the model: local, else from the store, else fetched into it.

    A repository that is in the store under the same revision is taken as it is, without asking the hub; `fetch_model`
    asks. Raises ModelError or SourceUnavailable.
    """
    local = _local(settings.source)
    if local is not None:
        return local
    store = Store(settings.store)
    reference = store.find(settings.source, _stored_revision(settings))
    return _located(store, reference) if reference is not None else fetch_model(settings)


def fetch_model(settings: ModelSettings) -> LocatedModel:
    """Ask the hub what the revision is now, and bring its files into the store unless they are there.

    Raises ModelNotFound, ModelAccessDenied or SourceUnavailable.
    """
    local = _local(settings.source)
    if local is not None:
        return local
    store = Store(settings.store)
    with store.locked(), _hub_errors(settings):
        reference = _fetch(settings, store)
    return _located(store, reference)


def _fetch(settings: ModelSettings, store: Store) -> Reference:
    token = settings.token.get_secret_value() if settings.token else False
    info = HfApi(endpoint=settings.endpoint, token=token).model_info(
        settings.source, revision=settings.revision, files_metadata=True
    )
    commit = info.sha or settings.revision
    known = store.find(settings.source, _stored_revision(settings))
    if known is not None and known.commit == commit:
        return known
    names = [sibling.rfilename for sibling in info.siblings or []]
    checksums = {
        sibling.rfilename: sibling.lfs.sha256 for sibling in info.siblings or [] if sibling.lfs is not None
    }
    staging = store.staging(settings.source, f"{commit}{settings.onnx_file or ''}")
    LOGGER.info("fetching model", extra={"source": settings.source, "revision": commit})
    _download(settings, commit, names, staging)
    shutil.rmtree(staging / ".cache", ignore_errors=True)  # the client's own notes on partial downloads
    paths = [str(path.relative_to(staging)) for path in staging.rglob("*") if path.is_file()]
    if not paths:
        raise ModelNotFound(f"repository {settings.source} at {settings.revision} holds no model files")
    reference = store.add(staging, paths, settings.source, _stored_revision(settings), commit)
    _verify(store, reference, checksums)
    return reference


def _download(settings: ModelSettings, commit: str, names: Sequence[str], staging: Path) -> None:
    """Bring the small files, and then of the weights what they show to be run."""

    def bring(wanted: Sequence[str], unwanted: Sequence[str] = ()) -> None:
        snapshot_download(
            settings.source,
            revision=commit,
            local_dir=staging,
            allow_patterns=list(wanted),
            ignore_patterns=list(unwanted),
            endpoint=settings.endpoint,
            token=settings.token.get_secret_value() if settings.token else False,
            max_workers=4,
        )

    bring((*SMALL, *MODULE_WEIGHTS), UNWANTED)
    try:
        graph = chosen_file(staging, names, settings.onnx_file)
    except ModelError as error:
        raise type(error)(error.message.replace(str(staging), settings.source)) from error
    if graph is None:
        bring((*WEIGHTS, *_pickles(names)))
        return
    bring([graph])
    external = read_declared(staging / graph).external
    if external:
        bring([str(Path(graph).parent / name) for name in external])


def _pickles(names: Sequence[str]) -> list[str]:
    """Pickles that no safetensors file stands in for. Raises ModelFileMissing where they are needed and cannot be
    read."""
    folders = {Path(name).parent for name in names if name.endswith(".safetensors")}
    needed = [
        name
        for name in names
        if fnmatch(Path(name).name, "pytorch_model*.bin")
        and Path(name).parent not in folders
        and not any(fnmatch(name, pattern) for pattern in UNWANTED)
    ]
    if needed and not can_read():
        raise ModelFileMissing(f"the repository has {', '.join(needed)} and no safetensors for it: {ADVICE}")
    return needed


def _stored_revision(settings: ModelSettings) -> str:
    """Under which the store keeps it: a chosen ONNX file makes another model of the same revision."""
    return settings.revision if settings.onnx_file is None else f"{settings.revision}:{settings.onnx_file}"


def _verify(store: Store, reference: Reference, checksums: Mapping[str, str]) -> None:
    """Compare what arrived with the hub's checksums, where it gives any; forget the model when one differs."""
    for file in store.manifest(reference.digest).files:
        wanted = checksums.get(file.path)
        if wanted is not None and wanted != file.sha256:
            store.remove(reference)
            raise SourceUnavailable(
                f"{file.path} of {reference.source} arrived damaged: SHA-256 {file.sha256}, the hub says {wanted}"
            )


def _local(source: str) -> LocatedModel | None:
    folder = Path(source).expanduser()
    if folder.is_dir():
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        return LocatedModel(folder=folder.resolve(), revision=LOCAL_REVISION, digest=None, size=size)
    if folder.is_absolute() or source.startswith((".", "~")) or source.count("/") > 1:
        raise ModelNotFound(f"model folder {source} does not exist or is not a folder")
    return None


def _located(store: Store, reference: Reference) -> LocatedModel:
    manifest = store.manifest(reference.digest)
    return LocatedModel(
        folder=store.folder(reference.digest),
        revision=reference.commit,
        digest=reference.digest,
        size=manifest.size,
    )


@contextmanager
def _hub_errors(settings: ModelSettings) -> Iterator[None]:
    """The one table from the client library's errors to ours; most specific first."""
    name = settings.source
    try:
        yield
    except GatedRepoError as error:
        hint = "the token given has no access to it" if settings.token else "no token is given"
        raise ModelAccessDenied(
            f"repository {name} is gated and {hint}: accept its terms on the hub and set a token that may read it"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelNotFound(f"repository {name} has no revision {settings.revision!r}") from error
    except RepositoryNotFoundError as error:
        hint = "" if settings.token else ", or it is private and no token is given"
        raise ModelNotFound(f"repository {name} does not exist on the hub{hint}") from error
    except HFValidationError as error:
        raise ModelNotFound(
            f"{name!r} is neither a folder that exists nor a repository name (owner/name)"
        ) from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise ModelAccessDenied(
                f"the hub refuses repository {name} (HTTP {status}): check the token"
            ) from error
        raise SourceUnavailable(f"the hub answered HTTP {status} for repository {name}") from error
    except (httpx2.HTTPError, LocalEntryNotFoundError, ConnectionError, TimeoutError) as error:
        raise SourceUnavailable(f"the hub cannot be reached for repository {name}: {error}") from error
