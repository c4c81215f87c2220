"""Asks pods to prove their vectors, and how far they are with a fetch; tells them what the service's name stands for.
On their management port.

What was said is remembered by runs of containers: a restarted one has forgotten it. A new operator knows nothing, asks
and tells again, which changes nothing where it was so already.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from types import TracebackType
from typing import Any, Literal, Self

import aiohttp

from embedserve_operator.plan import Notice, Question
from embedserve_operator.specs.runtime_config import MANAGEMENT_PORT
from embedserve_operator.wire import dig, number, text
from embedserve_operator.world import Fetcher, FetchProgress, Key, PodCheck, PodFacts, Said

log = logging.getLogger(__name__)

_AT_ONCE = 64
_LONGEST_ANSWER = 2**16
_LONGEST_PROBLEM = 500
Heard = Literal["All", "Enough", "TooFew"]
"""Enough: of those that must know, all. TooFew: one of those does not."""


class PodCalls:
    """Use as an asynchronous context manager."""

    def __init__(self, *, tell_timeout: float, check_timeout: float, port: int = MANAGEMENT_PORT) -> None:
        self._tell_timeout = aiohttp.ClientTimeout(total=tell_timeout)
        self._check_timeout = aiohttp.ClientTimeout(total=check_timeout)
        self._port = port
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._said: dict[Key, dict[str, Said]] = {}

    async def __aenter__(self) -> Self:
        # A connection each time: calls are rare, and pods come and go. Straight to them, whatever proxy is set.
        connector = aiohttp.TCPConnector(limit=0, force_close=True, use_dns_cache=False)
        self._session = aiohttp.ClientSession(connector=connector, trust_env=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    def said(self, key: Key) -> Mapping[str, Said]:
        """What passed with the pods of a resource, by their runs."""
        return self._said.get(key, {})

    def forget(self, key: Key, but: frozenset[str] = frozenset()) -> None:
        """Forget what passed with the pods of a resource, but for these runs."""
        found = self._said.get(key, {})
        for run in found.keys() - but:
            del found[run]
        if not found:
            self._said.pop(key, None)

    async def tell(self, key: Key, notices: Sequence[Notice]) -> Heard:
        """Tell the pods; those that must know first of all, and the others only if those do."""
        must = [self._tell(key, notice) for notice in notices if notice.must]
        if not all(await asyncio.gather(*must)):
            return "TooFew"
        others = [self._tell(key, notice) for notice in notices if not notice.must]
        return "All" if all(await asyncio.gather(*others)) else "Enough"

    async def ask(self, key: Key, questions: Sequence[Question]) -> bool:
        """Ask the pods; False where one did not pass, which is to be tried again."""
        return all(await asyncio.gather(*(self._ask(key, question.pod) for question in questions)))

    async def ask_progress(self, key: Key, fetchers: Sequence[Fetcher]) -> bool:
        """Ask the pods that fetch how far they are; True where one says something new. Silence is no trouble: it may
        have ended meanwhile, and a fetch goes on unasked."""
        return any(await asyncio.gather(*(self._ask_progress(key, one) for one in fetchers)))

    async def _tell(self, key: Key, notice: Notice) -> bool:
        pod = notice.pod
        body = {"vector_space": notice.space}
        status, answer = await self._call("PUT", pod, "current", self._tell_timeout, body)
        if status != HTTPStatus.OK:
            log.warning("pod %s did not hear what the name stands for: %s %s", pod.name, status or "", answer)
            return False
        self._remember(key, pod, told=notice.space)
        return True

    def _remember(self, key: Key, pod: PodFacts | Fetcher, **news: Any) -> None:
        said = self._said.setdefault(key, {})
        said[pod.run] = said.get(pod.run, Said())._replace(**news)

    async def _ask(self, key: Key, pod: PodFacts) -> bool:
        status, answer = await self._call("GET", pod, "selfcheck", self._check_timeout)
        check = _check_of(status, answer)
        if check.problem:
            log.warning("pod %s did not prove its vectors: %s", pod.name, check.problem)
        self._remember(key, pod, check=check)
        return not check.problem

    async def _ask_progress(self, key: Key, fetcher: Fetcher) -> bool:
        status, answer = await self._call("GET", fetcher, "progress", self._tell_timeout)
        found = _progress_of(status, answer)
        if found is None or found == fetcher.progress:
            return False
        self._remember(key, fetcher, progress=found)
        return True

    async def _call(
        self, method: str, pod: PodFacts | Fetcher, path: str, bound: aiohttp.ClientTimeout, body: Any = None
    ) -> tuple[int, str]:
        """Status and text of the answer; 0 and the reason where there is none."""
        host = f"[{pod.address}]" if ":" in pod.address else pod.address
        url = f"http://{host}:{self._port}/{path}"
        try:
            async with (
                self._places,
                self._session.request(method, url, json=body, timeout=bound, allow_redirects=False) as answer,
            ):
                content = b""
                while len(content) < _LONGEST_ANSWER and (chunk := await answer.content.readany()):
                    content += chunk
                return answer.status, content.decode("utf-8", "replace")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return 0, str(error) or "no answer in time"


def _progress_of(status: int, answer: str) -> FetchProgress | None:
    content = _json(answer)
    if status != HTTPStatus.OK or not text(content, "phase"):
        return None
    left = dig(content, "secondsRemaining")
    return FetchProgress(
        phase=text(content, "phase")[:_LONGEST_PROBLEM],
        bytes_done=number(content, "bytesDone"),
        bytes_total=number(content, "bytesTotal"),
        bytes_per_second=number(content, "bytesPerSecond"),
        seconds_remaining=left if isinstance(left, int) else None,
    )


def _json(answer: str) -> Any:
    try:
        return json.loads(answer)
    except ValueError:
        return None


def _check_of(status: int, answer: str) -> PodCheck:
    content = _json(answer)
    space = text(content, "vector_space") or None
    problems = dig(content, "problems")
    if status == HTTPStatus.OK and space is not None:
        return PodCheck(space, number(content, "dimensions") or None, "")
    if isinstance(problems, list) and problems:
        said = "; ".join(map(str, problems))
    elif status == 0:
        said = f"its management port cannot be reached: {answer}"
    else:
        said = f"its self-check answered {status}: {text(content, 'error') or answer}"
    return PodCheck(space, number(content, "dimensions") or None, said[:_LONGEST_PROBLEM])
