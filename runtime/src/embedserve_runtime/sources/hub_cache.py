"""Finds a model in the folder that the Hub's client library caches it in.

Such a folder, `models--OWNER--NAME`, has no files of the model itself: `snapshots/COMMIT` has links to its files, and
each file of `refs` holds the commit that a branch or tag stood for when it was last fetched
(huggingface_hub, "Understand caching").
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from embedserve_runtime.errors import ModelFileMissing, ModelNotFound

_SNAPSHOTS, _REFS = "snapshots", "refs"
_MODEL_FOLDERS = "models--*"
_MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a model at one commit."""

    folder: Path
    commit: str


def find_snapshot(folder: Path) -> Snapshot | None:
    """Return the snapshot of the latest ref of a cached model; None where the folder is not such a cache.

    Without refs the only snapshot is taken. Raises ModelNotFound where the folder holds several models, or none at one
    commit, and ModelFileMissing where the snapshot of the latest ref is gone.
    """
    if not (folder / _SNAPSHOTS).is_dir():
        _refuse_whole_cache(folder)
        return None
    refs = [path for path in (folder / _REFS).rglob("*") if path.is_file()]
    if refs:
        latest = max(refs, key=lambda path: (path.stat().st_mtime_ns, path.name))
        commit = latest.read_text(encoding="utf-8", errors="replace").strip()
        snapshot = folder / _SNAPSHOTS / commit
        if not commit or not snapshot.is_dir():
            raise ModelFileMissing(
                f"{latest} stands for the commit {commit or '(none)'}, and there is no folder {snapshot}: fetch the "
                "model into the cache again"
            )
        return Snapshot(snapshot, commit)
    commits = sorted(path for path in (folder / _SNAPSHOTS).iterdir() if path.is_dir())
    if len(commits) != 1:
        raise ModelNotFound(
            f"{folder} is a cache of the Hub's client with {len(commits)} snapshots and without refs: name one of its "
            f"folders, {folder / _SNAPSHOTS}/COMMIT"
        )
    return Snapshot(commits[0], commits[0].name)


def _refuse_whole_cache(folder: Path) -> None:
    models = sorted(path.name for path in folder.glob(_MODEL_FOLDERS) if path.is_dir())
    if not models or (folder / "config.json").exists():
        return
    listed = ", ".join(models[:_MAX_NAMED]) + (", ..." if len(models) > _MAX_NAMED else "")
    raise ModelNotFound(
        f"{folder} is a cache of the Hub's client with several models: name one of its folders: {listed}"
    )
