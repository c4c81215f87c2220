"""An API server that keeps Leases as the real one does, and otherwise answers what it is told to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from kubernetes.aio.config import kube_config

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ApiServer:
    """Keeps one Lease with its versions; `deaf` clients get no answer, as behind a half-open connection."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.requests: list[str] = []
        self.deaf: set[str] = set()
        self.answer: Answer | None = None
        self.created = asyncio.Event()
        self._version = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path_qs}")
        if self.answer is not None:
            return await self.answer(request)
        body = json.loads(await request.read() or b"null")
        if self._who(body) in self.deaf:
            await asyncio.Event().wait()
        if request.method == "GET":
            return status(404, "not found") if self.lease is None else web.json_response(self.lease)
        return self._write(request.method, body)

    def forget(self) -> None:
        """Somebody deletes the Lease."""
        self.lease = None

    def _write(self, method: str, body: Any) -> web.StreamResponse:
        if method == "POST" and self.lease is not None:
            return status(409, "already exists")
        if method == "PUT":
            read = body["metadata"].get("resourceVersion")
            if self.lease is None or read != self.lease["metadata"]["resourceVersion"]:
                return status(409, "the object has been modified")
        if method == "POST":
            self.created.set()
        self._version += 1
        meta = {**body["metadata"], "resourceVersion": str(self._version)}
        self.lease = {**body, "metadata": meta}
        return web.json_response(self.lease)

    def _who(self, body: Any) -> str:
        return str((body or {}).get("spec", {}).get("holderIdentity", ""))


def status(code: int, message: str, *, reason: str = "", field: str = "") -> web.Response:
    """A refusal in the API's form; `field` is the one that breaks a rule."""
    details = {"causes": [{"field": field, "message": message}] if field else [{"message": message}]}
    body = {"kind": "Status", "code": code, "message": message, "reason": reason, "details": details}
    return web.json_response(body, status=code)


@asynccontextmanager
async def serving(
    server: ApiServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ApiServer]:
    """The server on a free port, and credentials that lead to it."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    write_kubeconfig(folder / "kubeconfig", f"http://{host}:{port}", monkeypatch)
    try:
        yield server
    finally:
        await runner.cleanup()


def write_kubeconfig(file: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials that lead to that address, where clients look for them."""
    file.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "x",
                "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
                "clusters": [{"name": "x", "cluster": {"server": url}}],
                "users": [{"name": "x", "user": {}}],
            }
        ),
        encoding="utf-8",
    )
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(file))
