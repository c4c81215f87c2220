"""The key by which pods know the operator's calls: made once, kept in a Secret, and never shown."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from embedserve_operator.apply.call_keys import PRIVATE_KEY, format_public_keys, load_call_key
from embedserve_operator.errors import SettingsError
from embedserve_operator.kube.client import KubeClient
from tests.operator.api_server import ApiServer, serving, status

PATH = "/api/v1/namespaces/system/secrets"


class Secrets(ApiServer):
    """An API server with one Secret at most."""

    def __init__(self) -> None:
        super().__init__()
        self.secret: dict[str, Any] | None = None
        self.beaten_by: dict[str, Any] | None = None
        """What another process creates right before this one does."""
        self.answer = self._answer_secrets

    async def _answer_secrets(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            assert request.path == f"{PATH}/operator-pod-calls"
            return status(404, "not found") if self.secret is None else web.json_response(self.secret)
        assert (request.method, request.path) == ("POST", PATH)
        if self.beaten_by is not None:
            self.secret = self.beaten_by
            return status(409, "already exists")
        self.secret = json.loads(await request.read())
        return web.json_response(self.secret)


def secret_with(content: bytes) -> dict[str, Any]:
    return {"kind": "Secret", "data": {PRIVATE_KEY: base64.b64encode(content).decode()}}


def pem(key: Ed25519PrivateKey | X25519PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


async def load(server: Secrets, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Ed25519PrivateKey:
    async with serving(server, folder, monkeypatch), KubeClient(request_timeout=20) as kube:
        key = await load_call_key(kube, "system", "operator-pod-calls")
    assert key is not None
    return key


async def test_a_key_is_made_once_and_found_by_every_later_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Secrets()
    keys = [format_public_keys(await load(server, tmp_path, monkeypatch)) for _ in range(3)]
    assert keys == [keys[0]] * 3
    assert [request.split()[0] for request in server.requests].count("POST") == 1
    (public,) = json.loads(keys[0])["keys"]
    assert "d" not in public, "the private half stays where it is"
    assert (public["kty"], public["crv"]) == ("OKP", "Ed25519")


async def test_an_operator_without_the_right_to_the_secret_works_without_a_key_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = Secrets()

    async def forbid(_: web.Request) -> web.StreamResponse:
        return status(403, 'secrets "operator-pod-calls" is forbidden')

    server.answer = forbid
    async with serving(server, tmp_path, monkeypatch), KubeClient(request_timeout=20) as kube:
        assert await load_call_key(kube, "system", "operator-pod-calls") is None
    assert "not signed" in caplog.text
    assert "forbidden" in caplog.text


async def test_the_key_of_whoever_was_quicker_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, theirs = Secrets(), Ed25519PrivateKey.generate()
    server.beaten_by = secret_with(pem(theirs))
    assert format_public_keys(await load(server, tmp_path, monkeypatch)) == format_public_keys(theirs)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(secret_with(b"marked-value"), id="no key"),
        pytest.param(secret_with(pem(X25519PrivateKey.generate())), id="a key of another kind"),
        pytest.param({"kind": "Secret", "data": {PRIVATE_KEY: "marked-value"}}, id="no base64"),
        pytest.param({"kind": "Secret", "data": {"other": "marked-value"}}, id="another entry"),
    ],
)
async def test_a_secret_without_a_key_is_named_and_not_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: dict[str, Any]
) -> None:
    server = Secrets()
    server.secret = content
    with pytest.raises(
        SettingsError, match=f"system/operator-pod-calls has no Ed25519 key under {PRIVATE_KEY}"
    ) as e:
        await load(server, tmp_path, monkeypatch)
    assert "marked-value" not in str(e.value)
