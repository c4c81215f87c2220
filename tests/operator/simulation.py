"""A cluster in memory behind HTTP: an API server, what makes pods of Deployments, and pods that answer.

The operator's own code talks to it as to a real one. A test can end the operator right after any write, and asks what
clients would get at any moment.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from embedserve_operator.apply.call_keys import format_public_keys
from embedserve_operator.apply.call_signer import CallSigner
from embedserve_operator.apply.pod_client import PodClient
from embedserve_operator.cache.caches import Caches
from embedserve_operator.cache.cluster import ClusterCache
from embedserve_operator.cache.objects import ObjectCache
from embedserve_operator.clock import Clock
from embedserve_operator.errors import ApiError
from embedserve_operator.kube.client import HISTORY_MANAGER, SCALE_MANAGER, KubeClient
from embedserve_operator.kube.kinds import API_KINDS, POD, RESOURCE
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.kube.references import ObjectKey
from embedserve_operator.manifests.metadata import REPLACED_AT, REVISION_LABEL
from embedserve_operator.process.reconciler import ApiConnections, Reconciler
from embedserve_operator.queue.work_queue import WorkQueue
from tests.operator.api_server import ApiServer, serving, status
from tests.operator.builders import NOW, REPORT, SETTINGS, failed, pod, ready, resource
from tests.operator.running_checks import wait_for_self_checks

KEY = ObjectKey("search", "docs")
_KINDS = {api.plural: kind for kind, api in API_KINDS.items()}
BROKEN = "acme/broken"


def space_named(repo: str) -> str:
    """The vector space of a repository of these tests; a mirror's is that of what it mirrors."""
    name = repo.partition("/")[2].removesuffix("-mirror")
    return f"vs2-{name.encode().hex():0<20}"


def reconciler_of(
    kube: KubeClient,
    store: ObjectCache,
    queue: WorkQueue[ObjectKey],
    pod_client: PodClient,
    seconds: Callable[[], int] = lambda: NOW,
    *,
    clock: Callable[[], float] = time.monotonic,
    operator_keys: str = "",
) -> Reconciler:
    """Return the reconciler of a process of the operator without watches. seconds: since 1970."""
    return Reconciler(
        ApiConnections(kube, pod_client),
        Caches(store, ClusterCache(watches_nodes=False)),
        queue,
        settings=replace(SETTINGS, operator_keys=operator_keys),
        clock=Clock(lambda: datetime.fromtimestamp(seconds(), UTC), clock),
    )


class Killed(Exception):
    """The operator's process has ended."""


