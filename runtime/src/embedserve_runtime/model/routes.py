"""Asymmetric models: a Router module (`Asym` before) that sends queries and documents through other modules.

Served are models whose queries take a weight for each word from a table (SparseStaticEmbedding: SPLADE without
inference) and whose documents take an encoder. Source: Router and SparseStaticEmbedding of sentence-transformers 6.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from embedserve_runtime.errors import ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.model.files import FileModel, read_json
from embedserve_runtime.model.heads.description import StaticQuery
from embedserve_runtime.model.identity import tokenizer_digest
from embedserve_runtime.model.modules import ModuleEntry

QUERY, DOCUMENT = "query", "document"
STATIC = ("SparseStaticEmbedding", "IDF")  # the second is an old name
CONFIG_FILES = ("router_config.json", "config.json")  # today's name and the old one


class _Parameters(FileModel):
    default_route: str | None = None
    allow_empty_key: bool = True
    route_mappings: dict[str, str] = Field(default_factory=dict)


class _RouterFile(FileModel):
    types: dict[str, str]
    structure: dict[str, list[str]]
    parameters: _Parameters = Field(default_factory=_Parameters)


class _StaticFile(FileModel):
    path: str | None = None


def expand(folder: Path, entries: Sequence[ModuleEntry]) -> tuple[Sequence[ModuleEntry], StaticQuery | None]:
    """The modules of documents, and the way of queries where it is another one.

    Raises ModelInvalid, ModelFileMissing or UnsupportedArchitecture, naming file and route.
    """
    router = next((entry for entry in entries if entry.kind in ("Router", "Asym")), None)
    if router is None:
        return entries, None
    root = folder / router.path
    path = next((root / name for name in CONFIG_FILES if (root / name).exists()), root / CONFIG_FILES[0])
    config = read_json(path, _RouterFile)
    routes = {route: _entries(path, router, names, config) for route, names in config.structure.items()}
    kinds = [entry.kind for entry in routes.get(QUERY, [])]
    if set(routes) != {QUERY, DOCUMENT} or len(kinds) != 1 or kinds[0] not in STATIC or len(entries) > 1:
        listed = "; ".join(
            f"{route}: {', '.join(entry.kind for entry in of)}" for route, of in routes.items()
        )
        raise UnsupportedArchitecture(
            f"{path}: the routes {listed} are not supported; supported: a query route of {STATIC[0]} alone beside a "
            "document route, and no module behind the router"
        )
    if config.parameters.route_mappings:
        raise UnsupportedArchitecture(f"{path}: route_mappings are not supported")
    default = config.parameters.default_route
    if default is None and config.parameters.allow_empty_key:
        default = next(iter(config.structure))
    return routes[DOCUMENT], _static(folder, routes[QUERY][0], is_default=default == QUERY)


def check_tokenizers(folder: Path, query: StaticQuery, tokenizer_file: Path) -> None:
    """One tokenizer serves both routes. Raises ModelInvalid when the files differ, or ModelFileMissing."""
    own = folder / query.folder / "tokenizer.json"
    if tokenizer_digest(own) != tokenizer_digest(tokenizer_file):
        raise ModelInvalid(f"{own}: queries and documents have different tokenizers, which is not supported")


def _entries(path: Path, router: ModuleEntry, names: Sequence[str], config: _RouterFile) -> list[ModuleEntry]:
    unknown = [name for name in names if name not in config.types]
    if unknown:
        raise ModelInvalid(f"{path}: types lacks {unknown[0]!r}, which structure names")
    paths = ["/".join(part for part in (router.path, name) if part) for name in names]
    return [
        ModuleEntry(idx=number, path=inside, type=config.types[name])
        for number, (name, inside) in enumerate(zip(names, paths, strict=True))
    ]


def _static(folder: Path, entry: ModuleEntry, *, is_default: bool) -> StaticQuery:
    config = folder / entry.path / "config.json"
    if read_json(config, _StaticFile).path is not None:
        raise UnsupportedArchitecture(
            f"{config}: path (weights in a JSON file) is not supported; load and save the model with a current "
            "sentence-transformers"
        )
    return StaticQuery(entry.path, is_default)
