"""The front ends as the engine's process sees them: their orders go to the dispatcher, its outcomes back to them.

A front end that dies takes its own requests out of the queue; those of the others do not notice.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial

from embedserve_runtime.errors import EmbedserveError, NotReady
from embedserve_runtime.frontends.frames import (
    Frame,
    Kind,
    pack_backlog,
    pack_completed,
    pack_error,
    unpack_order,
)
from embedserve_runtime.frontends.link import Link
from embedserve_runtime.scheduling.dispatcher import Dispatcher, Observer
from embedserve_runtime.scheduling.policy import Backlog
from embedserve_runtime.scheduling.work import Completed

# Front ends are told what waits from this share of either bound on: below it they would admit what they get.
TOLD_FROM = 0.5


class Hub:
    """All front ends of a server. Also the dispatcher's observer, which passes on to `observer`."""

    def __init__(self, observer: Observer, page: Callable[[], bytes]) -> None:
        self._observer = observer
        self._page = page
        self._dispatcher: Dispatcher | None = None
        self._ends: set[End] = set()
        self._told = Backlog(0, 0, None)
        self._telling_is_due = False

    def open(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    async def connect(self, sock: socket.socket, on_opened: Callable[[], None]) -> End:
        """Serve the front end at the other end of `sock`; on_opened: it can answer requests."""
        end = End(self, on_opened)
        end.link = await Link.over(sock, end.received, end.gone)
        self._ends.add(end)
        return end

    def send_all(self, kind: Kind, payload: bytes = b"") -> None:
        for end in self._ends:
            end.link.send(kind, 0, payload)

    def batch_done(self, *, inputs: int, tokens: int, padding: int, seconds: float, failed: bool) -> None:
        self._observer.batch_done(
            inputs=inputs, tokens=tokens, padding=padding, seconds=seconds, failed=failed
        )
        self.queue_changed()

    # -- from the ends

    @property
    def dispatcher(self) -> Dispatcher:
        """Raises NotReady while there is no model."""
        if self._dispatcher is None:
            raise NotReady("the model is not loaded yet")
        return self._dispatcher

    def page(self) -> bytes:
        return self._page()

    def lost(self, end: End) -> None:
        self._ends.discard(end)

    def queue_changed(self) -> None:
        """Tell at the end of this turn of the loop."""
        if not self._telling_is_due:
            self._telling_is_due = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._telling_is_due = False
        if self._dispatcher is None:
            return
        backlog = self._dispatcher.backlog
        if backlog == self._told or not (self._is_worth_telling(backlog) or self._told.inputs):
            return
        self._told = backlog if self._is_worth_telling(backlog) else Backlog(0, 0, None)
        self.send_all(Kind.QUEUE, pack_backlog(self._told))

    def _is_worth_telling(self, backlog: Backlog) -> bool:
        limits = self.dispatcher.limits
        return (
            backlog.inputs > TOLD_FROM * limits.queue_inputs
            or backlog.tokens > TOLD_FROM * limits.queue_tokens
        )


class End:
    """One front end. Its requests by the numbers that it gave them."""

    link: Link

    def __init__(self, hub: Hub, on_opened: Callable[[], None]) -> None:
        self.is_gone = asyncio.Event()
        self._hub = hub
        self._on_opened = on_opened
        self._running: dict[int, int] = {}

    def received(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.SUBMIT:
                self._submit(frame)
            case Kind.CANCEL:
                self._cancel(frame.number)
            case Kind.ASK_PAGE:
                self.link.send(Kind.PAGE, frame.number, self._hub.page())
            case Kind.OPENED:
                self._on_opened()
            case _:
                self.link.close()

    def gone(self) -> None:
        for number in [*self._running]:
            self._cancel(number)
        self._hub.lost(self)
        self.is_gone.set()

    def _submit(self, frame: Frame) -> None:
        order, deadline = unpack_order(frame.payload)
        try:
            number = self._hub.dispatcher.start(order, deadline, partial(self._settle, frame.number))
        except EmbedserveError as error:
            self.link.send(Kind.FAILED, frame.number, *pack_error(error))
        else:
            self._running[frame.number] = number
        self._hub.queue_changed()

    def _cancel(self, theirs: int) -> None:
        number = self._running.pop(theirs, None)
        if number is not None:
            self._hub.dispatcher.withdraw(number)
            self._hub.queue_changed()

    def _settle(self, theirs: int, outcome: Completed | EmbedserveError) -> None:
        self._running.pop(theirs, None)
        if isinstance(outcome, Completed):
            self.link.send(Kind.DONE, theirs, *pack_completed(outcome))
        else:
            self.link.send(Kind.FAILED, theirs, *pack_error(outcome))
        self._hub.queue_changed()
