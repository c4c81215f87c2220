"""Reads every file of a store and compares it with its SHA-256."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from embedserve_runtime.store.garbage_collector import KINDS
from embedserve_runtime.store.manifest import find_damage_by_hash, hash_file, read_manifest
from embedserve_runtime.store.publishing import withdraw
from embedserve_runtime.store.staging import FILES, open_staging
from embedserve_runtime.store.volume import volume_errors


@dataclass(frozen=True, slots=True)
class DamagedEntry:
    """A damaged model, artifact or blob.

    path: relative to the store; problem: a message.
    """

    path: str
    problem: str


def find_damage(root: Path) -> Iterator[DamagedEntry]:
    """Find models, artifacts and files that are not what they were written as. Raises VolumeError."""
    with volume_errors(root):
        for kind in KINDS:
            for folder in sorted((root / kind).glob("*")):
                manifest = read_manifest(folder)
                files = folder / FILES if kind == "models" else folder
                problem = "no manifest" if manifest is None else find_damage_by_hash(files, manifest)
                if problem is not None:
                    yield DamagedEntry(f"{kind}/{folder.name}", problem)
        for blob in sorted((root / "blobs").glob("*")):
            digest = hash_file(blob)
            if digest != blob.name:
                yield DamagedEntry(f"blobs/{blob.name}", f"its SHA-256 is {digest}")


def remove_damaged(root: Path, damages: list[DamagedEntry]) -> None:
    """Take damaged folders and files away, so that the next fetch brings them. Raises VolumeError."""
    with volume_errors(root), open_staging(root, "verify") as staging:
        for damage in damages:
            path = root / damage.path
            if path.is_dir():
                withdraw(staging, path)
            else:
                path.unlink(missing_ok=True)
