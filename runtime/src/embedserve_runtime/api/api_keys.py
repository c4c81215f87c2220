"""Checks API keys. They are kept as digests only, so that nothing can print them."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping

from pydantic import SecretStr

from embedserve_runtime.errors import Unauthorized


class ApiKeys:
    """The keys that a server accepts; without any, no key is needed."""

    def __init__(self, keys: Iterable[SecretStr] = ()) -> None:
        self._digests = tuple(_hash_key(key.get_secret_value().encode()) for key in keys)

    def __bool__(self) -> bool:
        """Whether a key is needed."""
        return bool(self._digests)

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise Unauthorized unless `Authorization: Bearer` carries one of the keys."""
        if not self._digests:
            return
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        given = _hash_key(key.strip())
        # Digests have the same length, and all are compared in any case, so the time reveals nothing about a key.
        matches = sum(hmac.compare_digest(known, given) for known in self._digests)
        if not matches or scheme.lower() != b"bearer":
            raise Unauthorized("an API key is needed: send it as `Authorization: Bearer <key>`")


def _hash_key(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
