"""Writes the answers of a connection: an answer's head with the first part of its body."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_INTERIM_STATUS = b"HTTP/1.1 1"
"""The beginning of `100 Continue`, which is not the head of an answer: the client waits for it."""


class AnswerTransport:
    """The transport as uvicorn's request cycle sees it, which writes answers and closes after the last one.

    uvicorn writes the head and the body one after the other. Here the head waits for the body's first part: a small
    answer is one packet and one system call instead of two.
    """

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self._transport = transport
        self._close = close
        self._head: bytes | None = None
        self._is_head_next = True
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if self._head is not None:
            self._transport.writelines((self._head, data))
            self._head = None
        elif self._is_head_next and not data.startswith(_INTERIM_STATUS):
            self._head, self._is_head_next = data, False
        else:
            self._transport.write(data)

    def end_answer(self) -> None:
        """Send the head of an answer that has no body."""
        if self._head is not None:
            self._transport.write(self._head)
            self._head = None
        self._is_head_next = True

    def close(self) -> None:
        self.end_answer()
        self._close()
