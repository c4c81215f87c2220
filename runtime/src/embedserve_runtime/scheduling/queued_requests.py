"""Holds the requests that wait: each with its inputs, and those of one client in a ring.

Pure, as the policy that takes them out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence


class QueuedRequest:
    """The inputs of one request that wait: in the order they came until some have been taken, then the shortest first.

    lengths: token counts of the inputs that wait. tokens: their sum. order: the inputs' indices in the request, once
    they have been sorted. deadline: in seconds of the caller's clock.
    """

    __slots__ = ("deadline", "lengths", "order", "request_id", "tokens")
    order: list[int] | None

    def __init__(self, request_id: int, lengths: Sequence[int], tokens: int, deadline: float) -> None:
        self.request_id = request_id
        self.deadline = deadline
        self.tokens = tokens
        self.order, self.lengths = None, [*lengths]

    def take_inputs(self, room: int, quantum: int, *, any_length: bool) -> tuple[Sequence[int], int]:
        """Take the longest inputs that fit into `room`, about a quantum of tokens; return their indices and tokens.

        With `any_length` the first always fits. A request that fits as a whole is taken as it came.
        """
        tokens = self.tokens
        if self.order is None and (
            tokens <= min(room, quantum) or (len(self.lengths) == 1 and (any_length or tokens <= room))
        ):
            indices = range(len(self.lengths))
            self.tokens = 0
            self.lengths.clear()
            return indices, tokens
        return self._take_longest(room, quantum, any_length=any_length)

    def _take_longest(self, room: int, quantum: int, *, any_length: bool) -> tuple[Sequence[int], int]:
        indices: list[int] = []
        tokens = 0
        order = self._sort()
        while self.lengths and tokens < quantum:
            if any_length and not indices:
                last = len(self.lengths) - 1
            else:
                last = bisect_right(self.lengths, room - tokens) - 1
                if last < 0:
                    break
            tokens += self.lengths.pop(last)
            indices.append(order.pop(last))
        self.tokens -= tokens
        return indices, tokens

    def _sort(self) -> list[int]:
        """Sort the inputs by their length, once; return their indices in that order."""
        if self.order is None:
            lengths = self.lengths
            self.order = sorted(range(len(lengths)), key=lengths.__getitem__)
            self.lengths = [lengths[index] for index in self.order]
        return self.order


class ClientQueue:
    """The requests of one client that wait.

    client: None for all requests whose clients are not told apart. ring: by request id, the front request first.
    tokens, inputs: of all of them.
    """

    __slots__ = ("client", "inputs", "ring", "tokens")

    def __init__(self, client: str | None) -> None:
        self.client = client
        self.ring: OrderedDict[int, QueuedRequest] = OrderedDict()
        self.tokens = 0
        self.inputs = 0

    def add(self, request: QueuedRequest) -> None:
        self.ring[request.request_id] = request
        self.tokens += request.tokens
        self.inputs += len(request.lengths)

    def subtract(self, tokens: int, inputs: int) -> None:
        """Subtract what has been taken or dropped."""
        self.tokens -= tokens
        self.inputs -= inputs

    def has_expired(self, now: float) -> bool:
        """Return whether the deadline of any request has passed."""
        return any(request.deadline <= now for request in self.ring.values())
