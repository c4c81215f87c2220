"""The operator signs its calls, and pods take those of the leading one: both sides as they are, over HTTP."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import httpx
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from embedserve_operator.apply.call_keys import format_public_keys
from embedserve_operator.apply.call_signer import CallSigner
from embedserve_operator.apply.pod_client import PodClient
from embedserve_operator.clock import Clock
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.kube.references import ObjectKey
from embedserve_operator.manifests.configmap import FILE_NAME, KEYS_FILE_NAME
from embedserve_operator.plan import PodMessage, SelfCheckRequest
from embedserve_operator.state.pods import PodState
from embedserve_runtime.api.app import create_management_app
from embedserve_runtime.api.errors import CallRefused
from embedserve_runtime.api.operator_calls import OperatorCall, OperatorCalls
from embedserve_runtime.config import load_config
from embedserve_runtime.frontends.context import ConnectionMetrics
from embedserve_runtime.server.http_server import HttpServer
from tests.operator.builders import hub_spec
from tests.operator.simulation import Operator, Simulation, simulated, space_named
from tests.support.in_process_server import serve_in_process
from tests.support.models import small_minilm
from tests.support.server_process import start_server

KEY, OTHER_KEY = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
SERVICE = ObjectKey("search", "docs")
OTHER = "vs2-fedcba9876543210fedc"
A, B = "acme/a", "acme/b"


def state(name: str = "docs-a") -> PodState:
    return PodState(name, "r", "t", "c", "Ready", None, None, address="127.0.0.1", run_id=f"{name}/0")


@asynccontextmanager
async def pod_that_knows(file: Path, told: list[str]) -> AsyncIterator[int]:
    """The management port of a pod named docs-a."""
    async with serve_in_process() as server:
        app = create_management_app(server.context, told.append, OperatorCalls(file, "docs-a"))
        with closing(socket.create_server(("127.0.0.1", 0))) as sock:
            http = HttpServer(app, sock, ConnectionMetrics(server.context.metrics))
            try:
                yield sock.getsockname()[1]
            finally:
                await http.abort()


async def call(
    port: int, key: Ed25519PrivateKey | None, *, generation: int = 1, pod: str = "docs-a"
) -> list[bool]:
    """Whether the pod was told, and whether it has passed the self-check."""
    async with PodClient(message_timeout=20, check_timeout=20, port=port) as client:
        if key is not None:
            client.sign_with(CallSigner(key, lambda: generation, Clock()))
        told = await client.send_messages(SERVICE, (PodMessage(state(pod), OTHER, is_required=True),))
        return [told == "All", await client.run_self_checks(SERVICE, (SelfCheckRequest(state(pod)),))]


async def test_a_pod_obeys_the_leading_operator_alone(tmp_path: Path) -> None:
    file, told = tmp_path / "keys.json", list[str]()
    file.write_text(format_public_keys(KEY))
    async with pod_that_knows(file, told) as port:
        assert await call(port, None) == [False, False], "it is not signed"
        assert await call(port, OTHER_KEY) == [False, False], "the key is another's"
        assert await call(port, KEY, pod="docs-b") == [False, False], "it was meant for another pod"
        assert told == []
        assert await call(port, KEY, generation=5) == [True, True]
        assert await call(port, KEY, generation=6) == [True, True]
        assert await call(port, KEY, generation=5) == [False, False], "it leads no more"
        assert told == [OTHER, OTHER]


async def test_an_operator_that_leads_no_more_calls_nobody(tmp_path: Path) -> None:
    told = list[str]()
    async with (
        pod_that_knows(tmp_path / "none", told) as port,
        PodClient(message_timeout=20, check_timeout=20, port=port) as client,
    ):
        client.restrict_calls(lambda: False)
        assert (
            await client.send_messages(SERVICE, (PodMessage(state(), OTHER, is_required=True),)) == "TooFew"
        )
        assert not await client.run_self_checks(SERVICE, (SelfCheckRequest(state()),))
    assert told == []


class Mounts:
    """The folders that pods of a simulation mount, and what their runtime makes of a call."""

    def __init__(self, simulation: Simulation, folder: Path) -> None:
        self._simulation = simulation
        self._folder = folder
        self._calls: dict[str, OperatorCalls] = {}
        self.refused: list[str] = []
        self.unread = False
        """Whether a change of a ConfigMap has yet to reach the pods."""

    def admits(self, pod: Manifest, request: web.Request, body: bytes) -> bool:
        name = pod["metadata"]["name"]
        config = pod["spec"]["volumes"][0]["configMap"]["name"]
        folder = self._folder / name
        if not (self.unread and folder.exists()):
            folder.mkdir(exist_ok=True)
            data = self._simulation.objects["ConfigMap", config]["data"]
            for file in (FILE_NAME, KEYS_FILE_NAME):
                (folder / file).unlink(missing_ok=True)
                if file in data:
                    (folder / file).write_text(data[file])
        if name not in self._calls:
            keys = load_config(folder / FILE_NAME).server.operator_keys_file
            # Looked at again at each call.
            self._calls[name] = OperatorCalls(keys, name, clock=iter(range(0, 10**6, 10)).__next__)
        authorization = request.headers.get("Authorization", "").encode()
        given = OperatorCall(request.method, request.path, body, authorization, request.method == "PUT")
        try:
            self._calls[name].check(given)
        except CallRefused as error:
            self.refused.append(error.message)
            return False
        return True


Running = tuple[Simulation, Operator, Mounts]


@pytest.fixture(name="running")
async def running_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    async with simulated(tmp_path, monkeypatch) as (simulation, operator):
        mounts = Mounts(simulation, tmp_path)
        simulation.admits = mounts.admits
        yield simulation, operator, mounts


def pods(simulation: Simulation) -> set[str]:
    return {one["metadata"]["uid"] for one in simulation.of_kind("Pod")}


def keys_of(simulation: Simulation) -> list[str]:
    files = [one["data"] for one in simulation.of_kind("ConfigMap") if FILE_NAME in one["data"]]
    return [one.get(KEYS_FILE_NAME, "") for one in files]


CHANGES = [
    pytest.param(None, KEY, id="an operator that signs takes over"),
    pytest.param(KEY, OTHER_KEY, id="the key is another one"),
    pytest.param(None, None, id="no operator signs"),
]


@pytest.mark.parametrize(("before", "after"), CHANGES)
async def test_pods_get_another_key_without_a_restart_and_then_take_a_model_change(
    running: Running, before: Ed25519PrivateKey | None, after: Ed25519PrivateKey | None
) -> None:
    simulation, operator, _ = running
    operator.key = before
    for repo in (A, B):
        simulation.user_applies(hub_spec(repo, replicas=2))
        await operator.run()
    there = pods(simulation)
    operator.key, operator.generation = after, 2
    await operator.run()
    assert pods(simulation) == there
    assert set(keys_of(simulation)) == {"" if after is None else format_public_keys(after)}
    simulation.user_applies(hub_spec(A, replicas=2))
    await operator.run(settles=False)
    assert simulation.answers() == {space_named(A)}, "a way back, over the same pods"
    assert pods(simulation) == there


async def test_a_model_change_waits_until_its_pods_know_another_key(running: Running) -> None:
    simulation, operator, mounts = running
    operator.key = KEY
    for repo in (A, B):
        simulation.user_applies(hub_spec(repo, replicas=2))
        await operator.run()
    operator.key = OTHER_KEY
    simulation.user_applies(hub_spec(A, replicas=2))
    mounts.unread = True
    await operator.run(settles=False)
    assert mounts.refused
    assert simulation.answers() == {space_named(B)}, "nothing has moved"
    assert set(keys_of(simulation)) == {format_public_keys(OTHER_KEY)}
    mounts.unread = False
    await operator.run(settles=False)
    assert simulation.answers() == {space_named(A)}


async def test_a_server_beside_whose_configuration_are_keys_obeys_their_owner_alone(tmp_path: Path) -> None:
    (tmp_path / KEYS_FILE_NAME).write_text(format_public_keys(KEY))
    with start_server(small_minilm(tmp_path / "model"), tmp_path) as server:
        await asyncio.to_thread(server.wait_until_ready)
        port = int(server.management.rpartition(":")[2])
        # The host has the name that its pod would have.
        assert await call(port, KEY, pod=socket.gethostname()) == [True, True]
        assert await call(port, None, pod=socket.gethostname()) == [False, False]
        async with httpx.AsyncClient(base_url=server.management) as anybody:
            answer = await anybody.put("/current", json={"vector_space": OTHER})
            assert (answer.status_code, "signs its calls" in answer.text) == (403, True)
            opened = [await anybody.get(path) for path in ("/current", "/readyz", "/livez", "/metrics")]
        assert [one.status_code for one in opened] == [200] * 4, "what changes nothing is open"
