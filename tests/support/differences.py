"""What two sets of Kubernetes objects have different: so a test can say what one setting changes, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

GONE = "gone"
"""Stands for a value that only the first set has."""
_HASH = re.compile(r"(?<![\w:])[0-9a-f]{8}\b")
_ITEM_NAMES = ("mountPath", "name", "key")
"""Fields that tell the items of a list apart, the most specific one first."""
_COMMON = frozenset({"apiVersion", "kind", "metadata"})


def find_differences(before: str, after: str) -> dict[str, Any]:
    """Return what is different in the second of two files with objects: each new value by its path, `GONE` for one that
    is no longer there. Of an object that only the second has, the value is all but its kind and metadata.

    Hashes are the same word everywhere, and YAML inside a ConfigMap is compared by its own paths.
    """
    return dict(_walk(_label_objects(before), _label_objects(after), ""))


def find_value_differences(before: Any, after: Any, path: str) -> dict[str, Any]:
    """Return what is different in the second of two values that both are at a path, as `find_differences` does."""
    return dict(_walk(before, after, path))


def _label_objects(content: str) -> dict[str, Any]:
    """The objects by their kind and name; a Job by its task, and a ConfigMap that pods mount by what has the pods."""
    objects = [one for one in yaml.load_all(content, Loader=yaml.CSafeLoader) if one is not None]
    mounted = {name: label for one in objects for name, label in _list_mounted(one)}
    return {_find_label(one, mounted): _without_hashes(one) for one in objects}


def _find_label(one: Any, mounted: Mapping[str, str]) -> str:
    kind, metadata = one["kind"], one["metadata"]
    if kind == "ConfigMap" and metadata["name"] in mounted:
        return f"ConfigMap of {mounted[metadata['name']]}"
    if kind == "Job":
        return f"Job {metadata['labels']['app.kubernetes.io/component']}"
    return f"{kind} {_HASH.sub('', metadata['name']).rstrip('-')}"


def _list_mounted(one: Any) -> Iterable[tuple[str, str]]:
    """The ConfigMaps of a Deployment or Job, with its label."""
    template = (one.get("spec") or {}).get("template", {})
    for volume in template.get("spec", {}).get("volumes", ()):
        if "configMap" in volume:
            yield volume["configMap"]["name"], _find_label(one, {})


def _without_hashes(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _parse_file(key, _without_hashes(inner)) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_hashes(inner) for inner in value]
    return _HASH.sub("HASH", value) if isinstance(value, str) else value


def _parse_file(name: str, value: Any) -> Any:
    return yaml.safe_load(value) if name.endswith(".yaml") and isinstance(value, str) else value


def _walk(before: Any, after: Any, path: str) -> Iterable[tuple[str, Any]]:
    one, other = _list_parts(before), _list_parts(after)
    if one is None or other is None:
        if before != after:
            yield path, after
        return
    for step in dict.fromkeys((*one, *other)):
        where = f"{path}{step}" if step.startswith("[") else f"{path}.{step}".removeprefix(".")
        if step not in other:
            yield where, GONE
        elif step in one:
            yield from _walk(one[step], other[step], where)
        elif path:
            yield where, other[step]
        else:
            yield where, {key: value for key, value in other[step].items() if key not in _COMMON}


def _list_parts(value: Any) -> dict[str, Any] | None:
    """The parts of a value: of a list by what tells its items apart, of flags by themselves, else by their numbers."""
    if isinstance(value, Mapping):
        return {str(key): inner for key, inner in value.items()}
    if not isinstance(value, list):
        return None
    if any(isinstance(item, str) and item.startswith("--") for item in value):
        return {f"[{item}]": item for item in value}
    for field in _ITEM_NAMES:
        names = [item.get(field) if isinstance(item, Mapping) else None for item in value]
        if value and all(names) and len(set(names)) == len(names):
            return {f"[{name}]": item for name, item in zip(names, value, strict=True)}
    return {f"[{number}]": item for number, item in enumerate(value)}