@dataclass
class Simulation:
    """objects: by kind and name. told: by pod name, what it was last told. writes: how many there were."""

    objects: dict[tuple[str, str], Manifest] = field(default_factory=dict)
    announced_spaces: dict[str, str] = field(default_factory=dict)
    writes: int = 0
    dies_after: int | None = None
    fails_at: frozenset[int] = frozenset()
    now: int = NOW
    room: int = 1000
    unsound: frozenset[str] = frozenset()
    """Repositories whose pods come up and do not pass the self-check."""
    after_write: Callable[[], None] = lambda: None
    admits: Callable[[Manifest, web.Request, bytes], bool] = lambda *_: True
    """Returns whether a pod takes a call with this body."""
    died: asyncio.Event = field(default_factory=asyncio.Event)
    version: int = 0

    # -- the user

    def user_applies(self, spec: Mapping[str, Any]) -> None:
        stored = self.objects.get((RESOURCE, "docs"))
        received = stored or resource(spec)
        generation = received["metadata"]["generation"] + (stored is not None)
        self._put(
            {**received, "spec": dict(spec), "metadata": {**received["metadata"], "generation": generation}}
        )

    # -- the API server

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """One request of the operator to the API server."""
        body = json.loads(await request.read() or b"null")
        parts = request.path.split("/")
        is_status = parts[-1] == "status"
        plural, name = (parts[-3], parts[-2]) if is_status else (parts[-2], parts[-1])
        if request.method == "POST":
            return web.json_response(body)
        kind = _KINDS[plural]
        stored = self.objects.get((kind, name))
        if request.method == "GET":
            return status(404, "not found") if stored is None else web.json_response(stored)
        return await self._write(lambda: self._changed(request, kind, name, body, is_status=is_status))

    def _changed(
        self, request: web.Request, kind: str, name: str, body: Any, *, is_status: bool
    ) -> web.StreamResponse:
        stored = self.objects.get((kind, name))
        if request.method == "DELETE":
            if stored is None or stored["metadata"]["uid"] != body["preconditions"]["uid"]:
                return status(404, "not found")
            del self.objects[kind, name]
            return web.json_response({"kind": "Status"})
        scales = request.query["fieldManager"] in (SCALE_MANAGER, HISTORY_MANAGER)
        if not (is_status or scales or kind == POD):
            return web.json_response(self._put(self._merged(stored, body)))
        if stored is None:
            return status(404, "not found")
        return web.json_response(self._put(_patched(stored, body, is_status=is_status)))

    def _merged(self, stored: Manifest | None, applied: Manifest) -> Manifest:
        meta = applied["metadata"]
        if stored is None:
            uid = f"{applied['kind']}-{meta['name']}-{self.version}"
            return {**applied, "metadata": {**meta, "uid": uid, "generation": 1}}
        spec = dict(applied.get("spec", {}))
        if "replicas" in stored.get("spec", {}):
            spec.setdefault("replicas", stored["spec"]["replicas"])
        generation = stored["metadata"]["generation"] + (spec != stored.get("spec"))
        own_metadata = {"uid": stored["metadata"]["uid"], "generation": generation}
        replaced = stored["metadata"].get("annotations", {}).get(REPLACED_AT)
        if replaced is not None:  # another manager's
            meta = {**meta, "annotations": {**meta["annotations"], REPLACED_AT: replaced}}
        changed = {**applied, "metadata": {**meta, **own_metadata}, "status": stored.get("status", {})}
        return {**changed, "spec": spec} if spec else changed

    def _put(self, stored: Manifest) -> Manifest:
        self.version += 1
        versioned = {**stored, "metadata": {**stored["metadata"], "resourceVersion": str(self.version)}}
        self.objects[versioned["kind"], versioned["metadata"]["name"]] = versioned
        return versioned

    async def _write(self, change: Callable[[], web.StreamResponse]) -> web.StreamResponse:
        self.writes += 1
        if self.writes in self.fails_at:
            return status(503, "the API server is overloaded")
        answer = change()
        self.after_write()
        if self.writes == self.dies_after:
            self.died.set()
            await asyncio.Event().wait()  # nobody will hear of it
        return answer

    # -- the pods

    async def pod_answers(self, request: web.Request) -> web.StreamResponse:
        """One request to a pod's management port."""
        assert request.transport is not None
        address = request.transport.get_extra_info("sockname")[0]
        pod_asked = next(
            received for received in self.of_kind(POD) if received["status"].get("podIP") == address
        )
        space = _read_vector_space(pod_asked)
        if not self.admits(pod_asked, request, await request.read()):
            return web.json_response({"error": "this is not the operator"}, status=403)
        if request.method == "PUT":
            body = await request.json()

            def tell() -> web.StreamResponse:
                self.announced_spaces[pod_asked["metadata"]["name"]] = body["vector_space"]
                return web.json_response({"vector_space": space, "current": space == body["vector_space"]})

            return await self._write(tell)
        problems = (
            ["different texts gave the same vector"]
            if _read_model_report(pod_asked)["source"] in self.unsound
            else []
        )
        return web.json_response(
            {"vector_space": space, "dimensions": 384, "outputs": ["dense"], "problems": problems},
            status=503 if problems else 200,
        )

    # -- what makes pods

    def settle(self) -> None:
        """Every Deployment gets the pods that it asks for, as far as there is room; those of none go."""
        pods: dict[str, Manifest] = {}
        for deployment in self.of_kind("Deployment"):
            pods_of_deployment = [
                received
                for received in self._pods_of(deployment)
                if len(pods) < self.room or self._exists(received)
            ]
            pods |= {received["metadata"]["name"]: received for received in pods_of_deployment}
            self._count(deployment, pods_of_deployment)
        for name in [received["metadata"]["name"] for received in self.of_kind(POD)]:
            if name not in pods:
                del self.objects[POD, name]
                self.announced_spaces.pop(name, None)
        for name, received in pods.items():
            if (POD, name) not in self.objects:
                self._put(received)

    def _exists(self, received: Manifest) -> bool:
        return (POD, received["metadata"]["name"]) in self.objects

    def _pods_of(self, deployment: Manifest) -> list[Manifest]:
        template = deployment["spec"]["template"]
        mark = template["metadata"]["annotations"]["embedserve.dev/template"]
        config = template["spec"]["volumes"][0]["configMap"]["name"]
        repo = _source_in(self.objects["ConfigMap", config])
        pods = []
        for number in range(deployment["spec"].get("replicas", 1)):
            name = f"{deployment['metadata']['name']}-{mark}-{number}"
            received = pod(deployment["metadata"]["labels"][REVISION_LABEL], mark, config, name=name)
            if repo == BROKEN:
                status_of_fetch = failed("ModelNotFound", "no such repository", retryable=False)
                received["status"] = {"phase": "Pending", "initContainerStatuses": [status_of_fetch]}
            else:
                received = ready(received, {**REPORT, "source": repo, "vectorSpace": space_named(repo)})
                received["status"]["podIP"] = (
                    f"127.1.{int(mark[:2], 16)}.{int(mark[2:4], 16) // 2 * 2 + number % 2}"
                )
            pods.append(received)
        return pods

    def _count(self, deployment: Manifest, pods: list[Manifest]) -> None:
        running = sum("conditions" in received["status"] for received in pods)
        counts = {
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": len(pods),
            "updatedReplicas": len(pods),
            "readyReplicas": running,
            "availableReplicas": running,
        }
        if counts != deployment.get("status"):
            self._put({**deployment, "status": counts})

    # -- what is to be seen

    def of_kind(self, kind: str) -> list[Manifest]:
        return [received for (its, _), received in self.objects.items() if its == kind]

    def selected(self, service: str) -> list[Manifest]:
        """The ready pods that a Service leads to."""
        received = self.objects.get(("Service", service))
        selector = received["spec"]["selector"].items() if received is not None else ()
        return [
            received_pod
            for received_pod in self.of_kind(POD)
            if received is not None
            and selector <= received_pod["metadata"]["labels"].items()
            and "conditions" in received_pod["status"]
        ]

    def find_answered_space(self, received: Manifest) -> str | None:
        """The space of the vectors that a pod gives to those who come by the service's name; None: no answer."""
        own = _read_vector_space(received)
        announced = self.announced_spaces.get(received["metadata"]["name"], own)
        if announced == own:
            return own
        behind = self.selected(f"docs-{announced.removeprefix('vs2-')[:8]}")
        spaces = {_read_vector_space(received_pod) for received_pod in behind}
        return spaces.pop() if len(spaces) == 1 else None

    def answers(self) -> set[str | None]:
        """Return what new connections by the service's name get."""
        return {self.find_answered_space(received) for received in self.selected("docs")}

    def condition(self, kind: str) -> Manifest | None:
        conditions = self.objects[RESOURCE, "docs"]["status"].get("conditions", ())
        return next((condition for condition in conditions if condition["type"] == kind), None)


