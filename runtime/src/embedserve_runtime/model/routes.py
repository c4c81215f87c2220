"""Asymmetric models: a Router module (`Asym` before) that sends queries and documents through other modules.

The modules of each route are what comes before the router, the route itself, and what comes after the router.
Everything else reads the modules of a route as those of a model without a router. Source of the rules: Router of
sentence-transformers 6.2.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from embedserve_runtime.errors import ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.model.files import ModelFiles
from embedserve_runtime.model.hf_files.sentence_transformers import MODULES_FILE, ModuleEntry, RouterConfig

QUERY, DOCUMENT = "query", "document"
ROUTERS = ("Router", "Asym")
ROUTER_FILES = ("router_config.json", "config.json")  # today's name and the old one
# The modality of all our inputs, as route_mappings calls it.
TEXT = "text"

Key = tuple[str | None, str | tuple[str, ...] | None]


@dataclass(frozen=True, slots=True)
class ModuleRoutes:
    """The modules that documents take, and those that queries take where a router tells them apart.

    entries: those of modules.json, in their order, a router among them.
    default: QUERY or DOCUMENT, which of the two an input takes that is called neither; None: it must be called one.
    """

    entries: Sequence[ModuleEntry]
    documents: Sequence[ModuleEntry]
    queries: Sequence[ModuleEntry] | None = None
    default: str | None = DOCUMENT


def is_router(entry: ModuleEntry) -> bool:
    return entry.kind in ROUTERS


def expand_routes(files: ModelFiles, entries: Sequence[ModuleEntry]) -> ModuleRoutes:
    """Lay out the modules of each route. Raises ModelInvalid, ModelFileMissing or UnsupportedArchitecture."""
    indices = [index for index, entry in enumerate(entries) if is_router(entry)]
    if not indices:
        return ModuleRoutes(entries, entries)
    if len(indices) > 1:
        raise UnsupportedArchitecture(f"{files.path / MODULES_FILE}: more than one Router is not supported")
    (index,) = indices
    router = entries[index]
    own = files.enter_folder(router.path)
    file = own.require(next((name for name in ROUTER_FILES if name in own), ROUTER_FILES[0]))
    path, config = file.path, file.parse(RouterConfig)
    routing = _Routing.read(path, config)
    query, document = routing.find_route(QUERY), routing.find_route(DOCUMENT)
    _check_reached(path, config, {query, document})
    modules_of = {
        route: [*entries[:index], *_list_entries(path, router, route, config), *entries[index + 1 :]]
        for route in (query, document)
    }
    empty = next((route for route, modules in modules_of.items() if not modules), None)
    if empty is not None:
        raise ModelInvalid(f"{path}: the route {empty!r} has no modules")
    if query == document:
        return ModuleRoutes(entries, modules_of[document])
    names = {query: QUERY, document: DOCUMENT, None: None}
    return ModuleRoutes(entries, modules_of[document], modules_of[query], names[routing.default])


@dataclass(frozen=True, slots=True)
class _Routing:
    """Chooses the route that an input takes, by what it is called (its task) and being a text. default: by being a text
    alone."""

    path: Path
    routes: Sequence[str]
    mappings: Mapping[Key, str]
    default: str | None

    @classmethod
    def read(cls, path: Path, config: RouterConfig) -> _Routing:
        parameters = config.parameters
        mappings = {_parse_key(path, text): route for text, route in parameters.route_mappings.items()}
        routes = list(config.structure)
        targets = [*mappings.values(), *filter(None, [parameters.default_route])]
        unknown = next((route for route in targets if route not in routes), None)
        if unknown is not None or not routes:
            raise ModelInvalid(f"{path}: structure lacks the route {unknown or QUERY!r}")
        first = routes[0] if parameters.allow_empty_key else None
        otherwise = parameters.default_route or first
        return cls(path, routes, mappings, _find_mapping(mappings, routes, None) or otherwise)

    def find_route(self, task: str) -> str:
        """Return the route of a task. Raises UnsupportedArchitecture where there is none."""
        route = _find_mapping(self.mappings, self.routes, task)
        if route is None:
            raise UnsupportedArchitecture(
                f"{self.path}: the routes {', '.join(self.routes)} have none for {task!r}; a route must be called so, "
                "or route_mappings name one for it"
            )
        return route


def _find_mapping(mappings: Mapping[Key, str], routes: Sequence[str], task: str | None) -> str | None:
    """Find the mapping: the most specific one first, then a route of the task's name, then one of the name of texts."""
    keys: list[Key] = [(task, TEXT), (task, None), (None, TEXT), (None, None)]
    mapped = next((mappings[key] for key in keys if key in mappings), None)
    return mapped or next((name for name in (task, TEXT) if name in routes), None)


def _parse_key(path: Path, text: str) -> Key:
    """Parse a key of `route_mappings`, where a pair of task and kind of input is written as a Python tuple."""
    try:
        key = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        key = None
    if not isinstance(key, tuple) or len(key) != 2:
        raise ModelInvalid(f"{path}: route_mappings: {text!r} is not a pair of a task and a kind of input")
    return key


def _check_reached(path: Path, config: RouterConfig, reached: set[str]) -> None:
    """Raise UnsupportedArchitecture for routes that no field of a request selects."""
    unreached = [route for route in config.structure if route not in reached]
    if unreached:
        raise UnsupportedArchitecture(
            f"{path}: neither texts called {QUERY!r} nor those called {DOCUMENT!r} take the route "
            f"{', '.join(unreached)}, so it cannot be served"
        )


def _list_entries(path: Path, router: ModuleEntry, route: str, config: RouterConfig) -> list[ModuleEntry]:
    names = config.structure[route]
    unknown = [name for name in names if name not in config.types]
    if unknown:
        raise ModelInvalid(f"{path}: types lacks {unknown[0]!r}, which structure names")
    return [
        ModuleEntry(
            idx=router.idx,
            path="/".join(part for part in (router.path, name) if part),
            type=config.types[name],
        )
        for name in names
    ]
