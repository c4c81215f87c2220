"""Identifies clients by their API key, or by a header that a gateway sets."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from embedserve_runtime.api.api_keys import ApiKeys
from embedserve_runtime.api.key_file import ANONYMOUS, ApiKey
from embedserve_runtime.scheduling.clients import Client

MAX_NAME_LENGTH = 128


@dataclass(frozen=True, slots=True)
class ClientIdentifier:
    """Identifies the client of a request, and knows what each client may do.

    header: in lower case; it counts where the key has no name. requests_per_minute, tokens_per_minute: of each client
    whose key does not say otherwise.
    """

    keys: ApiKeys = field(default_factory=ApiKeys)
    header: bytes | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    @property
    def needs_identity(self) -> bool:
        """Return whether requests have to be identified: for a key, for shares of the queue, or for rates."""
        rates = (self.requests_per_minute, self.tokens_per_minute)
        return bool(self.keys) or self.header is not None or any(rate is not None for rate in rates)

    def identify(self, headers: Mapping[bytes, bytes], route: str) -> Client | None:
        """Return the client of a request; None if clients are not identified.

        route: a path, or `/` and the name of a gRPC service. Raises Unauthorized, RouteForbidden.
        """
        checked = self.keys.check(headers, route)
        key, index, count = checked or (None, 0, 0)
        if key is not None and key.name is not None:
            return self._make_client(key.name, key)
        if self.header is not None:
            return self._make_client(_read_name(headers.get(self.header, b"")), key)
        if count > 1:
            return self._make_client(f"key-{index + 1}", key)
        client = self._make_client(ANONYMOUS, key)
        has_rates = client.requests_per_minute is not None or client.tokens_per_minute is not None
        return client if has_rates else None

    def _make_client(self, name: str, key: ApiKey | None) -> Client:
        requests = None if key is None else key.requests_per_minute
        tokens = None if key is None else key.tokens_per_minute
        return Client(name, requests or self.requests_per_minute, tokens or self.tokens_per_minute)


def _read_name(value: bytes) -> str:
    """Return a header's value as a name that logs and metrics can show, another one for each value."""
    text = value.strip().decode("utf-8", "backslashreplace")
    if not text.isprintable():
        text = "".join(
            character if character.isprintable() else f"\\u{ord(character):04x}" for character in text
        )
    if len(text) > MAX_NAME_LENGTH:
        digest = hashlib.sha256(value.strip()).hexdigest()[:16]
        text = f"{text[: MAX_NAME_LENGTH - 17]}~{digest}"
    return text or ANONYMOUS
