"""Reads the file of API keys: bare keys, or a document that gives each a name, routes, an end and rates."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, ValidationError

from embedserve_runtime.config.secrets import HeaderSecret, split_secrets, validate_secret
from embedserve_runtime.errors import ApiKeysMissing, ConfigError

_MAX_FILE_BYTES = 2**20
_DOCUMENT = re.compile(r"\s*(---\s*)?(\{|keys\s*:)")
"""How a document begins; anything else is a list of bare keys."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@/-]{0,62}")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key, by its digest.

    name: None for a bare key. routes: patterns of the paths that it may use, and of gRPC services behind a `/`, `*`
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
            content = file.read(_MAX_FILE_BYTES).decode()
    except OSError as error:
        raise ApiKeysMissing(f"no API keys: {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{path} holds no API keys: it is not text") from None
    if not content.strip(", \t\r\n"):
        raise ApiKeysMissing(f"no API keys: {path} is empty")
    if _DOCUMENT.match(content):
        return _read_document(path, content)
    try:
        return tuple(ApiKey(hash_key(validate_secret(key))) for key in split_secrets(content))
    except ValueError as error:
        raise ConfigError(f"{path} holds an API key that {error}") from None


def _check_name(value: object) -> object:
    if isinstance(value, str) and _NAME.fullmatch(value) is None:
        raise ValueError(
            "must begin with a letter or digit and have at most 63 letters, digits and . _ @ / -"
        )
    return value


def _read_moment(value: object) -> object:
    """Return a date as its beginning, and a time without a zone as one of UTC."""
    if isinstance(value, datetime):
        return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return datetime.combine(value, time(), UTC) if isinstance(value, date) else value


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    name: Annotated[str, BeforeValidator(_check_name)]
    key: HeaderSecret
    routes: Annotated[tuple[Annotated[str, Field(pattern=r"^[/*]")], ...], Field(min_length=1)] | None = None
    expires: Annotated[datetime, BeforeValidator(_read_moment)] | None = None
    requests_per_minute: PositiveInt | None = None
    tokens_per_minute: PositiveInt | None = None


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    keys: Annotated[tuple[_Entry, ...], Field(min_length=1)]


def _read_document(path: Path, content: str) -> tuple[ApiKey, ...]:
    # Imported here: only installations with such a file need it.
    import yaml

    try:
        document: Any = yaml.safe_load(content)
        entries = _Document.model_validate(document).keys
    except yaml.YAMLError as error:
        # The library's message quotes the line, which may hold a key.
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{path} is not valid YAML{where}") from None
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False, include_context=False)
        texts = (
            f"{'.'.join(map(str, one['loc']))}: {one['msg'].removeprefix('Value error, ')}"
            for one in problems
        )
        raise ConfigError(f"{path}: {'; '.join(texts)}") from None
    keys = tuple(
        ApiKey(
            hash_key(one.key.get_secret_value()),
            one.name,
            one.routes,
            one.expires,
            one.requests_per_minute,
            one.tokens_per_minute,
        )
        for one in entries
    )
    twice = [name for name, count in Counter(one.name for one in keys).items() if count > 1]
    if twice:
        raise ConfigError(f"{path} has several keys named {twice[0]!r}; give each a name of its own")
    if len({one.digest for one in keys}) < len(keys):
        raise ConfigError(f"{path} has one key under two names")
    return keys
