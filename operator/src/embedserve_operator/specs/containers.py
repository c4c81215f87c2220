"""The two containers of a pod: one that fetches the model before the start, one that serves it."""

from __future__ import annotations

from typing import Any

from embedserve_operator.api.types import EmbeddingServiceSpec, SecretKeyRef
from embedserve_operator.settings import RenderSettings
from embedserve_operator.specs.placement import accelerators, hardware_of, image_of
from embedserve_operator.specs.runtime_config import (
    MANAGEMENT_PORT,
    PINNED_PORT,
    SERVING_PORT,
    STORE_PATH,
    VOLUME_PATH,
)
from embedserve_operator.wire import Manifest

CONFIG_VOLUME = "config"
CONFIG_PATH = "/etc/embedserve"
FETCH = "fetch"
RUNTIME = "runtime"
_START_LIMIT_SECONDS = 300
"""A process that opens no port for so long is restarted. Loading a model does not count, however large it is:
the port opens before."""


def fetch_container(spec: EmbeddingServiceSpec, settings: RenderSettings) -> Manifest:
    """Fills the pod's own volume with the model."""
    container = _container(FETCH, "fetch", spec, settings)
    hub = spec.model.source.hugging_face
    if hub is not None and hub.token_secret_ref is not None:
        container["env"].append(_from_secret("EMBEDSERVE_MODEL__TOKEN", hub.token_secret_ref))
    return {**container, **_resources(spec, settings, accelerated=False)}


def runtime_container(spec: EmbeddingServiceSpec, settings: RenderSettings) -> Manifest:
    """Serves the model."""
    container = _container(RUNTIME, "serve", spec, settings)
    if spec.auth is not None:
        container["env"].append(_from_secret("EMBEDSERVE_SERVER__API_KEYS", spec.auth.secret_ref))
    return {
        **container,
        **_resources(spec, settings, accelerated=True),
        "ports": [
            {"name": "http", "containerPort": SERVING_PORT, "protocol": "TCP"},
            {"name": "pinned", "containerPort": PINNED_PORT, "protocol": "TCP"},
            {"name": "management", "containerPort": MANAGEMENT_PORT, "protocol": "TCP"},
        ],
        # Loading a large model takes minutes and must not get the pod killed: start-up and liveness ask
        # whether the process answers, only readiness asks whether the model does.
        "startupProbe": _probe("/livez", period=2, failures=_START_LIMIT_SECONDS // 2),
        "livenessProbe": _probe("/livez", period=10, failures=6),
        "readinessProbe": _probe("/readyz", period=2, failures=2),
    }


def _from_secret(variable: str, ref: SecretKeyRef) -> Manifest:
    """The kubelet puts the value in; the operator never sees it."""
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": ref.name, "key": ref.key}}}


def _container(name: str, command: str, spec: EmbeddingServiceSpec, settings: RenderSettings) -> Manifest:
    image = image_of(spec, settings)
    mounts: list[Manifest] = [
        {"name": CONFIG_VOLUME, "mountPath": CONFIG_PATH, "readOnly": True},
        {"name": "models", "mountPath": STORE_PATH},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    if spec.model.source.hugging_face is None:
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
    spec: EmbeddingServiceSpec, settings: RenderSettings, *, accelerated: bool
) -> dict[str, dict[str, Any]]:
    """What the user says, whole CPUs of the class where he says nothing of CPUs, and the accelerators."""
    given = spec.resources.as_wire() if spec.resources is not None else {}
    limits, requests = dict(given.get("limits", {})), dict(given.get("requests", {}))
    cpus = hardware_of(spec, settings).cpus
    if cpus is not None and "cpu" not in requests and "cpu" not in limits:
        requests["cpu"] = cpus
    asked = accelerators(spec, settings)
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
