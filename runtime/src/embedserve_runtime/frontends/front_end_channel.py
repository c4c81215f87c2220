"""The engine's process as a front end sees it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import zmq

from embedserve_runtime.frontends.codec import MessageEncoder, front_end_decoder
from embedserve_runtime.frontends.message_socket import MessageSocket
from embedserve_runtime.frontends.messages import EngineMessage, FrontEndMessage, Hello

log = logging.getLogger(__name__)


class FrontEndChannel:
    """The DEALER socket of a front end. It does not notice the end of the engine's process, for which ZeroMQ would wait
    to come back.

    identity: as the engine's process knows this front end. on_failure: a message could not be handled.
    """

    def __init__(
        self,
        address: str,
        identity: bytes,
        on_message: Callable[[EngineMessage], None],
        on_failure: Callable[[], None],
    ) -> None:
        self._on_message = on_message
        self._on_failure = on_failure
        self._encoder, self._decoder = MessageEncoder(), front_end_decoder()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = MessageSocket(self._context, zmq.DEALER, self._receive)
        self._socket.socket.setsockopt(zmq.ROUTING_ID, identity)
        self._socket.socket.connect(address)
        self.send(Hello())

    def send(self, message: FrontEndMessage) -> None:
        self._socket.send(self._encoder.encode(message))

    def close(self) -> None:
        self._socket.close()
        self._context.term()

    def _receive(self, parts: Sequence[zmq.Frame]) -> None:
        try:
            self._on_message(self._decoder.decode(parts))
        except Exception:
            log.exception("cannot handle a message of the engine's process")
            self._on_failure()
