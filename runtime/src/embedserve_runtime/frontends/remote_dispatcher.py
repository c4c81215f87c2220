"""The dispatcher as a front end sees it: requests go to the engine's process, outcomes come back."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Protocol

from embedserve_runtime.errors import EmbedserveError
from embedserve_runtime.frontends.messages import (
    Cancel,
    FrontEndMessage,
    QueueDepth,
    RequestCompleted,
    RequestFailed,
    Submit,
)
from embedserve_runtime.scheduling.policy import Backlog, Limits
from embedserve_runtime.scheduling.waiting import outcome_of
from embedserve_runtime.scheduling.work import Completed, Order, Settle


class Sends(Protocol):
    def send(self, message: FrontEndMessage) -> None: ...


class RemoteDispatcher:
    """`Submits`, and a number for each request that is on its way.

    What waits is known as it was when the engine's process last told, which it does while the queue is filling up.
    """

    def __init__(self, channel: Sends, limits: Limits) -> None:
        self._channel = channel
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
        self._channel.send(Submit.of(number, order, deadline))
        return number

    def withdraw(self, number: int) -> None:
        if self._waiting.pop(number, None):
            self._channel.send(Cancel(number))

    def receive(self, message: QueueDepth | RequestCompleted | RequestFailed) -> None:
        match message:
            case QueueDepth():
                self._backlog = message.backlog
            case RequestCompleted():
                self._settle(message.request, message.completed)
            case RequestFailed():
                self._settle(message.request, message.error())

    def _settle(self, number: int, outcome: Completed | EmbedserveError) -> None:
        if settle := self._waiting.pop(number, None):  # else withdrawn meanwhile
            settle(outcome)
