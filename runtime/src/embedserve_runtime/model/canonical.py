"""Writes values as canonical JSON, of which the vector-space identity is the hash.

Every field of a dataclass is in it, unless the field itself says that it does not decide a vector (`NOT_HASHED`); so a
field that somebody adds cannot be forgotten. A field that has its default is left out: a new field whose default
means what was done before leaves all identities as they are. A default must therefore never change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from types import MappingProxyType

# The metadata of a field that does not decide a vector: `field(metadata=NOT_HASHED)`.
NOT_HASHED: Mapping[str, bool] = MappingProxyType({"hashed": False})
# The key of the class among the fields of a dataclass: two classes may have the same fields.
CLASS_KEY = "is"
# The names that renamed classes keep there, so that the identities stay.
FORMER_CLASS_NAMES: Mapping[str, str] = MappingProxyType({"SparseStaticTable": "WordTable"})
# The names that renamed fields keep there, by `class.field` as the code names them now.
FORMER_FIELD_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "BundledOnnx.pooled": "rows",
        "BundledOnnx.pooled_kind": "rows_are",
        "Encoder.max_positions": "max_tokens",
        "ModelCard.backbone": "body",
    }
)


def hash_canonically(value: object) -> str:
    """Return SHA-256 of the canonical JSON of a value, in hex digits. Raises TypeError as `canonicalize`."""
    return hash_json(canonicalize(value))


def hash_json(content: object) -> str:
    """Return SHA-256, in hex digits, of what a JSON file holds, however it is spelled: sorted keys, no spaces."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def canonicalize(value: object) -> object:
    """Return the value as JSON can write it: dataclasses and mappings as objects, sequences as arrays.

    Raises TypeError for a type that has no canonical form, such as a path.
    """
    if isinstance(value, StrEnum):
        return value.value
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {_check_key(key): canonicalize(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [canonicalize(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        content = {
            name_field_canonically(type(value), member.name): canonicalize(getattr(value, member.name))
            for member in fields(value)
            if member.metadata.get("hashed", True) and not _has_default(value, member)
        }
        return {CLASS_KEY: name_canonically(type(value)), **content}
    raise TypeError(f"{type(value).__name__} has no canonical form")


def name_canonically(kind: type) -> str:
    """Return the name of a class in canonical JSON, which it keeps when it is renamed."""
    return FORMER_CLASS_NAMES.get(kind.__name__, kind.__name__)


def name_field_canonically(kind: type, name: str) -> str:
    """Return the name of a field of a class in canonical JSON, which it keeps when it is renamed."""
    return FORMER_FIELD_NAMES.get(f"{kind.__name__}.{name}", name)


def _has_default(value: object, member: Field[object]) -> bool:
    default = member.default if member.default_factory is MISSING else member.default_factory()
    return default is not MISSING and getattr(value, member.name) == default


def _check_key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a key of type {type(key).__name__} has no canonical form")
    return key
