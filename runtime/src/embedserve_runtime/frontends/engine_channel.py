"""The front ends as the engine's process sees them: their requests go to the dispatcher, its outcomes back to them.

A front end that dies takes its own requests out of the queue; those of the others do not notice.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial

import zmq

from embedserve_runtime.errors import EmbedserveError, FrontEndFailure, NotReady
from embedserve_runtime.forward.outputs import ModelOutput
from embedserve_runtime.frontends.codec import MessageEncoder, engine_decoder
from embedserve_runtime.frontends.message_socket import MessageSocket
from embedserve_runtime.frontends.messages import (
    Abort,
    EngineMessage,
    FrontEndMessage,
    Heartbeat,
    Hello,
    MeterReused,
    MetricsPageRequest,
    MetricsPageResponse,
    QueueDepthChanged,
    Ready,
    RequestCompleted,
    RequestFailed,
    Submit,
)
from embedserve_runtime.scheduling.batches import CompletedRequest
from embedserve_runtime.scheduling.dispatcher import Dispatcher, Observer
from embedserve_runtime.scheduling.policy import QueueDepth

log = logging.getLogger(__name__)

# The queue depth is reported to front ends from this share of either bound on: below it they admit whatever comes.
REPORTED_LOAD = 0.5
# Heartbeats that a front end may miss while it computes nothing.
MAX_MISSED_HEARTBEATS = 4
# And while it computes: an enormous request, or its start on a busy core, can keep its loop for seconds.
MAX_MISSED_HEARTBEATS_AT_WORK = 45


class EngineChannel:
    """The ROUTER socket of the engine, for all front ends of a server. Also the dispatcher's observer, which passes on
    to `observer`."""

    def __init__(self, observer: Observer, metrics_page: Callable[[], bytes]) -> None:
        """Listen in a folder that only this user can enter. Raises FrontEndFailure."""
        self._observer = observer
        self._metrics_page = metrics_page
        self._dispatcher: Dispatcher | None = None
        self._peers: dict[bytes, Peer] = {}
        self._reported = QueueDepth(0, 0, None)
        self._report_is_due = False
        self._encoder, self._decoder = MessageEncoder(), engine_decoder()
        self._folder = tempfile.mkdtemp(prefix="embedserve-")
        self.address = f"ipc://{self._folder}/engine"
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = MessageSocket(self._context, zmq.ROUTER, self._receive)
        try:
            self._socket.socket.bind(self.address)
        except zmq.ZMQError as error:
            self.close()
            raise FrontEndFailure(
                f"cannot listen on {self.address}: {error}; TMPDIR names the folder around it"
            ) from error

    def open(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def add(
        self,
        identity: bytes,
        *,
        on_hello: Callable[[Peer], None],
        on_ready: Callable[[], None],
        on_failure: Callable[[], None],
    ) -> Peer:
        """Serve the front end with this ZeroMQ identity, which no other one has had before.

        on_hello: it can be sent to. on_ready: it can answer requests. on_failure: it has sent what it must not; it is
        removed already, and its process is to be ended.
        """
        peer = Peer(self, identity, on_hello, on_ready, on_failure)
        self._peers[identity] = peer
        return peer

    def remove(self, peer: Peer) -> None:
        """Take its requests out of the queue. What still comes from it is ignored."""
        if self._peers.pop(peer.identity, None):
            peer.abort_all()

    def broadcast(self, message: EngineMessage) -> None:
        """Send to all front ends that have connected; a later one gets the present state when it connects."""
        parts = self._encoder.encode(message)
        for peer in self._peers.values():
            if peer.has_said_hello:
                self._socket.send([peer.identity, *parts])

    def close(self) -> None:
        """Close the socket after the last front end has ended."""
        self._socket.close()
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)

    def batch_done(self, *, inputs: int, tokens: int, padding: int, seconds: float, failed: bool) -> None:
        self._observer.batch_done(
            inputs=inputs, tokens=tokens, padding=padding, seconds=seconds, failed=failed
        )
        self.queue_changed()

    def client_request(
        self, client: str, *, requests: int, inputs: int, tokens: int, refusal: str | None
    ) -> None:
        self._observer.client_request(
            client, requests=requests, inputs=inputs, tokens=tokens, refusal=refusal
        )

    def _receive(self, parts: Sequence[zmq.Frame]) -> None:
        peer = self._peers.get(parts[0].bytes)
        if peer is None:  # a last message of one that is gone
            return
        try:
            peer.receive(self._decoder.decode(parts[1:]))
        except Exception:
            log.exception(
                "cannot handle a message of a front end, ending it",
                extra={"worker": peer.identity.decode(errors="replace")},
            )
            self.remove(peer)
            peer.on_failure()

    # -- for the peers

    @property
    def dispatcher(self) -> Dispatcher:
        """Return the dispatcher. Raises NotReady while there is no model."""
        if self._dispatcher is None:
            raise NotReady("the model is not loaded yet")
        return self._dispatcher

    def metrics_page(self) -> bytes:
        return self._metrics_page()

    def send(self, identity: bytes, message: EngineMessage) -> None:
        """Send a message to a front end; it is dropped if the front end is gone, which its supervisor reports."""
        self._socket.send([identity, *self._encoder.encode(message)])

    def queue_changed(self) -> None:
        """Tell at the end of this turn of the loop."""
        if not self._report_is_due:
            self._report_is_due = True
            asyncio.get_running_loop().call_soon(self._report_queue_depth)

    def _report_queue_depth(self) -> None:
        self._report_is_due = False
        if self._dispatcher is None:
            return
        queue_depth = self._dispatcher.queue_depth
        if queue_depth == self._reported or not (self._is_reportable(queue_depth) or self._reported.inputs):
            return
        self._reported = queue_depth if self._is_reportable(queue_depth) else QueueDepth(0, 0, None)
        self.broadcast(QueueDepthChanged(self._reported))

    def _is_reportable(self, queue_depth: QueueDepth) -> bool:
        limits = self.dispatcher.limits
        return (
            queue_depth.inputs > REPORTED_LOAD * limits.queue_inputs
            or queue_depth.tokens > REPORTED_LOAD * limits.queue_tokens
        )


class Peer:
    """A front end as the engine channel sees it. Its requests by the numbers that it gave them."""

    def __init__(
        self,
        channel: EngineChannel,
        identity: bytes,
        on_hello: Callable[[Peer], None],
        on_ready: Callable[[], None],
        on_failure: Callable[[], None],
    ) -> None:
        self.identity = identity
        self.has_said_hello = False
        self.on_failure = on_failure
        self._channel = channel
        self._on_hello = on_hello
        self._on_ready = on_ready
        self._running: dict[int, int] = {}
        self._missed_heartbeats = 0
        self._looks_without_work = 0
        self._cpu_seconds = 0.0

    def is_hung(self, cpu_seconds: float) -> bool:
        """Return whether nothing has come from it for too long. To be asked once every `HEARTBEAT_SECONDS`.

        cpu_seconds: the CPU time that its process has taken so far; a process that computes is slow rather than hung.
        Counts how often it was asked rather than seconds: a pause of this process, whose messages wait meanwhile, is
        no silence of its front ends.
        """
        self._missed_heartbeats += 1
        has_worked = cpu_seconds > self._cpu_seconds
        self._cpu_seconds = cpu_seconds
        self._looks_without_work = 0 if has_worked else self._looks_without_work + 1
        return (
            min(self._missed_heartbeats, self._looks_without_work) > MAX_MISSED_HEARTBEATS
            or self._missed_heartbeats > MAX_MISSED_HEARTBEATS_AT_WORK
        )

    def send(self, message: EngineMessage) -> None:
        self._channel.send(self.identity, message)

    def receive(self, message: FrontEndMessage) -> None:
        self._missed_heartbeats = 0
        match message:
            case Submit():
                self._submit(message)
            case Abort():
                self._abort(message.request_id)
            case MeterReused():
                self._meter_reused(message)
            case MetricsPageRequest():
                self.send(MetricsPageResponse(message.request_id, self._channel.metrics_page()))
            case Hello():
                self.has_said_hello = True
                self._on_hello(self)
            case Ready():
                self._on_ready()
            case Heartbeat():
                pass

    def abort_all(self) -> None:
        for request_id in [*self._running]:
            self._abort(request_id)

    def _submit(self, message: Submit) -> None:
        batch_request = message.build_batch_request()
        if message.request_id in self._running:
            raise ValueError(f"a second request with id {message.request_id}")
        settle = partial(self._settle, message.request_id)
        try:
            admitted_id = self._channel.dispatcher.start(batch_request, message.deadline, settle)
        except EmbedserveError as error:
            self.send(RequestFailed.build(message.request_id, error))
        else:
            self._running[message.request_id] = admitted_id
        self._channel.queue_changed()

    def _meter_reused(self, message: MeterReused) -> None:
        try:
            self._channel.dispatcher.count_reused(message.client, message.inputs, message.tokens)
        except EmbedserveError as error:
            self.send(RequestFailed.build(message.request_id, error))
        else:
            self.send(RequestCompleted(message.request_id, CompletedRequest(ModelOutput(), 0.0, 0.0)))

    def _abort(self, request_id: int) -> None:
        admitted_id = self._running.pop(request_id, None)
        if admitted_id is not None:
            self._channel.dispatcher.abort(admitted_id)
            self._channel.queue_changed()

    def _settle(self, request_id: int, outcome: CompletedRequest | EmbedserveError) -> None:
        self._running.pop(request_id, None)
        if isinstance(outcome, CompletedRequest):
            self.send(RequestCompleted(request_id, outcome))
        else:
            self.send(RequestFailed.build(request_id, outcome))
        self._channel.queue_changed()
