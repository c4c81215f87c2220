"""Stores the kernels that Triton compiles at start in the model store, for the next pod of the same kind."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch

from embedserve_runtime import __version__
from embedserve_runtime.engines.torch.kernel_forms import count_forms
from embedserve_runtime.store.kernel_cache import KernelCache

log = logging.getLogger(__name__)

FOLDER = "TRITON_CACHE_DIR"


@contextmanager
def use_stored_kernels(store: Path, kind: str) -> Iterator[None]:
    """Take kernels that are compiled inside from the store, or put them there.

    kind: a description of what in a model and its settings decides about them; versions and the devices are added to
    it. Where the variable TRITON_CACHE_DIR names a folder that one is used, and the store left alone.
    """
    if not torch.cuda.is_available() or find_spec("triton") is None:
        yield
        return
    with (
        count_forms(),
        nullcontext() if FOLDER in os.environ else use_kernel_cache(_open_kernel_cache(store, kind)),
    ):
        yield


def _open_kernel_cache(store: Path, kind: str) -> KernelCache:
    key = build_kernel_key(kind, version("triton"), _describe_capabilities())
    # The same path in every pod: Triton's records name their files by whole paths.
    folder = Path(tempfile.gettempdir()) / f"embedserve-kernels-{os.geteuid()}" / key
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return KernelCache(store.expanduser(), key, folder)


@contextmanager
def use_kernel_cache(cache: KernelCache) -> Iterator[None]:
    """Fill the compiler's folder from the store, and at the end store what is new in it.

    A store that cannot be written, as a read-only mount, is read all the same: what is new stays in the folder.
    """
    before = cache.restore()
    os.environ[FOLDER] = str(cache.folder)
    log.info("compiled kernels taken from the store", extra={"files": before, "key": cache.key})
    yield
    new = cache.count_files() - before
    if new <= 0:
        return
    archive = cache.save()
    if archive is None:
        folder = str(cache.folder)
        log.warning(
            "compiled kernels cannot be kept in the store, the next process compiles them again",
            extra={"files": new, "store": str(cache.root), "folder": folder},
        )
    else:
        log.info("compiled kernels kept in the store", extra={"files": new, "file": str(archive)})


def build_kernel_key(kind: str, triton: str, capabilities: str) -> str:
    """Return the key of kernels that can be used for each other."""
    fingerprint = f"{kind}\n{triton}\n{torch.__version__}\n{__version__}\n{capabilities}"
    return hashlib.sha256(fingerprint.encode()).hexdigest()[:32]


def _describe_capabilities() -> str:
    capabilities = {torch.cuda.get_device_capability(number) for number in range(torch.cuda.device_count())}
    return " ".join(f"{major}.{minor}" for major, minor in sorted(capabilities))
