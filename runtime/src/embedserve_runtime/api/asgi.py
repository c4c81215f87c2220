"""ASGI's types, and an answer as a value."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from msgspec import Struct, field

from embedserve_runtime.telemetry.requests import RequestFacts

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Header = tuple[bytes, bytes]

JSON = b"application/json"


class ClientGone(Exception):
    """The client closed the connection; nobody waits for an answer."""


class Answer(Struct, frozen=True):
    body: bytes
    content_type: bytes = JSON
    status: int = 200
    headers: tuple[Header, ...] = ()


class Exchange(Struct, frozen=True):
    """A request as handlers see it; header names are lower-case."""

    headers: dict[bytes, bytes]
    body: bytes
    request_id: str
    facts: RequestFacts = field(default_factory=RequestFacts)