def _patched(stored: Manifest, body: Manifest, *, is_status: bool) -> Manifest:
    """A part of an object: its status, its number of pods, when it was replaced, or its labels."""
    if is_status:
        return {**stored, "status": body["status"]}
    if "spec" in body:
        return {**stored, "spec": {**stored["spec"], **body["spec"]}}
    if "annotations" in body["metadata"]:
        kept_annotations = {
            name: value for name, value in stored["metadata"]["annotations"].items() if name != REPLACED_AT
        }
        annotations = {**kept_annotations, **body["metadata"]["annotations"]}
        return {**stored, "metadata": {**stored["metadata"], "annotations": annotations}}
    labels = {**stored["metadata"]["labels"], **body["metadata"]["labels"]}
    return {**stored, "metadata": {**stored["metadata"], "labels": labels}}


def _read_model_report(received: Manifest) -> dict[str, Any]:
    """Return what a pod has reported about its model."""
    message = received["status"]["initContainerStatuses"][0]["state"]["terminated"]["message"]
    report: dict[str, Any] = json.loads(message)["model"]
    return report


def _read_vector_space(received: Manifest) -> str:
    return str(_read_model_report(received)["vectorSpace"])


def _source_in(config: Manifest) -> str:
    source = yaml.safe_load(config["data"]["runtime.yaml"])["model"]["source"]
    assert isinstance(source, str)
    return source


