"""The client whose request runs in the present task.

It is a context variable, as a request's trace is: every dialect would have to hand it through all its functions, and
none of them has anything to say about it.
"""

from __future__ import annotations

from contextvars import ContextVar

from msgspec.structs import replace

from embedserve_runtime.scheduling.clients import Client


class ClientRequest:
    """A request of a client, which may run in several parts: the instances of `/vertex`, the spaces of `/v1/score`.

    The first part is held against the client's rates; the others are counted only, so that a request is admitted or
    refused as one.
    """

    __slots__ = ("_has_begun", "client")

    def __init__(self, client: Client) -> None:
        self.client = client
        self._has_begun = False

    def begin_part(self) -> Client:
        """Return the client as the next part of the request is sent with."""
        client, self._has_begun = self.peek(), True
        return client

    def peek(self) -> Client:
        """Return the client as the next part would be sent with, and count nothing."""
        return replace(self.client, is_part=True) if self._has_begun else self.client


_current: ContextVar[ClientRequest | None] = ContextVar("current_client", default=None)


def begin_request(client: Client | None) -> None:
    """Set the client of the current task, and of those that it starts; None if clients are not identified."""
    _current.set(None if client is None else ClientRequest(client))


def get_client() -> Client | None:
    """Return the client of the present task, without counting anything."""
    request = _current.get()
    return None if request is None else request.peek()


def get_client_name() -> str | None:
    """Return the name of the client of the present task; None where clients are not told apart."""
    client = get_client()
    return None if client is None else client.name


def begin_part() -> Client | None:
    """Return the client to send a part of the present request with."""
    request = _current.get()
    return None if request is None else request.begin_part()
