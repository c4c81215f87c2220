"""As much of a cluster as the adapter meets: an API server's objects, its certificates, and pods that answer."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.operator.api_server import status

PAGE = "# TYPE embedserve_queue_depth gauge\nembedserve_queue_depth {}\n"
_YEAR = timedelta(days=365)


class Authority:
    """Signs client certificates, as the API server's front-proxy authority does."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "front-proxy-ca")])
        self.certificate = _pem(self._signed(self._name, self._key.public_key(), is_authority=True))

    def client(self, common_name: str, folder: Path) -> Path:
        """A file with key and certificate of a client."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        file = folder / f"{common_name}-{id(self)}.pem"
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        file.write_bytes(private + _pem(self._signed(name, key.public_key())).encode())
        return file

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, is_authority: bool = False
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _YEAR)
            .not_valid_after(now + _YEAR)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )


@dataclass
class Objects:
    """Objects of an API server by path, each with a version; lists of pods by what they are asked for."""

    by_path: dict[str, dict[str, Any]] = field(default_factory=dict)
    pods: list[dict[str, Any]] = field(default_factory=list)
    pod_queries: list[dict[str, str]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/pods"):
            self.pod_queries.append(dict(request.query))
            return web.json_response(self._page(int(request.query.get("continue", 0))))
        if request.path.endswith("/apiservices"):
            items = [service for path, service in self.by_path.items() if "/apiservices/" in path]
            return web.json_response({"kind": "APIServiceList", "items": items})
        stored = self.by_path.get(request.path)
        if request.method in ("PUT", "PATCH"):
            return self._write(request, json.loads(await request.read()), stored)
        if stored is None:
            return status(404, "not found")
        if request.method == "DELETE":
            del self.by_path[request.path]
        return web.json_response(stored)

    def _page(self, start: int) -> dict[str, Any]:
        """Two at a time, as a server with many pods would."""
        more = str(start + 2) if len(self.pods) > start + 2 else ""
        return {"kind": "PodList", "metadata": {"continue": more}, "items": self.pods[start : start + 2]}

    def _write(
        self, request: web.Request, body: dict[str, Any], existing: dict[str, Any] | None
    ) -> web.StreamResponse:
        version = 0 if existing is None else int(existing["metadata"]["resourceVersion"])
        if request.method == "PUT" and body["metadata"].get("resourceVersion") != str(version):
            return status(409, "the object has been modified")
        stored = {**body, "metadata": {"uid": "u", **body["metadata"], "resourceVersion": str(version + 1)}}
        self.by_path[request.path] = stored
        return web.json_response(stored)


@dataclass
class Pod:
    """A pod that answers at an address of its own."""

    address: str
    depth: int = 0
    requests: int = 0

    def as_received(self, name: str, port: int) -> dict[str, Any]:
        return {
            "metadata": {"name": name, "uid": f"uid-{name}", "labels": {"embedserve.dev/service": "docs"}},
            "spec": {"containers": [{"ports": [{"name": "management", "containerPort": port}]}]},
            "status": {
                "phase": "Running",
                "podIP": self.address,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }


@asynccontextmanager
async def answering(*pods: Pod) -> AsyncIterator[int]:
    """The pods answer at the port that is given, each at its address."""

    async def metrics(request: web.Request) -> web.Response:
        transport = request.transport
        assert transport is not None
        pod = by_address[transport.get_extra_info("sockname")[0]]
        pod.requests += 1
        return web.Response(text=PAGE.format(pod.depth))

    by_address = {pod.address: pod for pod in pods}
    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "0.0.0.0", 0)
    await site.start()
    port: int = runner.addresses[0][1]
    try:
        yield port
    finally:
        await runner.cleanup()


def client_context(bundle: str, certificate: Path | None) -> ssl.SSLContext:
    """Return the TLS context of the API server, which trusts the bundle only and shows its certificate."""
    context = ssl.create_default_context(cadata=bundle)
    # As Go does: a certificate that is itself in the bundle is trusted.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if certificate is not None:
        context.load_cert_chain(certificate)
    return context


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