@dataclass
class Operator:
    """Processes of the operator, one after the other: a new one remembers nothing."""

    simulation: Simulation
    pod_port: int
    key: Ed25519PrivateKey | None = None
    """The key with which calls to pods are signed; None signs none, as operators of before."""
    generation: int = 1

    async def run(self, *, settles: bool = True, max_passes: int = 60) -> None:
        """A process, until nothing changes any more. Raises Killed when it ends before."""
        self.simulation.died = asyncio.Event()
        async with (
            KubeClient(request_timeout=20) as kube,
            PodClient(message_timeout=5, check_timeout=5, port=self.pod_port) as pod_client,
        ):
            if self.key is not None:
                pod_client.sign_with(CallSigner(self.key, lambda: self.generation, Clock()))
            for _ in range(max_passes):
                before = self.simulation.writes
                if settles:
                    self.simulation.settle()
                version = self.simulation.version
                again = await self._pass(kube, pod_client)
                if self.simulation.writes == before and not again and self.simulation.version == version:
                    return
        raise AssertionError(f"no end after {max_passes} passes")

    async def _pass(self, kube: KubeClient, pod_client: PodClient) -> bool:
        """Return whether another pass is due at once."""
        simulation = self.simulation
        store, queue = ObjectCache(), WorkQueue[ObjectKey](base_delay=1, max_delay=60)
        for (kind, _), stored in simulation.objects.items():
            store.put(kind, stored)
        keys = "" if self.key is None else format_public_keys(self.key)
        reconciler = reconciler_of(kube, store, queue, pod_client, lambda: simulation.now, operator_keys=keys)
        passing = asyncio.create_task(reconciler.reconcile(KEY))
        dying = asyncio.create_task(simulation.died.wait())
        await asyncio.wait((passing, dying), return_when=asyncio.FIRST_COMPLETED)
        dying.cancel()
        if not passing.done():
            passing.cancel()
            await asyncio.wait((passing,))
            raise Killed
        try:
            succeeded = passing.result()
        except ApiError:
            return True
        await wait_for_self_checks()
        refused = not succeeded and simulation.writes in simulation.fails_at
        return refused or await queue.get(0) is not None


@asynccontextmanager
async def simulated(
    folder: Any, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Simulation, Operator]]:
    """An empty cluster, and operators for it."""
    simulation, server = Simulation(), ApiServer()
    server.answer = simulation.answer
    pods = web.Application()
    pods.router.add_route("*", "/{path:.*}", simulation.pod_answers)
    runner = web.AppRunner(pods, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", 0).start()
    async with serving(server, folder, monkeypatch):
        try:
            yield simulation, Operator(simulation, runner.addresses[0][1])
        finally:
            await runner.cleanup()
