"""Digests of what a build is made from: the same digest means that nothing has to be built again."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

IGNORED_FOLDERS = frozenset({"__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"})


def digest(paths: Iterable[Path], facts: Iterable[str]) -> str:
    """Twelve hex digits over names and contents of files (folders: all their files) and over plain facts."""
    total = hashlib.sha256()
    for fact in facts:
        total.update(f"fact {len(fact)} {fact}\n".encode())
    for path in paths:
        for file in _files(path):
            content = file.read_bytes()
            total.update(f"file {file.relative_to(path.parent)} {len(content)}\n".encode())
            total.update(content)
    return total.hexdigest()[:12]


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for child in sorted(path.iterdir()):
        if child.name not in IGNORED_FOLDERS and not child.name.endswith(".egg-info"):
            yield from _files(child)


def build_once(target: Path, build: Callable[[Path], None]) -> bool:
    """Fill a folder by ``build`` unless it is there; true when it was. A broken-off build leaves nothing."""
    if target.exists():
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    workplace = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        # mkdtemp keeps others out, but a root file system made here must be readable by its own users.
        workplace.chmod(0o755)
        build(workplace)
        try:
            workplace.rename(target)
        except OSError:
            # Another process has built the same meanwhile.
            if not target.exists():
                raise
            return False
    finally:
        shutil.rmtree(workplace, ignore_errors=True)
    return True
