"""The dispatcher as a front end sees it: orders go to the engine's process, outcomes come back."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Protocol

from embedserve_runtime.errors import EmbedserveError, NotReady
from embedserve_runtime.frontends.frames import (
    Frame,
    Kind,
    pack_order,
    unpack_backlog,
    unpack_completed,
    unpack_error,
)
from embedserve_runtime.scheduling.policy import Backlog, Limits
from embedserve_runtime.scheduling.waiting import outcome_of
from embedserve_runtime.scheduling.work import Completed, Order, Settle

Send = Callable[..., None]


class Sends(Protocol):
    def send(self, kind: Kind, number: int = 0, *parts: bytes) -> None: ...


class RemoteDispatcher:
    """`Submits`, and a number for each request that is on its way.

    What waits is known as it was when the engine's process last told, which it does while the queue is filling up.
    """

    def __init__(self, link: Sends, limits: Limits) -> None:
        self._link = link
        self._limits = limits
        self._backlog = Backlog(0, 0, None)
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Settle] = {}

    @property
    def limits(self) -> Limits:
        return self._limits

    def check_room(self, inputs: int) -> None:
        self._backlog.check_room(self._limits, inputs, 0)

    async def submit(self, order: Order, deadline: float) -> Completed:
        return await outcome_of(partial(self.start, order, deadline), self.withdraw)

    def start(self, order: Order, deadline: float, settle: Settle) -> int:
        number = next(self._numbers)
        self._waiting[number] = settle
        self._link.send(Kind.SUBMIT, number, *pack_order(order, deadline))
        return number

    def withdraw(self, number: int) -> None:
        if self._waiting.pop(number, None):
            self._link.send(Kind.CANCEL, number)

    def received(self, frame: Frame) -> None:
        """An outcome, or how full the queue is."""
        if frame.kind is Kind.QUEUE:
            self._backlog = unpack_backlog(frame.payload)
        elif frame.kind is Kind.DONE:
            self._settle(frame.number, unpack_completed(frame.payload))
        else:
            self._settle(frame.number, unpack_error(frame.payload))

    def close(self, message: str) -> None:
        """The engine's process is gone: fail what is on its way."""
        for number in [*self._waiting]:
            self._settle(number, NotReady(message))

    def _settle(self, number: int, outcome: Completed | EmbedserveError) -> None:
        if settle := self._waiting.pop(number, None):  # else withdrawn meanwhile
            settle(outcome)
