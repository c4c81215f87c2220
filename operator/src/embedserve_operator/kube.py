"""The one module that speaks to the API server; no other imports the client library.

Every request has a time limit, and every failure becomes one of this package's errors.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self

import aiohttp
from kubernetes.aio import client, config

from embedserve_operator.api.types import API_VERSION, GROUP, KIND, PLURAL, VERSION
from embedserve_operator.errors import ApiError, ConflictError, NotFoundError, RefusedError, UnavailableError
from embedserve_operator.wire import Manifest, Received, dig, mappings, text
from embedserve_operator.world import ChildRef, Key

FIELD_MANAGER = "embedserve-operator"
APPLY = "application/apply-patch+yaml"
_METADATA_ONLY = {"Accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}
_REFUSALS = frozenset(
    {
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.UNPROCESSABLE_ENTITY,
    }
)

Call = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class _Verbs:
    """The client's methods for one kind of child."""

    get: Call
    apply: Call
    delete: Call
    list_all: Call


class Kube:
    """A connection to the API server. Use as an asynchronous context manager."""

    def __init__(self, *, request_timeout: float) -> None:
        self._timeout = request_timeout

    async def __aenter__(self) -> Self:
        await _load_credentials()
        self._client: Any = client.ApiClient()
        core, apps = client.CoreV1Api(self._client), client.AppsV1Api(self._client)
        # Untyped on purpose: the annotations ask for model objects where plain ones are taken as well, and
        # are wrong about numbers of seconds.
        self._custom: Any = client.CustomObjectsApi(self._client)
        self._leases: Any = client.CoordinationV1Api(self._client)
        self._verbs = {
            "ConfigMap": _verbs(core, "config_map"),
            "Service": _verbs(core, "service"),
            "Deployment": _verbs(apps, "deployment"),
        }
        self._list_pods: Call = core.list_pod_for_all_namespaces_without_preload_content
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    async def get(self, namespace: str, ref: ChildRef) -> Received | None:
        """A child object, or None when it does not exist."""
        try:
            return await self._call(
                self._verbs[ref.kind].get(ref.name, namespace, _request_timeout=self._timeout)
            )
        except NotFoundError:
            return None

    async def apply(self, manifest: Manifest, *, force: bool) -> Received:
        """Server-side apply of a child; without `force` a field that somebody else owns raises
        ConflictError."""
        meta = manifest["metadata"]
        request = self._verbs[manifest["kind"]].apply(
            meta["name"],
            meta["namespace"],
            manifest,
            field_manager=FIELD_MANAGER,
            force=force,
            field_validation="Strict",
            _content_type=APPLY,
            _request_timeout=self._timeout,
        )
        return await self._call(request)

    async def delete(self, namespace: str, ref: ChildRef, uid: str) -> None:
        """Delete the child with that UID; one that is gone, or another of the same name, is left alone."""
        options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        try:
            await self._call(
                self._verbs[ref.kind].delete(
                    ref.name, namespace, body=options, _request_timeout=self._timeout
                )
            )
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
        request = self._custom.patch_namespaced_custom_object_status_without_preload_content(
            GROUP,
            VERSION,
            key.namespace,
            PLURAL,
            key.name,
            body,
            field_manager=FIELD_MANAGER,
            # All of the status is ours, whoever may have written into it.
            force=True,
            _content_type=APPLY,
            _request_timeout=self._timeout,
        )
        try:
            return await self._call(request)
        except ConflictError as error:
            raise NotFoundError(error.message, status=error.status) from error

    async def existing_uids(self, kind: str, label: str) -> frozenset[str]:
        """UIDs of all objects of a kind that carry a label, or of all resources for our own kind."""
        found = await self._call(self._list_metadata(kind, label))
        return frozenset(text(item, "metadata", "uid") for item in mappings(found, "items"))

    def _list_metadata(self, kind: str, label: str) -> Awaitable[Any]:
        request: Awaitable[Any]
        if kind == KIND:
            request = self._custom.list_cluster_custom_object_without_preload_content(
                GROUP, VERSION, PLURAL, _headers=dict(_METADATA_ONLY), _request_timeout=self._timeout
            )
            return request
        list_all = self._list_pods if kind == "Pod" else self._verbs[kind].list_all
        return list_all(label_selector=label, _headers=dict(_METADATA_ONLY), _request_timeout=self._timeout)

    async def serves_our_kind(self) -> bool:
        """Whether the CustomResourceDefinition is installed and served."""
        request = self._custom.get_api_resources_without_preload_content(
            GROUP, VERSION, _request_timeout=self._timeout
        )
        try:
            found = await self._call(request)
        except NotFoundError:
            return False
        return any(item.get("name") == PLURAL for item in mappings(found, "resources"))

    async def get_lease(self, namespace: str, name: str) -> Received | None:
        """A Lease, or None when it does not exist."""
        request = self._leases.read_namespaced_lease_without_preload_content(
            name, namespace, _request_timeout=self._timeout
        )
        try:
            return await self._call(request)
        except NotFoundError:
            return None

    async def create_lease(self, namespace: str, lease: Manifest) -> Received:
        """Create a Lease; ConflictError when somebody was quicker."""
        request = self._leases.create_namespaced_lease_without_preload_content(
            namespace, lease, _request_timeout=self._timeout
        )
        return await self._call(request)

    async def replace_lease(self, namespace: str, lease: Manifest) -> Received:
        """Replace a Lease at the version that was read; ConflictError when somebody was quicker."""
        request = self._leases.replace_namespaced_lease_without_preload_content(
            lease["metadata"]["name"], namespace, lease, _request_timeout=self._timeout
        )
        return await self._call(request)

    async def _call(self, request: Awaitable[Any]) -> Received:
        try:
            response = await request
            body = await response.read()
        except (aiohttp.ClientError, client.ApiException, TimeoutError, OSError) as error:
            words = str(error) or "no answer in time"
            raise UnavailableError(f"{type(error).__name__}: {words}") from error
        return _content(response.status, body)


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


def _verbs(api: Any, noun: str) -> _Verbs:
    return _Verbs(
        get=getattr(api, f"read_namespaced_{noun}_without_preload_content"),
        apply=getattr(api, f"patch_namespaced_{noun}_without_preload_content"),
        delete=getattr(api, f"delete_namespaced_{noun}_without_preload_content"),
        list_all=getattr(api, f"list_{noun}_for_all_namespaces_without_preload_content"),
    )


_load_kube_config: Call = config.load_kube_config


async def _load_credentials() -> None:
    """Those of the pod, or of the user's kubeconfig when there is no pod around this process."""
    try:
        await asyncio.to_thread(config.load_incluster_config)
    except config.ConfigException:
        await _load_kube_config()
