"""Publishes whole folders: they are built in staging, described by a manifest, and renamed into place."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from embedserve_runtime.errors import VolumeError
from embedserve_runtime.store.manifest import (
    MANIFEST,
    Manifest,
    describe,
    find_damage_by_hash,
    find_damage_by_size,
    read_manifest,
)
from embedserve_runtime.store.staging import Staging, open_staging
from embedserve_runtime.store.volume import make_folder, sync, volume_errors

Kind = Literal["models", "artifacts"]
_TRIES = 10
_TAKEN = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR})


def publish_folder(
    root: Path, kind: Kind, name: str, fill: Callable[[Path], None], *, made_from: str | None = None
) -> Path:
    """Have `root/kind/name` hold what `fill` writes into the empty folder that it is given; gives that path.

    Readers see all of it or nothing. A folder that is there and whole stays, and `fill` is not called; of several
    writers at once one wins and the others' work is dropped. A manifest with size and SHA-256 of each file is written
    next to the files. made_from: digest of the model that this was made from; `store gc` keeps it as long as that.
    What `fill` raises comes through, OSError as VolumeError, and nothing appears.
    """
    target = root / kind / name
    if find_folder(root, kind, name) is not None:
        return target
    with volume_errors(root), open_staging(root, f"{kind}-{name}") as staging:
        building = staging.folder / "building"
        make_folder(building)
        fill(building)
        files = describe(building)
        for file in files:
            sync(building / file.path)
            (building / file.path).chmod(0o444)
        move_into_place(staging, building, target, Manifest(files=files, made_from=made_from))
    return target


def find_folder(root: Path, kind: Kind, name: str) -> Path | None:
    """Return `root/kind/name` if it is there and every file has the size that its manifest says. Writes nothing."""
    folder = root / kind / name
    manifest = read_manifest(folder)
    return folder if manifest is not None and find_damage_by_size(folder, manifest) is None else None


def remove_folder(root: Path, kind: Kind, name: str) -> None:
    """Remove `root/kind/name` if it exists, so that the next `publish_folder` makes it again."""
    target = root / kind / name
    if target.exists():
        with volume_errors(root), open_staging(root, f"{kind}-{name}") as staging:
            withdraw(staging, target)


def is_intact(folder: Path) -> bool:
    """Return whether every file has the content that the manifest says. Reads all of it."""
    manifest = read_manifest(folder)
    return manifest is not None and find_damage_by_hash(folder, manifest) is None


def move_into_place(
    staging: Staging, building: Path, target: Path, manifest: Manifest, inside: str = "."
) -> None:
    """Rename `building` to `target`, the manifest with it.

    inside: folder below `target` that the manifest's paths start from. A target that is there is left if it is whole
    and else replaced; `building` is dropped then. Raises VolumeError where others put a damaged one there at each try.
    """
    temporary = building / MANIFEST
    temporary.write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")
    sync(temporary)
    make_folder(target.parent)
    for _ in range(_TRIES):
        staging.check()
        try:
            building.rename(target)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
        else:
            return
        existing = read_manifest(target)
        if existing is not None and find_damage_by_size(target / inside, existing) is None:
            shutil.rmtree(building)
            return
        withdraw(staging, target)
    raise VolumeError(f"model.store: {target} is taken again and again by folders that are not whole")


def withdraw(staging: Staging, target: Path) -> None:
    """Remove a folder at once; processes that have its files open can still read them."""
    aside = staging.make_temporary_path()
    try:
        target.rename(aside)
    except FileNotFoundError:
        return  # another one was faster
    shutil.rmtree(aside, ignore_errors=True)
