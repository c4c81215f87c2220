"""The dispatcher as a front end sees it: requests go to the engine's process, outcomes come back."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from typing import Protocol

from embedserve_runtime.errors import EmbedserveError
from embedserve_runtime.frontends.messages import (
    Abort,
    FrontEndMessage,
    MeterReused,
    QueueDepthChanged,
    RequestCompleted,
    RequestFailed,
    Submit,
)
from embedserve_runtime.scheduling.batches import BatchRequest, CompletedRequest, RequestCallback
from embedserve_runtime.scheduling.clients import Client
from embedserve_runtime.scheduling.outcomes import wait_for_outcome
from embedserve_runtime.scheduling.policy import Limits, QueueDepth


class MessageSender(Protocol):
    def send(self, message: FrontEndMessage) -> None: ...


class RemoteDispatcher:
    """`RequestDispatcher`, and an id for each request in flight.

    What waits is known as it was when the engine's process last told, which it does while the queue is filling up.
    """

    def __init__(self, channel: MessageSender, limits: Limits) -> None:
        self._channel = channel
        self._limits = limits
        self._queue_depth = QueueDepth(0, 0, None)
        self._request_ids = itertools.count(1)
        self._waiting: dict[int, RequestCallback] = {}

    @property
    def limits(self) -> Limits:
        return self._limits

    def change_batch_tokens(self, batch_tokens: int) -> None:
        """Tell this token budget of the engine's process from now on."""
        self._limits = replace(self._limits, batch_tokens=batch_tokens)

    def check_room(self, inputs: int, client: Client | None = None) -> None:
        del client  # shares and rates are known in the engine's process alone
        self._queue_depth.check_room(self._limits, inputs, 0)

    async def meter_reused(self, client: Client, inputs: int, tokens: int) -> None:
        def start(settle: RequestCallback) -> int:
            request_id = self._wait_for_answer(settle)
            self._channel.send(MeterReused(request_id, client, inputs, tokens))
            return request_id

        await wait_for_outcome(start, self.abort)

    async def submit(self, request: BatchRequest, deadline: float) -> CompletedRequest:
        return await wait_for_outcome(partial(self.start, request, deadline), self.abort)

    def start(self, request: BatchRequest, deadline: float, settle: RequestCallback) -> int:
        request_id = self._wait_for_answer(settle)
        self._channel.send(Submit.build(request_id, request, deadline))
        return request_id

    def abort(self, request_id: int) -> None:
        if self._waiting.pop(request_id, None):
            self._channel.send(Abort(request_id))

    def receive(self, message: QueueDepthChanged | RequestCompleted | RequestFailed) -> None:
        match message:
            case QueueDepthChanged():
                self._queue_depth = message.queue_depth
            case RequestCompleted():
                self._settle(message.request_id, message.completed)
            case RequestFailed():
                self._settle(message.request_id, message.build_error())

    def _wait_for_answer(self, settle: RequestCallback) -> int:
        """Return a new request id, whose answer `settle` is called with."""
        request_id = next(self._request_ids)
        self._waiting[request_id] = settle
        return request_id

    def _settle(self, request_id: int, outcome: CompletedRequest | EmbedserveError) -> None:
        if settle := self._waiting.pop(request_id, None):  # else aborted meanwhile
            settle(outcome)
