"""Reads the file of API keys: bare keys, or a document that gives each a name, routes, an end and rates."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from embedserve_runtime.api.routes import PROTECTED_ROUTES, ROUTE_ALIASES, RPC_SERVICES, route_label
from embedserve_runtime.config.problems import describe_problems, describe_yaml_position
from embedserve_runtime.config.secrets import ApiKeySecret, split_secrets, validate_api_key
from embedserve_runtime.errors import ApiKeysMissing, ConfigError

_MAX_FILE_BYTES = 2**20
MAX_KEYS = 2_000
"""A document of so many takes 0.1 s to read, during which nothing is answered."""
MAX_RATE = 10**12
_YAML_TOKEN = re.compile(r"-|---|#.*|.*:|.*[{}\[\]].*")
"""A token that bare keys do not have, and each document has: such a file is read as a document or refused, never taken
for bare keys, since then its names, marks and comments would be keys."""
ANONYMOUS = "anonymous"
"""The name of a client whose requests carry none."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@/-]{0,62}")
_PATHS = (*sorted(PROTECTED_ROUTES), *(f"/{service}" for service in RPC_SERVICES))
"""The paths and gRPC services that the routes of a key may name."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key by its digest, with what it may be used for.

    name: None for a bare key. routes: patterns of the paths that it may use, and of gRPC services after a `/`, `*`
    standing for anything; None for all. expires: aware. requests_per_minute, tokens_per_minute: None takes the
    server's.
    """

    digest: bytes
    name: str | None = None
    routes: tuple[str, ...] | None = None
    expires: datetime | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


def hash_key(key: str | bytes) -> bytes:
    """Return a key's digest, in which it is kept and compared."""
    return hashlib.sha256(key.encode() if isinstance(key, str) else key).digest()


def read_key_file(path: Path) -> tuple[ApiKey, ...]:
    """Return the keys of a file: separated by commas or white space, or those of a YAML or JSON document.

    Raises ApiKeysMissing where there is no file or no key in it, ConfigError where a key cannot be one; neither quotes
    a key.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ApiKeysMissing(f"no API keys: {path} cannot be read: {error.strerror}") from error
    if len(raw) > _MAX_FILE_BYTES:
        raise ConfigError(
            f"{path} holds more than {_MAX_FILE_BYTES} bytes; it should hold up to {MAX_KEYS} API keys"
        )
    try:
        content = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} holds no API keys: it is not text") from None
    if not content.strip(", \t\r\n"):
        raise ApiKeysMissing(f"no API keys: {path} is empty")
    if any(map(_YAML_TOKEN.fullmatch, content.split())):
        return _read_document(path, content)
    try:
        return tuple(ApiKey(hash_key(validate_api_key(key))) for key in split_secrets(content))
    except ValueError as error:
        raise ConfigError(f"{path} holds an API key that {error}") from None


def _check_name(value: object) -> object:
    if isinstance(value, str) and _NAME.fullmatch(value) is None:
        raise ValueError(
            "must begin with a letter or digit and have at most 63 letters, digits and . _ @ / -"
        )
    if value == ANONYMOUS:
        raise ValueError(f"must not be {ANONYMOUS}, the name of requests without one")
    return value


def _read_moment(value: object) -> object:
    """Return a date as its beginning, and a time without a zone as one of UTC."""
    if isinstance(value, str):
        # The parser's own message quotes the value, which may be a key in the wrong line.
        with suppress(ValueError):
            value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    if isinstance(value, date):
        return datetime.combine(value, time(), UTC)
    raise ValueError("must be a day such as 2027-01-31, or a moment such as 2027-01-31T12:00:00Z")


def _check_route(pattern: str) -> str:
    # A request by another path of a route is checked as one of the route.
    pattern = route_label("POST", pattern) if pattern in ROUTE_ALIASES else pattern
    if not any(fnmatchcase(path, pattern) for path in _PATHS):
        raise ValueError(f"is no path or service that needs a key, which are {', '.join(_PATHS)}")
    return pattern


_Rate = Annotated[int, Field(strict=True, ge=1, le=MAX_RATE)]


def _check_keys(value: object) -> object:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_KEYS:
        raise ValueError(f"must be a list of 1 to {MAX_KEYS} keys")
    return value


def _check_routes(value: object) -> object:
    if not isinstance(value, list) or not value:
        raise ValueError("must be a list of paths, at least one")
    return value


class _StrictModel(BaseModel):
    """A mapping with known fields only. Errors do not name other fields: one of them may be a key."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _check_fields(cls, value: object) -> object:
        fields = ", ".join(cls.model_fields)
        if not isinstance(value, dict):
            raise ValueError(f"must be a mapping with {fields}")
        if not value.keys() <= cls.model_fields.keys():
            raise ValueError(f"has a field that is none of {fields}")
        return value


class _Entry(_StrictModel):
    name: Annotated[str, BeforeValidator(_check_name)]
    key: ApiKeySecret
    routes: (
        Annotated[tuple[Annotated[str, AfterValidator(_check_route)], ...], BeforeValidator(_check_routes)]
        | None
    ) = None
    expires: Annotated[datetime, BeforeValidator(_read_moment)] | None = None
    requests_per_minute: _Rate | None = None
    tokens_per_minute: _Rate | None = None


class _Document(_StrictModel):
    keys: Annotated[tuple[_Entry, ...], BeforeValidator(_check_keys)]


def _parse_yaml(path: Path, content: str) -> object:
    """Parse a document. Raises ConfigError, also where a mapping has a key twice: YAML's parser takes the last one."""
    # Imported here: only installations with such a file need it.
    import yaml

    class UniqueKeyLoader(yaml.CSafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            if len(set(keys)) < len(keys):
                raise yaml.MarkedYAMLError(problem_mark=node.start_mark)
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(content, UniqueKeyLoader)  # it derives from the safe one
    except yaml.YAMLError as error:
        raise ConfigError(
            f"{path} is not valid YAML, or has a key twice{describe_yaml_position(error)}"
        ) from None
    except (ValueError, TypeError, RecursionError):
        raise ConfigError(
            f"{path} is not valid YAML: it has a value that cannot be, such as a day 0"
        ) from None


def _read_document(path: Path, content: str) -> tuple[ApiKey, ...]:
    document = _parse_yaml(path, content)
    if not isinstance(document, dict):
        raise ConfigError(f"{path} must hold bare API keys, or a mapping with `keys` (docs/clients.md)")
    try:
        entries = _Document.model_validate(document).keys
    except ValidationError as error:
        raise ConfigError(f"{path}: {describe_problems(error)}") from None
    keys = tuple(
        ApiKey(
            hash_key(entry.key.get_secret_value()),
            entry.name,
            entry.routes,
            entry.expires,
            entry.requests_per_minute,
            entry.tokens_per_minute,
        )
        for entry in entries
    )
    twice = [name for name, count in Counter(entry.name for entry in keys).items() if count > 1]
    if twice:
        raise ConfigError(f"{path} has several keys named {twice[0]!r}; give each a name of its own")
    if len({entry.digest for entry in keys}) < len(keys):
        raise ConfigError(f"{path} has one key under two names")
    return keys
