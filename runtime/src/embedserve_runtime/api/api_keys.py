"""Checks API keys. They are kept as digests only, so that nothing can print them."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import SecretStr

from embedserve_runtime.api.key_file import ApiKey, hash_key, read_key_file
from embedserve_runtime.api.watched_file import WatchedFile
from embedserve_runtime.errors import RouteForbidden, Unauthorized


class ApiKeys:
    """The keys that a server accepts; without any, and without a file of them, no key is needed.

    A file is read again when it has changed; while it cannot be read, the keys that were there before stay valid.

    clock: a monotonic clock, in seconds. now: the time of day, by which keys expire.
    """

    def __init__(
        self,
        keys: Iterable[SecretStr] = (),
        file: Path | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._keys = tuple(ApiKey(hash_key(key.get_secret_value())) for key in keys)
        self._now = now
        none: tuple[ApiKey, ...] = ()
        self._file = None if file is None else WatchedFile(file, "API keys", read_key_file, none, clock)

    def __bool__(self) -> bool:
        """Return whether a key is needed."""
        return bool(self._keys) or self._file is not None

    def check(self, headers: Mapping[bytes, bytes], route: str) -> tuple[ApiKey, int, int] | None:
        """Return the key of `Authorization: Bearer`, its index among the keys, and their number; None where none is
        needed.

        route: a path, or `/` and the name of a gRPC service. Raises Unauthorized, RouteForbidden.
        """
        if not self:
            return None
        keys = self._keys if self._file is None else (*self._keys, *self._file.get())
        scheme, _, given_key = headers.get(b"authorization", b"").partition(b" ")
        digest = hash_key(given_key.strip())
        # Digests have the same length, and all are compared in any case, so the time reveals nothing about a key.
        matches = [index for index, key in enumerate(keys) if hmac.compare_digest(key.digest, digest)]
        if scheme.lower() != b"bearer" or not given_key.strip():
            raise Unauthorized("an API key is needed: send it as `Authorization: Bearer <key>`")
        if not matches:
            raise Unauthorized("the API key is none that this server accepts")
        # A key that stands bare in the settings and with routes or an end in the file is as restricted as in the file.
        index = matches[-1]
        key = keys[index]
        if key.expires is not None and self._now() >= key.expires:
            raise Unauthorized(f"the API key {key.name!r} has expired on {key.expires:%Y-%m-%d}; use another")
        if key.routes is not None and not any(fnmatchcase(route, pattern) for pattern in key.routes):
            raise RouteForbidden(
                f"the API key {key.name!r} is not for {route}, only for {', '.join(key.routes)}"
            )
        return key, index, len(keys)
