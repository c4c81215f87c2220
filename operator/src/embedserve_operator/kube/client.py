"""Client of the Kubernetes API; the only module that imports the client library.

Every request has a time limit, and every failure becomes one of this package's errors. Only the connection
of the library is used (credentials, TLS, one session): its classes for the individual APIs cost more memory
than all the rest of the operator. Objects are returned as they were received; whoever asked for them parses the
view of their kind (`kube.views`), or passes them on whole.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Self

import aiohttp
from kubernetes.aio import client, config

from embedserve_operator.api.types import API_VERSION, KIND
from embedserve_operator.errors import ConflictError, NotFoundError, UnavailableError
from embedserve_operator.kube.kinds import API_KINDS, CLAIM, POD, RESOURCE, ApiKind
from embedserve_operator.kube.objects import Manifest, Received
from embedserve_operator.kube.references import ChildRef, ObjectKey
from embedserve_operator.kube.requests import APPLY, MERGE, ApiRequest, parse_response
from embedserve_operator.kube.views.base import Part, Text, View
from embedserve_operator.kube.views.cluster import Discovery, Lease, ServerVersion
from embedserve_operator.kube.views.objects import Event, Object, ObjectList

FIELD_MANAGER = "embedserve-operator"
SCALE_MANAGER = "embedserve-operator-scale"
"""The field manager that owns `spec.replicas` of Deployments that an autoscaler scales, and never gives the field up.
"""
HISTORY_MANAGER = "embedserve-operator-history"
"""The field manager of what is written about earlier models, whose Deployments otherwise stay as they are."""
_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_PAGE = 100


class KubeClient:
    """A connection to the API server. Use it as an asynchronous context manager.

    `resource_selector` is the label selector of the resources that are listed; empty selects all. `on_request` is
    called after each request with its method, the status of the answer (0 without one) and the seconds that it took.
    """

    def __init__(
        self,
        *,
        request_timeout: float,
        namespaces: tuple[str, ...] = (),
        resource_selector: str = "",
        on_request: Callable[[str, int, float], None] = lambda *_: None,
    ) -> None:
        self._on_request = on_request
        self._resource_selector = resource_selector
        self._timeout = request_timeout
        self._namespaces = namespaces
        self._may_write: Callable[[], bool] = lambda: True

    def restrict_to_namespaces(self, namespaces: tuple[str, ...]) -> None:
        """List objects of these namespaces only; none stands for all that there are."""
        self._namespaces = namespaces

    def restrict_writes(self, may_write: Callable[[], bool]) -> None:
        """Refuse every write except those of Leases while `may_write` returns False; they raise
        UnavailableError.
        """
        self._may_write = may_write

    async def __aenter__(self) -> Self:
        await _load_credentials()
        self._client: Any = client.ApiClient()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    async def get(self, namespace: str, ref: ChildRef) -> Received | None:
        """Return a child object, or None when it does not exist."""
        try:
            return await self._send(ApiRequest("GET", API_KINDS[ref.kind].path(namespace, ref.name)))
        except NotFoundError:
            return None

    async def apply(self, manifest: Manifest, *, force: bool, manager: str = FIELD_MANAGER) -> Received:
        """Apply an object on the server side.

        Without `force`, a field that another manager owns raises ConflictError.
        """
        meta = manifest["metadata"]
        return await self._send(
            ApiRequest(
                "PATCH",
                API_KINDS[manifest["kind"]].path(meta.get("namespace"), meta["name"]),
                query={"fieldManager": manager, "force": _format_bool(force), "fieldValidation": "Strict"},
                body=manifest,
                content_type=APPLY,
            )
        )

    async def add_labels(
        self, namespace: str, ref: ChildRef, uid: str, labels: Mapping[str, str]
    ) -> Received:
        """Put labels on an object, and leave everything else as it is.

        NotFoundError is raised when it is gone, ConflictError when another one has its name.
        """
        return await self._send(
            ApiRequest(
                "PATCH",
                API_KINDS[ref.kind].path(namespace, ref.name),
                query={"fieldManager": FIELD_MANAGER},
                body={"metadata": {"uid": uid, "labels": dict(labels)}},
                content_type=MERGE,
            )
        )

    async def create(self, manifest: Manifest, *, dry_run: bool = False) -> Received:
        """Create an object.

        ConflictError is raised when one of that name exists. With `dry_run` the API server only checks
        whether it could be created.
        """
        return await self._send(
            ApiRequest(
                "POST",
                API_KINDS[manifest["kind"]].path(manifest["metadata"].get("namespace")),
                query={
                    "fieldManager": FIELD_MANAGER,
                    "fieldValidation": "Strict",
                    **({"dryRun": "All"} if dry_run else {}),
                },
                body=manifest,
            )
        )

    async def delete(self, namespace: str, ref: ChildRef, uid: str) -> None:
        """Delete the child with that UID.

        One that is gone, or another one of the same name, is left alone.
        """
        options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        try:
            await self._send(
                ApiRequest("DELETE", API_KINDS[ref.kind].path(namespace, ref.name), body=options)
            )
        except (NotFoundError, ConflictError):
            return

    async def apply_status(self, key: ObjectKey, uid: str, status: Manifest) -> Received:
        """Publish the status.

        NotFoundError is raised when the resource is gone or another one has taken its name.
        """
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": key.name, "namespace": key.namespace, "uid": uid},
            "status": status,
        }
        try:
            return await self._send(
                ApiRequest(
                    "PATCH",
                    f"{API_KINDS[RESOURCE].path(key.namespace, key.name)}/status",
                    # The whole status is ours, whoever else may have written into it.
                    query={"fieldManager": FIELD_MANAGER, "force": _format_bool(True)},
                    body=body,
                    content_type=APPLY,
                )
            )
        except ConflictError as error:
            raise NotFoundError(error.message, status=error.status) from error

    async def create_event(self, event: Manifest) -> None:
        """Record an event. One of the same name that exists already is the same event."""
        path = API_KINDS["Event"].path(event["metadata"]["namespace"])
        try:
            await self._send(ApiRequest("POST", path, body=event))
        except ConflictError:
            return

    async def find_last_event(self, namespace: str, uid: str, reason: str) -> Event | None:
        """Return the latest event about an object for a reason, or None where there is none any more."""
        selector = f"involvedObject.uid={uid},reason={reason}"
        events = [
            Event.parse(received)
            async for page in self._list_pages(
                API_KINDS["Event"].path(namespace), {"fieldSelector": selector}
            )
            for received in page
        ]
        return max(events, key=lambda event: event.last_timestamp, default=None)

    async def list_versions(self, kind: str, label: str) -> dict[str, str]:
        """Return the resource versions of all watched objects of a kind, by UID."""
        return {
            metadata.uid: metadata.resource_version
            async for page in self.list_pages(kind, label, _METADATA_ONLY)
            for metadata in (Object.parse(item).metadata for item in page)
        }

    async def list_labelled(self, kind: str, label: str) -> list[Received]:
        """Return all objects of a kind that carry a label."""
        return [received async for page in self.list_pages(kind, label) for received in page]

    async def list_in_namespace(self, kind: str, namespace: str) -> list[Received]:
        """Return all objects of a kind in a namespace, those of others too."""
        return [item async for page in self._list_pages(API_KINDS[kind].path(namespace), {}) for item in page]

    async def list_pages(
        self, kind: str, label: str, accept: str = "application/json"
    ) -> AsyncIterator[tuple[Received, ...]]:
        """Yield all watched objects of a kind, about a hundred at a time.

        Kinds that are watched by their label are listed by it.
        """
        api = API_KINDS[kind]
        selector = self._resource_selector if kind == RESOURCE else label
        is_filtered = api.namespaced and kind != CLAIM and bool(selector)
        query = {"labelSelector": selector} if is_filtered else {}
        for path in self._build_list_paths(api):
            async for page in self._list_pages(path, query, accept):
                yield page

    async def probe_list(self, kind: str, namespace: str) -> None:
        """Find out whether a kind can be listed in a namespace; RefusedError says why it cannot."""
        await self._send(ApiRequest("GET", API_KINDS[kind].path(namespace), query={"limit": "1"}))

    async def list_pod_pages(self, namespace: str, selector: str) -> AsyncIterator[tuple[Received, ...]]:
        """Yield the pods of a namespace that a label selector matches, as they are now, about a hundred at a
        time.
        """
        async for page in self._list_pages(API_KINDS[POD].path(namespace), {"labelSelector": selector}):
            yield page

    async def replace(self, kind: str, received: Received) -> Received:
        """Replace an object at the version that was read.

        ConflictError is raised when somebody else was quicker.
        """
        key = Object.parse(received).metadata.key
        return await self._send(
            ApiRequest("PUT", API_KINDS[kind].path(key.namespace, key.name), body=received)
        )

    async def serves(self, kind: str) -> bool:
        """Return whether the definition of a kind is installed and served."""
        api = API_KINDS[kind]
        try:
            discovery = Discovery.parse(
                await self._send(ApiRequest("GET", f"/apis/{api.group}/{api.version}"))
            )
        except NotFoundError:
            return False
        return any(resource.name == api.plural for resource in discovery.resources)

    async def has_group(self, group: str) -> bool:
        """Return whether anybody answers for an API group."""
        discovery = Discovery.parse(await self._send(ApiRequest("GET", "/apis")))
        return any(served.name == group for served in discovery.groups)

    async def get_version(self) -> ServerVersion:
        """Return what the API server says about its version."""
        return ServerVersion.parse(await self._send(ApiRequest("GET", "/version")))

    async def get_lease(self, namespace: str, name: str) -> Lease | None:
        """Return a Lease, or None when it does not exist."""
        lease = await self.get(namespace, ChildRef("Lease", name))
        return None if lease is None else Lease.parse(lease)

    async def create_lease(self, namespace: str, lease: Manifest) -> Lease:
        """Create a Lease. ConflictError is raised when somebody else was quicker."""
        path = API_KINDS["Lease"].path(namespace)
        return Lease.parse(await self._send(ApiRequest("POST", path, body=lease, is_election=True)))

    async def replace_lease(self, namespace: str, lease: Manifest) -> Lease:
        """Replace a Lease at the version that was read.

        ConflictError is raised when somebody else was quicker.
        """
        path = API_KINDS["Lease"].path(namespace, lease["metadata"]["name"])
        return Lease.parse(await self._send(ApiRequest("PUT", path, body=lease, is_election=True)))

    async def _list_pages(
        self, path: str, query: Mapping[str, str], accept: str = "application/json"
    ) -> AsyncIterator[tuple[Received, ...]]:
        next_query = {**query, "limit": str(_PAGE)}
        while True:
            page = ObjectList.parse(
                await self._send(ApiRequest("GET", path, query=next_query, accept=accept))
            )
            yield page.items
            if not page.metadata.continue_:
                return
            next_query["continue"] = page.metadata.continue_

    def _build_list_paths(self, api: ApiKind) -> list[str]:
        """Return the paths that have to be listed to see everything that is watched."""
        if not api.namespaced or not self._namespaces:
            return [api.path()]
        return [api.path(namespace) for namespace in self._namespaces]

    async def _send(self, request: ApiRequest) -> Received:
        """Send a request and return the object in its answer. Raises ApiError."""
        if request.method != "GET" and not request.is_election and not self._may_write():
            raise UnavailableError("nothing is written: this process may no longer lead")
        began, status = time.monotonic(), 0
        try:
            prepared = await self._client.param_serialize(
                request.method,
                request.url,
                header_params=request.headers,
                body=request.body,
                auth_settings=["BearerToken"],
            )
            response = await self._client.call_api(*prepared, _request_timeout=self._timeout)
            answer = await response.read()
            status = response.status
        except (aiohttp.ClientError, client.ApiException, TimeoutError, OSError) as error:
            message = str(error) or "no answer in time"
            raise UnavailableError(f"{type(error).__name__}: {message}") from error
        finally:
            self._on_request(request.method, status, time.monotonic() - began)
        return parse_response(status, answer)


def _format_bool(value: bool) -> str:
    return "true" if value else "false"


class _ContextDetails(View):
    """The fields that are read of a context of a kubeconfig."""

    namespace: Text


class _CurrentContext(View):
    """The current context of a kubeconfig, as the client library returns it."""

    context: Part[_ContextDetails]


def read_current_namespace() -> str:
    """Return the namespace of the kubeconfig's current context."""
    try:
        _, current = config.list_kube_config_contexts()
    except config.ConfigException:
        return "default"
    return _CurrentContext.parse(current).context.namespace or "default"


_load_kube_config: Callable[..., Awaitable[Any]] = config.load_kube_config


async def _load_credentials() -> None:
    """Load the credentials of the pod, or those of the user's kubeconfig when this process does not run in a
    pod.
    """
    try:
        await asyncio.to_thread(config.load_incluster_config)
    except config.ConfigException:
        await _load_kube_config()
