"""Finds out whether a live object is still what was applied.

Additions by others (defaults, labels of a service mesh) do not count. What the API server answered to an apply
does not count either, however it differs from what was sent: it spells some values in its own way, and admission
webhooks change others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from embedserve_operator.api.quantities import parse_quantity
from embedserve_operator.kube.objects import Manifest, Received, compute_short_hash
from embedserve_operator.manifests.metadata import read_fingerprint
from embedserve_operator.state.resource import Child

_LIST_KEYS = ("uid", "mountPath", "name")
"""Fields that identify the items of a list, the most specific one first."""
_ATOMIC_MAPS = frozenset({"selector", "nodeSelector"})
"""Maps that the API treats as one value: an additional key changes their meaning."""
_QUANTITY_MAPS = frozenset({"limits", "requests"})
"""Maps whose values are quantities."""
_QUANTITIES = frozenset({"averageValue", "sizeLimit"})
"""Fields that are quantities."""
_MAX_REMEMBERED = 8192


@dataclass(frozen=True, slots=True)
class Difference:
    """A value of a live object that is not as wanted."""

    path: str
    live: Any
    """The value as it is; None when it is missing."""


class AppliedDifferences:
    """Remembers in what the API server's answer to an apply differed from what was sent.

    Sending the same again would change nothing.
    """

    def __init__(self) -> None:
        self._differences: dict[str, str] = {}

    def record(self, manifest: Manifest, answer: Received) -> None:
        """Record what is still different once a manifest has been applied."""
        uid = answer["metadata"].get("uid", "")
        self._differences.pop(uid, None)
        digest = _hash_differences(manifest, answer)
        if digest is None:
            return
        self._differences[uid] = digest
        if len(self._differences) > _MAX_REMEMBERED:
            del self._differences[next(iter(self._differences))]

    def contains(self, manifest: Manifest, child: Child) -> bool:
        """Return whether a child differs from a manifest exactly as it did right after that was applied."""
        remembered = self._differences.get(child.uid)
        return remembered is not None and remembered == _hash_differences(manifest, child.received)


def _hash_differences(manifest: Manifest, live: Received) -> str | None:
    differences = [[difference.path, difference.live] for difference in find_differences(manifest, live)]
    return compute_short_hash([read_fingerprint(manifest), differences]) if differences else None


def find_reason_to_apply(manifest: Manifest, child: Child | None, applied: AppliedDifferences) -> str | None:
    """Return why the object has to be written, for the log; None when it need not be."""
    if child is None:
        return "it does not exist"
    difference = next(find_differences(manifest, child.received), None)
    if difference is None or applied.contains(manifest, child):
        return None
    if child.fingerprint != read_fingerprint(manifest):
        return "it should be different"
    return f"{difference.path} is not as it should be"


def find_differences(
    desired: Any, live: Any, steps: tuple[str, ...] = (), *, whole: bool = False
) -> Iterator[Difference]:
    """Yield the values that are not as wanted.

    `steps` lead to the value from the root of the object. With `whole`, an additional key of a map counts as well.
    """
    if isinstance(desired, Mapping):
        yield from _find_mapping_differences(desired, live, steps, whole=whole)
    elif isinstance(desired, list):
        yield from _find_list_differences(desired, live, steps)
    # The API leaves out what is empty, false or zero.
    elif not (desired == live or (live is None and not desired) or _is_same_quantity(desired, live, steps)):
        yield _build_difference(steps, live)


def _build_difference(steps: tuple[str, ...], live: Any) -> Difference:
    return Difference("".join(step if step.startswith("[") else f".{step}" for step in steps)[1:], live)


def _is_same_quantity(desired: Any, live: Any, steps: tuple[str, ...]) -> bool:
    is_quantity = steps[-1:] and steps[-1] in _QUANTITIES
    if not is_quantity and not (steps[-2:-1] and steps[-2] in _QUANTITY_MAPS):
        return False
    return parse_quantity(desired) == parse_quantity(live) is not None


def _find_mapping_differences(
    desired: Mapping[str, Any], live: Any, steps: tuple[str, ...], *, whole: bool
) -> Iterator[Difference]:
    live_map = {} if live is None else live
    if not isinstance(live_map, Mapping) or (whole and set(live_map) != set(desired)):
        yield _build_difference(steps, live)
        return
    for key, value in desired.items():
        yield from find_differences(value, live_map.get(key), (*steps, key), whole=key in _ATOMIC_MAPS)


def _find_list_differences(desired: list[Any], live: Any, steps: tuple[str, ...]) -> Iterator[Difference]:
    if not isinstance(live, list):
        if desired:
            yield _build_difference(steps, live)
        return
    key = next(
        (k for k in _LIST_KEYS if all(isinstance(item, Mapping) and k in item for item in desired)), None
    )
    if key is None:
        yield from _find_differences_by_position(desired, live, steps)
        return
    by_key = {item.get(key): item for item in live if isinstance(item, Mapping)}
    for item in desired:
        item_steps = (*steps, f"[{item[key]}]")
        if item[key] in by_key:
            yield from find_differences(item, by_key[item[key]], item_steps)
        else:
            yield _build_difference(item_steps, None)


def _find_differences_by_position(
    desired: list[Any], live: list[Any], steps: tuple[str, ...]
) -> Iterator[Difference]:
    """Yield the differences of a list whose items nothing identifies: the API keeps it as it was sent, and adds
    defaults inside its items.
    """
    if len(desired) != len(live):
        yield _build_difference(steps, live)
        return
    for index, (item, live_item) in enumerate(zip(desired, live, strict=True)):
        yield from find_differences(item, live_item, (*steps, f"[{index}]"))
