"""Pickled values for front ends, which read them from the process that has started them alone."""

from __future__ import annotations

import copyreg
import io
import pickle
from types import MappingProxyType
from typing import Any

from embedserve_runtime.frontends.front_end import FrontEndSettings, ServerStatus
from embedserve_runtime.service.loaded_model import LoadedModel


def _read_only(values: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(values)


class _Pickler(pickle.Pickler):
    """Writes read-only mappings too; their class has no name that pickle could find."""

    dispatch_table = copyreg.dispatch_table | {MappingProxyType: lambda proxy: (_read_only, (dict(proxy),))}


def to_pickle(value: FrontEndSettings | ServerStatus | LoadedModel) -> bytes:
    """Pickle a value, which a front end reads from the process that has started it, never the other way round."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


def from_pickle(content: bytes) -> Any:
    return pickle.loads(content)
