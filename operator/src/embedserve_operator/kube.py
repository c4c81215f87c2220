"""The one module that speaks to the API server; no other imports the client library.

Every request has a time limit, and every failure becomes one of this package's errors. Of the library only the
connection is used (credentials, TLS, one session): its classes for single APIs cost more memory than all the rest of
the operator, and take plain objects no better.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import client, config

from embedserve_operator.api.types import API_VERSION, KIND
from embedserve_operator.errors import ApiError, ConflictError, NotFoundError, RefusedError, UnavailableError
from embedserve_operator.kinds import API_KINDS, CLAIM, POD, RESOURCE, ApiKind
from embedserve_operator.wire import Manifest, Received, dig, mappings, text
from embedserve_operator.world import ChildRef, Key

FIELD_MANAGER = "embedserve-operator"
SCALE_MANAGER = "embedserve-operator-scale"
"""Claims the number of pods for an autoscaler; never withdrawn."""
APPLY = "application/apply-patch+yaml"
_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_PAGE = 100
_REFUSALS = frozenset(
    {
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.UNPROCESSABLE_ENTITY,
    }
)


class Kube:
    """A connection to the API server. Use as an asynchronous context manager."""

    def __init__(self, *, request_timeout: float, namespaces: tuple[str, ...] = ()) -> None:
        self._timeout = request_timeout
        self._namespaces = namespaces
        self._may_write: Callable[[], bool] = lambda: True

    def write_only_while(self, may_write: Callable[[], bool]) -> None:
        """From now on, nothing but Leases is written while that is false; UnavailableError says so."""
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
        """A child object, or None when it does not exist."""
        try:
            return await self._call("GET", API_KINDS[ref.kind].path(namespace, ref.name))
        except NotFoundError:
            return None

    async def apply(self, manifest: Manifest, *, force: bool, manager: str = FIELD_MANAGER) -> Received:
        """Server-side apply of an object; without `force` a field that somebody else owns raises
        ConflictError."""
        meta = manifest["metadata"]
        return await self._call(
            "PATCH",
            API_KINDS[manifest["kind"]].path(meta.get("namespace"), meta["name"]),
            query={"fieldManager": manager, "force": _flag(force), "fieldValidation": "Strict"},
            body=manifest,
            content_type=APPLY,
        )

    async def create(self, manifest: Manifest, *, dry_run: bool = False) -> Received:
        """Create an object; ConflictError when one of that name exists. dry_run: only look whether it could be."""
        return await self._call(
            "POST",
            API_KINDS[manifest["kind"]].path(manifest["metadata"].get("namespace")),
            query={
                "fieldManager": FIELD_MANAGER,
                "fieldValidation": "Strict",
                **({"dryRun": "All"} if dry_run else {}),
            },
            body=manifest,
        )

    async def delete(self, namespace: str, ref: ChildRef, uid: str) -> None:
        """Delete the child with that UID; one that is gone, or another of the same name, is left alone."""
        options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        try:
            await self._call("DELETE", API_KINDS[ref.kind].path(namespace, ref.name), body=options)
        except (NotFoundError, ConflictError):
            return

    async def apply_status(self, key: Key, uid: str, status: Manifest) -> Received:
        """Publish the status; NotFoundError when the resource is gone or another one took its name."""
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": key.name, "namespace": key.namespace, "uid": uid},
            "status": status,
        }
        try:
            return await self._call(
                "PATCH",
                f"{API_KINDS[RESOURCE].path(key.namespace, key.name)}/status",
                # All of the status is ours, whoever may have written into it.
                query={"fieldManager": FIELD_MANAGER, "force": _flag(True)},
                body=body,
                content_type=APPLY,
            )
        except ConflictError as error:
            raise NotFoundError(error.message, status=error.status) from error

    async def create_event(self, event: Manifest) -> None:
        """Record an event; one of the same name that exists already is the same event."""
        path = API_KINDS["Event"].path(event["metadata"]["namespace"])
        try:
            await self._call("POST", path, body=event)
        except ConflictError:
            return

    async def existing_versions(self, kind: str, label: str) -> dict[str, str]:
        """Resource version by UID of all objects of a kind, of those with a label where only these are watched."""
        return {
            text(item, "metadata", "uid"): text(item, "metadata", "resourceVersion")
            async for page in self.pages(kind, label, _METADATA_ONLY)
            for item in page
        }

    async def list_labelled(self, kind: str, label: str) -> list[Received]:
        """All objects of a kind that carry a label."""
        return [one async for page in self.pages(kind, label) for one in page]

    async def pages(
        self, kind: str, label: str, accept: str = "application/json"
    ) -> AsyncIterator[list[Received]]:
        """All objects of a kind, of those with a label where only these are watched, some hundred at a time."""
        api = API_KINDS[kind]
        query = {} if kind in (RESOURCE, CLAIM) or not api.namespaced else {"labelSelector": label}
        for path in self._collections(api):
            async for page in self._pages(path, query, accept):
                yield page

    async def pod_pages(self, namespace: str, selector: str) -> AsyncIterator[list[Received]]:
        """The pods of a namespace that a label selector admits, as they are now, some hundred at a time."""
        async for page in self._pages(API_KINDS[POD].path(namespace), {"labelSelector": selector}):
            yield page

    async def replace(self, kind: str, received: Received) -> Received:
        """Replace an object at the version that was read; ConflictError when somebody was quicker."""
        path = API_KINDS[kind].path(
            text(received, "metadata", "namespace"), text(received, "metadata", "name")
        )
        return await self._call("PUT", path, body=received)

    async def serves(self, kind: str) -> bool:
        """Whether the definition of a kind is installed and served."""
        api = API_KINDS[kind]
        try:
            found = await self._call("GET", f"/apis/{api.group}/{api.version}")
        except NotFoundError:
            return False
        return any(item.get("name") == api.plural for item in mappings(found, "resources"))

    async def has_group(self, group: str) -> bool:
        """Whether anybody answers for a group of the API."""
        found = await self._call("GET", "/apis")
        return any(item.get("name") == group for item in mappings(found, "groups"))

    async def version(self) -> Received:
        """What the API server says of itself."""
        return await self._call("GET", "/version")

    async def get_lease(self, namespace: str, name: str) -> Received | None:
        """A Lease, or None when it does not exist."""
        return await self.get(namespace, ChildRef("Lease", name))

    async def create_lease(self, namespace: str, lease: Manifest) -> Received:
        """Create a Lease; ConflictError when somebody was quicker."""
        return await self._call("POST", API_KINDS["Lease"].path(namespace), body=lease, always=True)

    async def replace_lease(self, namespace: str, lease: Manifest) -> Received:
        """Replace a Lease at the version that was read; ConflictError when somebody was quicker."""
        path = API_KINDS["Lease"].path(namespace, lease["metadata"]["name"])
        return await self._call("PUT", path, body=lease, always=True)

    async def _pages(
        self, path: str, query: Mapping[str, str], accept: str = "application/json"
    ) -> AsyncIterator[list[Received]]:
        asked = {**query, "limit": str(_PAGE)}
        while True:
            found = await self._call("GET", path, query=asked, accept=accept)
            yield mappings(found, "items")
            more = text(found, "metadata", "continue")
            if not more:
                return
            asked["continue"] = more

    def _collections(self, api: ApiKind) -> list[str]:
        """What has to be listed to see all that is watched."""
        if not api.namespaced or not self._namespaces:
            return [api.path()]
        return [api.path(namespace) for namespace in self._namespaces]

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Received | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        always: bool = False,
    ) -> Received:
        if method != "GET" and not always and not self._may_write():
            raise UnavailableError("nothing is written: this process may no longer lead")
        headers = {"Accept": accept}
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            prepared = await self._client.param_serialize(
                method,
                f"{path}?{urlencode(query)}" if query else path,
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            response = await self._client.call_api(*prepared, _request_timeout=self._timeout)
            answer = await response.read()
        except (aiohttp.ClientError, client.ApiException, TimeoutError, OSError) as error:
            words = str(error) or "no answer in time"
            raise UnavailableError(f"{type(error).__name__}: {words}") from error
        return _content(response.status, answer)


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _content(status: int, body: bytes) -> Received:
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if status < HTTPStatus.MULTIPLE_CHOICES and isinstance(found, Mapping):
        return found
    message = text(found, "message") or f"answer {status} from the API server"
    if status == HTTPStatus.NOT_FOUND:
        raise NotFoundError(message, status=status)
    if status == HTTPStatus.CONFLICT:
        raise ConflictError(message, status=status)
    if status in _REFUSALS:
        raise RefusedError(message, status=status)
    if status >= HTTPStatus.TOO_MANY_REQUESTS or dig(found, "kind") is None:
        raise UnavailableError(message, status=status)
    raise ApiError(message, status=status)


def current_namespace() -> str:
    """That of the kubeconfig's current context."""
    try:
        _, current = config.list_kube_config_contexts()
    except config.ConfigException:
        return "default"
    return text(current, "context", "namespace") or "default"


_load_kube_config: Callable[..., Awaitable[Any]] = config.load_kube_config


async def _load_credentials() -> None:
    """Those of the pod, or of the user's kubeconfig when there is no pod around this process."""
    try:
        await asyncio.to_thread(config.load_incluster_config)
    except config.ConfigException:
        await _load_kube_config()
