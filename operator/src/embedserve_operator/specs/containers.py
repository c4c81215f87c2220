"""The two containers of a pod: one that fetches the model before the start, one that serves it."""

from __future__ import annotations

from typing import Any

from embedserve_operator.api.sources import SecretKeyRef
from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.settings import RenderSettings
from embedserve_operator.specs.pin import is_movable, pinned
from embedserve_operator.specs.placement import accelerators, hardware_of, image_of
from embedserve_operator.specs.runtime_config import (
    GRPC_PORT,
    MANAGEMENT_PORT,
    PINNED_GRPC_PORT,
    PINNED_PORT,
    SERVING_PORT,
    STORE_PATH,
    VOLUME_PATH,
)
from embedserve_operator.specs.volume import VOLUME
from embedserve_operator.wire import Manifest
from embedserve_operator.world import JobTask, Resource

CONFIG_VOLUME = "config"
CONFIG_PATH = "/etc/embedserve"
FETCH: JobTask = "fetch"
RUNTIME = "runtime"
_AWS_NEEDED = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_AWS_OPTIONAL = ("AWS_SESSION_TOKEN", "AWS_REGION")
KERNELS = "kernels"
"""The folder of the store that kernels compiled for an accelerator are kept in."""
_START_LIMIT_SECONDS = 300
"""A process that opens no port for so long is restarted. Loading a model does not count, however large it is:
the port opens before."""


def task_container(
    resource: Resource,
    spec: EmbeddingServiceSpec,
    settings: RenderSettings,
    *,
    task: JobTask,
    revision: str,
    read_only: bool = False,
) -> Manifest:
    """Fills a volume with the model, or adds its converted form; `read_only` only looks for what is there."""
    container = _container(task, task, spec, settings, read_only=read_only)
    if task == FETCH and not read_only:
        container["env"] += _credentials(spec)
        if is_movable(spec):
            container["env"].append(pinned(resource, revision))
    return {**container, **_resources(spec, settings, accelerated=False)}


def _credentials(spec: EmbeddingServiceSpec) -> list[Manifest]:
    source = spec.model.source
    kind = source.hugging_face or source.http
    found = []
    if kind is not None and kind.token_secret_ref is not None:
        found.append(_from_secret("EMBEDSERVE_MODEL__TOKEN", kind.token_secret_ref))
    if source.s3 is not None and source.s3.secret_ref is not None:
        found += [_of_aws(source.s3.secret_ref.name, variable) for variable in _AWS_NEEDED]
        found += [_of_aws(source.s3.secret_ref.name, variable, optional=True) for variable in _AWS_OPTIONAL]
    return found


def _of_aws(secret: str, variable: str, *, optional: bool = False) -> Manifest:
    ref = {"name": secret, "key": variable, **({"optional": True} if optional else {})}
    return {"name": variable, "valueFrom": {"secretKeyRef": ref}}


def runtime_container(
    spec: EmbeddingServiceSpec,
    settings: RenderSettings,
    *,
    read_only: bool = False,
    keeps_kernels: bool = False,
    memory: str | None = None,
) -> Manifest:
    """Serves the model, from a volume that it cannot write when `read_only`. `keeps_kernels`: but for the folder of
    compiled kernels, where it has an accelerator to compile for. `memory`: its request where the user says nothing of
    memory."""
    container = _container(RUNTIME, "serve", spec, settings, read_only=read_only)
    if keeps_kernels and accelerators(spec, settings) is not None:
        mount = {"name": VOLUME, "mountPath": f"{STORE_PATH}/{KERNELS}", "subPath": KERNELS}
        container["volumeMounts"].append(mount)
    if spec.auth is not None:
        container["env"].append(_from_secret("EMBEDSERVE_SERVER__API_KEYS", spec.auth.secret_ref))
    return {
        **container,
        **_resources(spec, settings, accelerated=True, memory=memory),
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in _ports(spec)],
        # Loading a large model takes minutes and must not get the pod killed: start-up and liveness ask
        # whether the process answers, only readiness asks whether the model does.
        "startupProbe": _probe("/livez", period=2, failures=_START_LIMIT_SECONDS // 2),
        "livenessProbe": _probe("/livez", period=10, failures=6),
        "readinessProbe": _probe("/readyz", period=2, failures=2),
    }


def _ports(spec: EmbeddingServiceSpec) -> list[tuple[str, int]]:
    grpc = [("grpc", GRPC_PORT), ("pinned-grpc", PINNED_GRPC_PORT)]
    return [
        ("http", SERVING_PORT),
        ("pinned", PINNED_PORT),
        *(grpc if spec.service.grpc_port is not None else ()),
        ("management", MANAGEMENT_PORT),
    ]


def _from_secret(variable: str, ref: SecretKeyRef) -> Manifest:
    """The kubelet puts the value in; the operator never sees it."""
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": ref.name, "key": ref.key}}}


def _container(
    name: str, command: str, spec: EmbeddingServiceSpec, settings: RenderSettings, *, read_only: bool
) -> Manifest:
    image = image_of(spec, settings)
    mounts: list[Manifest] = [
        {"name": CONFIG_VOLUME, "mountPath": CONFIG_PATH, "readOnly": True},
        {"name": VOLUME, "mountPath": STORE_PATH, **({"readOnly": True} if read_only else {})},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    if not spec.model.source.is_remote:
        mounts.append({"name": "source", "mountPath": VOLUME_PATH, "readOnly": True})
    return {
        "name": name,
        "image": image.reference,
        "imagePullPolicy": image.pull_policy,
        "args": [command, "--config", f"{CONFIG_PATH}/runtime.yaml"],
        "env": [{"name": "HOME", "value": "/tmp"}, *(one.as_wire() for one in spec.pod.env or ())],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "volumeMounts": [*mounts, *(mount.as_wire() for mount in spec.pod.volume_mounts or ())],
    }


def _resources(
    spec: EmbeddingServiceSpec, settings: RenderSettings, *, accelerated: bool, memory: str | None = None
) -> dict[str, dict[str, Any]]:
    """What the user says, whole CPUs of the class where he says nothing of CPUs, the memory of the model where he says
    nothing of memory, and the accelerators."""
    given = spec.resources.as_wire() if spec.resources is not None else {}
    limits, requests = dict(given.get("limits", {})), dict(given.get("requests", {}))
    cpus, asked = hardware_of(spec, settings).cpus, accelerators(spec, settings)
    if cpus is not None and asked is not None:
        # They are for feeding whole accelerators: Jobs have none, and slices are known by another name.
        is_whole = accelerated and spec.hardware.resource_name is None
        cpus = cpus * asked[1] if is_whole else None
    if cpus is not None and "cpu" not in requests and "cpu" not in limits:
        requests["cpu"] = cpus
    if memory is not None:
        requests["memory"] = memory
    if accelerated and asked is not None:
        name, count = asked
        limits[name] = requests[name] = count
    found = {key: value for key, value in (("limits", limits), ("requests", requests)) if value}
    return {"resources": found} if found else {}


def _probe(path: str, *, period: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": "management", "scheme": "HTTP"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
