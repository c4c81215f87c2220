"""Talks to pods at their management port: it tells them which vector space the service has switched to, has
them check their own vectors, and asks for the progress of a fetch.

What has passed is remembered for each run of a container, since a restarted one has forgotten it. A new
operator knows nothing and sends everything again, which changes nothing where it was so already.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus
from types import TracebackType
from typing import Any, Literal, Self

import aiohttp
from pydantic import Field, StrictInt

from embedserve_operator.apply.call_signer import CallSigner
from embedserve_operator.kube.references import ObjectKey
from embedserve_operator.kube.views.base import Count, Items, Maybe, Number, Text, View
from embedserve_operator.manifests.runtime_config import MANAGEMENT_PORT
from embedserve_operator.plan import PodMessage, SelfCheckRequest
from embedserve_operator.state.pods import FetchingPod, FetchProgress, PodReplies, PodState, SelfCheckResult

log = logging.getLogger(__name__)

_MAX_CONCURRENT = 64
_MAX_ANSWER_BYTES = 2**16
_MAX_PROBLEM_LENGTH = 500
_MESH_ADVICE = (
    "a service mesh whose pods accept no connection without its certificate ends connections like this: set "
    "the chart's mesh, which leaves the management port alone"
)
Delivery = Literal["All", "RequiredDelivered", "TooFew"]
"""Says whether the pods got their messages.

"RequiredDelivered" says that all pods that must know do; "TooFew" that one of these does not.
"""


class PodClient:
    """Sends requests to pods. Use it as an asynchronous context manager."""

    def __init__(self, *, message_timeout: float, check_timeout: float, port: int = MANAGEMENT_PORT) -> None:
        self._message_timeout = aiohttp.ClientTimeout(total=message_timeout)
        self._check_timeout = aiohttp.ClientTimeout(total=check_timeout)
        self._port = port
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)
        self._signer: CallSigner | None = None
        self._may_call: Callable[[], bool] = lambda: True
        self._replies: dict[ObjectKey, dict[str, PodReplies]] = {}

    async def __aenter__(self) -> Self:
        # Each request gets its own connection, since requests are rare and pods come and go. No proxy is used.
        connector = aiohttp.TCPConnector(limit=0, force_close=True, use_dns_cache=False)
        self._session = aiohttp.ClientSession(connector=connector, trust_env=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    def sign_with(self, signer: CallSigner) -> None:
        """Sign all calls from now on."""
        self._signer = signer

    def restrict_calls(self, may_call: Callable[[], bool]) -> None:
        """Call no pod while `may_call` returns False."""
        self._may_call = may_call

    def get_replies(self, key: ObjectKey) -> Mapping[str, PodReplies]:
        """Return what has passed with the pods of a resource, by their runs."""
        return self._replies.get(key, {})

    def forget(self, key: ObjectKey, but: frozenset[str] = frozenset()) -> None:
        """Forget what has passed with the pods of a resource, except for these runs."""
        replies = self._replies.get(key, {})
        for run in replies.keys() - but:
            del replies[run]
        if not replies:
            self._replies.pop(key, None)

    async def send_messages(self, key: ObjectKey, messages: Sequence[PodMessage]) -> Delivery:
        """Send messages: to the pods that must know first, and to the others only if those have been told."""
        required = [self._send_message(key, message) for message in messages if message.is_required]
        if not all(await asyncio.gather(*required)):
            return "TooFew"
        optional = [self._send_message(key, message) for message in messages if not message.is_required]
        return "All" if all(await asyncio.gather(*optional)) else "RequiredDelivered"

    async def run_self_checks(self, key: ObjectKey, requests: Sequence[SelfCheckRequest]) -> bool:
        """Run the self-checks of pods; return False where one did not pass and is to be repeated."""
        return all(await asyncio.gather(*(self._run_self_check(key, request.pod) for request in requests)))

    async def refresh_progress(self, key: ObjectKey, fetching_pods: Sequence[FetchingPod]) -> bool:
        """Ask the fetching pods for their progress; return whether one has something new.

        A pod that does not answer may have ended its fetch meanwhile.
        """
        return any(await asyncio.gather(*(self._refresh_progress(key, pod) for pod in fetching_pods)))

    async def _send_message(self, key: ObjectKey, message: PodMessage) -> bool:
        pod = message.pod
        body = {"vector_space": message.space}
        status, answer = await self._call("PUT", pod, "current", self._message_timeout, body)
        if status != HTTPStatus.OK:
            log.warning("pod %s did not hear what the name stands for: %s %s", pod.name, status or "", answer)
            return False
        self._remember(key, pod, announced_space=message.space)
        return True

    def _remember(self, key: ObjectKey, pod: PodState | FetchingPod, **changes: Any) -> None:
        replies = self._replies.setdefault(key, {})
        replies[pod.run_id] = replies.get(pod.run_id, PodReplies())._replace(**changes)

    async def _run_self_check(self, key: ObjectKey, pod: PodState) -> bool:
        status, answer = await self._call("GET", pod, "selfcheck", self._check_timeout)
        check = _parse_self_check(status, answer)
        if check.problem:
            log.warning("pod %s did not pass its self-check: %s", pod.name, check.problem)
        self._remember(key, pod, self_check=check)
        return not check.problem

    async def _refresh_progress(self, key: ObjectKey, fetching_pod: FetchingPod) -> bool:
        status, answer = await self._call("GET", fetching_pod, "progress", self._message_timeout)
        progress = _parse_progress(status, answer)
        if progress is None or progress == fetching_pod.progress:
            return False
        self._remember(key, fetching_pod, progress=progress)
        return True

    async def _call(
        self,
        method: str,
        pod: PodState | FetchingPod,
        path: str,
        bound: aiohttp.ClientTimeout,
        body: Any = None,
    ) -> tuple[int, str]:
        """Return the status and the text of the answer; 0 and the reason where there is no answer."""
        host = f"[{pod.address}]" if ":" in pod.address else pod.address
        url = f"http://{host}:{self._port}/{path}"
        content = None if body is None else json.dumps(body).encode()
        headers = {} if content is None else {"Content-Type": "application/json"}
        try:
            async with self._slots:
                if not self._may_call():
                    return 0, "nothing is sent: this process may no longer lead"
                if self._signer is not None:
                    headers["Authorization"] = self._signer.sign(
                        method, f"/{path}", pod=pod.name, body=content or b""
                    )
                request = self._session.request(
                    method, url, data=content, headers=headers, timeout=bound, allow_redirects=False
                )
                return await _read_response(request)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return 0, _describe_connection_error(error)


async def _read_response(request: AbstractAsyncContextManager[aiohttp.ClientResponse]) -> tuple[int, str]:
    """Send a request; return the status and the text of the answer, of which no more than some is read."""
    content = b""
    async with request as answer:
        while len(content) < _MAX_ANSWER_BYTES and (chunk := await answer.content.readany()):
            content += chunk
        return answer.status, content.decode("utf-8", "replace")


def _describe_connection_error(error: Exception) -> str:
    message = str(error) or "no answer in time"
    is_reset = isinstance(error, aiohttp.ServerDisconnectedError) or (
        isinstance(error, OSError) and error.errno in (errno.ECONNRESET, errno.EPIPE)
    )
    return f"{message}; {_MESH_ADVICE}" if is_reset else message


class _ProgressResponse(View):
    """A pod's answer about the progress of its fetch."""

    phase: Text
    bytes_done: Count
    bytes_total: Count
    bytes_per_second: Count
    seconds_remaining: Maybe[StrictInt]


