"""`embedserve store`: lists the model store, verifies it, and removes unused content."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from embedserve_runtime.commands.output import write_error
from embedserve_runtime.commands.tables import build_column_table, print_table
from embedserve_runtime.config import StoreLocation
from embedserve_runtime.errors import ConfigError
from embedserve_runtime.store.checking import find_damage, remove_damaged
from embedserve_runtime.store.garbage_collector import (
    Garbage,
    RetentionPolicy,
    StoreContents,
    StoreFolder,
    find_garbage,
    list_contents,
    remove_garbage,
)
from embedserve_runtime.store.staging import ABANDONED_AFTER_S


def run(arguments: Mapping[str, Any], out: TextIO) -> int:
    """Run one action by its arguments from the command line; return the exit code. Raises ConfigError, VolumeError."""
    root = (arguments["store"] or StoreLocation().store).expanduser()
    match arguments["action"]:
        case "list":
            return _list(root, out, as_json=arguments["json"])
        case "verify":
            return _verify(root, out, remove_them=arguments["remove"])
        case _:
            names = [*arguments["keep"], *_read_names(arguments["keep_from"])]
            policy = RetentionPolicy(names, not arguments["only_keep"], arguments["older_than"])
            return _clean(root, out, policy, dry=arguments["dry_run"])


def _read_names(file: Path | None) -> list[str]:
    """Read the names to keep from a file. Raises ConfigError where it cannot be read: what it names must not be
    removed."""
    if file is None:
        return []
    try:
        return file.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file}, the names to keep: {error}") from error


def _list(root: Path, out: TextIO, *, as_json: bool) -> int:
    _check_exists(root)
    contents = list_contents(root, time.time())
    rows = [_describe_folder(folder, contents) for folder in contents.folders]
    if as_json:
        out.write(json.dumps(rows, indent=2) + "\n")
        return 0
    if not rows:
        # Standard output stays empty, for programs that count its lines.
        write_error(f"the store {root} is empty")
        return 0
    lines = [
        (
            row["kind"],
            row["name"][:12],
            f"{row['sizeBytes'] / 1e6:.1f}",
            _name_row(row),
            row["licence"] or "-",
        )
        for row in rows
    ]
    plain = "".join(f"{kind:9}  {name}  {size:>10} MB  {names}\n" for kind, name, size, names, _ in lines)
    heads = ("Kind", "Name", "MB", "Made from", "Licence")
    print_table(out, plain, partial(build_column_table, heads, lines, ("MB",)))
    return 0


def _name_row(row: Mapping[str, Any]) -> str:
    """Return the names that a folder of the store is known by, or what it was made from."""
    return ", ".join(row["names"]) or row["madeFrom"] or "-"


def _check_exists(root: Path) -> None:
    """Raise ConfigError for a folder that is not there, which would look like an empty store."""
    if not root.is_dir():
        raise ConfigError(
            f"there is no folder {root}, so no store to look at; --store or EMBEDSERVE_MODEL__STORE names another one"
        )


def _describe_folder(folder: StoreFolder, contents: StoreContents) -> dict[str, Any]:
    manifest = folder.manifest
    pointers = [pointer.reference for pointer in contents.pointers if pointer.reference.digest == folder.name]
    return {
        "kind": folder.kind.removesuffix("s"),
        "name": folder.name,
        "sizeBytes": manifest.size if manifest is not None else 0,
        "whole": manifest is not None,
        "ageSeconds": round(folder.age_s),
        "names": [f"{reference.name.source}@{reference.name.revision}" for reference in pointers],
        "commit": manifest.commit if manifest is not None else None,
        "licence": manifest.licence if manifest is not None else None,
        "vectorSpaces": list(manifest.vector_spaces) if manifest is not None else [],
        "madeFrom": manifest.made_from if manifest is not None else None,
    }


def _verify(root: Path, out: TextIO, *, remove_them: bool) -> int:
    _check_exists(root)
    damages = list(find_damage(root))
    for damage in damages:
        out.write(f"{damage.path}: {damage.problem}{' (removed)' if remove_them else ''}\n")
    if damages and remove_them:
        remove_damaged(root, damages)
    count = len(list_contents(root, time.time()).folders)
    out.write(f"{len(damages)} damaged, {count} models and artifacts in {root}\n")
    return 1 if damages else 0


def _clean(root: Path, out: TextIO, policy: RetentionPolicy, *, dry: bool) -> int:
    garbage = find_garbage(list_contents(root, time.time()), policy)
    _print_garbage(garbage, out)
    if not dry and root.is_dir():
        remove_garbage(root, garbage, min(ABANDONED_AFTER_S, policy.younger_than_s))
    freed = sum(blob.size for blob in garbage.blobs) + sum(one.size for one in garbage.kernels)
    out.write(f"{'would free' if dry else 'freed'} {freed / 1e6:.1f} MB of {root}\n")
    return 0


def _print_garbage(garbage: Garbage, out: TextIO) -> None:
    lines: Sequence[str] = [
        *(
            f"reference {pointer.reference.name.source}@{pointer.reference.name.revision}"
            for pointer in garbage.pointers
        ),
        *(f"{folder.kind.removesuffix('s')} {folder.name}" for folder in garbage.folders),
        *(f"file {blob.sha256}" for blob in garbage.blobs),
        *(f"kernels {one.name}" for one in garbage.kernels),
    ]
    for line in lines:
        out.write(f"{line}\n")
