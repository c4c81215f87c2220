"""Checks API keys. They are kept as digests only, so that nothing can print them."""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from pydantic import SecretStr

from embedserve_runtime.config.secrets import split_secrets, validate_secret
from embedserve_runtime.errors import ApiKeysMissing, ConfigError, EmbedserveError, Unauthorized

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""How often the file of keys is looked at while requests come."""
_MAX_FILE_BYTES = 2**20


def read_key_file(path: Path) -> tuple[str, ...]:
    """Return the keys of a file, separated by commas or white space.

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
    try:
        return tuple(validate_secret(key) for key in split_secrets(content))
    except ValueError as error:
        raise ConfigError(f"{path} holds an API key that {error}") from None


class ApiKeys:
    """The keys that a server accepts; without any, and without a file of them, no key is needed.

    A file is read again when it has changed, at most every LOOK_SECONDS. What cannot be read changes nothing: the keys
    that were there before stay valid.
    """

    def __init__(
        self,
        keys: Iterable[SecretStr] = (),
        file: Path | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._digests = tuple(_hash_key(key.get_secret_value().encode()) for key in keys)
        self._file = None if file is None else _KeyFile(file, clock)

    def __bool__(self) -> bool:
        """Whether a key is needed."""
        return bool(self._digests) or self._file is not None

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise Unauthorized unless `Authorization: Bearer` carries one of the keys."""
        if not self:
            return
        known = self._digests if self._file is None else (*self._digests, *self._file.get_digests())
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        given = _hash_key(key.strip())
        # Digests have the same length, and all are compared in any case, so the time reveals nothing about a key.
        matches = sum(hmac.compare_digest(digest, given) for digest in known)
        if not matches or scheme.lower() != b"bearer":
            raise Unauthorized("an API key is needed: send it as `Authorization: Bearer <key>`")


class _KeyFile:
    """Holds the digests of the keys in a file, as it is now."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._path = path
        self._clock = clock
        self._digests: tuple[bytes, ...] = ()
        self._version: tuple[int, ...] | None = None
        self._due = clock()

    def get_digests(self) -> tuple[bytes, ...]:
        now = self._clock()
        if now >= self._due:
            self._due = now + LOOK_SECONDS
            self._refresh()
        return self._digests

    def _refresh(self) -> None:
        version = self._read_version()
        if version == self._version:
            return
        self._version = version
        try:
            keys = read_key_file(self._path)
        except EmbedserveError as error:
            log.error("the API keys stay what they were: %s", error.message)
            return
        self._digests = tuple(_hash_key(key.encode()) for key in keys)
        log.info("API keys read", extra={"file": str(self._path), "count": len(keys)})

    def _read_version(self) -> tuple[int, ...]:
        """Return what differs once the file has been written again or replaced; empty where there is none."""
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _hash_key(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
