"""Stands between an operator and the API server: passes everything on, notes it, and fails as it is told."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import aiohttp
import yaml
from aiohttp import web

from e2e.cluster.layout import API_PORT, NODE_ADDRESS, Layout

Fault = Literal["None", "Silent", "Refusing", "Throttling", "Slow", "Failing"]
"""Silent: connections stay open and nothing answers, as behind a cut cable. Refusing: connections are reset.
Throttling: 429 for every second request. Slow: each answer takes `SLOW_S`. Failing: 500 for every second request."""
SLOW_S = 3.0
_ANSWERS = {"Throttling": 429, "Failing": 500}
_HOP = frozenset(
    {"host", "connection", "transfer-encoding", "content-length", "content-encoding", "accept-encoding"}
)
"""Headers that concern one connection, or that the client here takes care of."""


@dataclass(frozen=True)
class Request:
    """One request that was answered by the API server."""

    at: float
    """The time at which the answer began, by time.monotonic()."""
    method: str
    path: str
    status: int
    content: Any
    """The content that was sent, if it was JSON."""

    @property
    def is_write(self) -> bool:
        return self.method not in ("GET", "HEAD")

    @property
    def is_of_lease(self) -> bool:
        return "/leases" in self.path


@dataclass
class FaultProxy:
    """Serves plain HTTP; to the API server it is the administrator."""

    layout: Layout
    fault: Fault = "None"
    passed: list[Request] = field(default_factory=list)
    """Requests that reached the API server, in the order of their answers."""
    came: int = 0
    """Requests that came in, answered or not."""
    port: int = 0

    def kubeconfig(self, folder: Path) -> Path:
        """Credentials that lead here."""
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "proxy",
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
            "clusters": [{"name": "proxy", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "proxy", "user": {}}],
        }
        path = folder / f"kubeconfig-{self.port}"
        path.write_text(yaml.safe_dump(content))
        return path

    def cut_watches(self) -> None:
        """End all open watches in the middle."""
        self._loop.call_soon_threadsafe(self._abort, "")

    def tell_gone(self) -> None:
        """Tell all open watches that their version is too old."""
        self.tell_error(410)

    def tell_error(self, code: int) -> None:
        """End all open watches with an error of the API server's."""
        status = {"kind": "Status", "code": code, "message": "the watch ends"}
        event = json.dumps({"type": "ERROR", "object": status})
        self._loop.call_soon_threadsafe(self._abort, event)

    @contextmanager
    def running(self) -> Iterator[FaultProxy]:
        started = threading.Event()
        thread = threading.Thread(target=lambda: asyncio.run(self._serve(started)), daemon=True)
        thread.start()
        started.wait()
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._stop.set)
            thread.join()

    async def _serve(self, started: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._endings: dict[web.StreamResponse, asyncio.Future[str]] = {}
        certificates = self.layout.certificates
        tls = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
        tls.load_cert_chain(str(certificates / "admin.crt"), str(certificates / "admin.key"))
        connector = aiohttp.TCPConnector(ssl=tls, limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=True) as self._session:
            app = web.Application(client_max_size=0)
            app.router.add_route("*", "/{path:.*}", self._handle)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.port = runner.addresses[0][1]
            started.set()
            await self._stop.wait()
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.came += 1
        content = await request.read()
        if self.fault == "Silent":
            await self._stop.wait()
        if self.fault == "Refusing" and request.transport is not None:
            request.transport.abort()
        if self.fault in _ANSWERS and self.came % 2:
            code = _ANSWERS[self.fault]
            body = {"kind": "Status", "code": code, "message": "not now"}
            return web.json_response(body, status=code, headers={"Retry-After": "1"})
        if self.fault == "Slow":
            await asyncio.sleep(SLOW_S)
        url = f"https://{NODE_ADDRESS}:{API_PORT}{request.path_qs}"
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        patience = aiohttp.ClientTimeout(total=None)
        async with self._session.request(
            request.method, url, headers=headers, data=content or None, timeout=patience
        ) as answer:
            self._note(request, content, answer.status)
            answer_headers = {
                name: value for name, value in answer.headers.items() if name.lower() not in _HOP
            }
            response = web.StreamResponse(status=answer.status, headers=answer_headers)
            await response.prepare(request)
            if "watch" in request.query:
                await self._stream(request, answer, response)
            else:
                await response.write(await answer.read())
            return response

    async def _stream(
        self, request: web.Request, answer: aiohttp.ClientResponse, response: web.StreamResponse
    ) -> None:
        """Pass a watch on until it ends, is cut or falls silent."""
        ending: asyncio.Future[str] = self._loop.create_future()
        self._endings[response] = ending
        try:
            while True:
                line = asyncio.ensure_future(answer.content.readline())
                either: set[asyncio.Future[Any]] = {line, ending}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if ending.done():
                    line.cancel()
                    last_event = ending.result()
                    break
                if not line.result():
                    return
                if self.fault == "Silent":
                    await self._stop.wait()
                await response.write(line.result())
            if last_event:
                await response.write(f"{last_event}\n".encode())
            elif request.transport is not None:
                request.transport.abort()
        finally:
            self._endings.pop(response, None)

    def _abort(self, event: str) -> None:
        for ending in self._endings.values():
            if not ending.done():
                ending.set_result(event)

    def _note(self, request: web.Request, content: bytes, status: int) -> None:
        try:
            sent = json.loads(content or b"null")
        except ValueError:
            sent = None
        self.passed.append(Request(time.monotonic(), request.method, request.path_qs, status, sent))