def _parse_progress(status: int, answer: str) -> FetchProgress | None:
    parsed = _ProgressResponse.parse_json(answer)
    if status != HTTPStatus.OK or not parsed.phase:
        return None
    return FetchProgress(
        phase=parsed.phase[:_MAX_PROBLEM_LENGTH],
        bytes_done=parsed.bytes_done,
        bytes_total=parsed.bytes_total,
        bytes_per_second=parsed.bytes_per_second,
        seconds_remaining=parsed.seconds_remaining,
    )


class _SelfCheckResponse(View):
    """A pod's answer to a self-check."""

    vector_space: Text = Field(alias="vector_space")
    former_vector_space: Text = Field(alias="former_vector_space")
    compute: Text
    min_cosine: Number = Field(alias="min_cosine")
    dimensions: Count
    problems: Items[Any]
    error: Text


def _parse_self_check(status: int, answer: str) -> SelfCheckResult:
    parsed = _SelfCheckResponse.parse_json(answer)
    space, dimensions = parsed.vector_space or None, parsed.dimensions or None
    if status == HTTPStatus.OK and space is not None:
        former = parsed.former_vector_space or None
        return SelfCheckResult(space, dimensions, "", parsed.compute or None, parsed.min_cosine, former)
    if parsed.problems:
        problem = "; ".join(map(str, parsed.problems))
    elif status == 0:
        problem = f"its management port cannot be reached: {answer}"
    else:
        problem = f"its self-check answered {status}: {parsed.error or answer}"
    return SelfCheckResult(space, dimensions, problem[:_MAX_PROBLEM_LENGTH])
