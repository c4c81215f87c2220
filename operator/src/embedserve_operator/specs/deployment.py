"""The Deployment of one revision. Its pod template is a function of the spec and the images alone: an upgrade
of the operator that leaves the runtime image as it is restarts no pod."""

from __future__ import annotations

from typing import Any

from embedserve_operator.api.types import EmbeddingServiceSpec, Resources, SecretKeyRef
from embedserve_operator.hardware import CLASSES
from embedserve_operator.settings import RenderSettings
from embedserve_operator.specs.metadata import TEMPLATE_HASH, fingerprinted, labels, metadata, selector
from embedserve_operator.specs.runtime_config import (
    ENDPOINT_DRAIN_SECONDS,
    MANAGEMENT_PORT,
    SERVING_PORT,
    SHUTDOWN_GRACE_SECONDS,
    STORE_PATH,
    VOLUME_PATH,
)
from embedserve_operator.wire import Manifest, short_hash
from embedserve_operator.world import Resource

CONFIG_VOLUME = "config"
CONFIG_PATH = "/etc/embedserve"
FETCH = "fetch"
RUNTIME = "runtime"
_USER = 65532
_STOP_MARGIN_SECONDS = 5
"""Beyond drain and grace, so that the kubelet kills only what no longer obeys."""
_START_LIMIT_SECONDS = 300
"""A process that opens no port for so long is restarted. Loading a model does not count: the port opens
before."""


def deployment_name(resource: Resource, revision: str) -> str:
    """Name of the Deployment of a revision."""
    return f"{resource.key.name}-{revision}"


def wanted_replicas(spec: EmbeddingServiceSpec) -> int:
    """Pods that should run."""
    return 0 if spec.suspend else spec.replicas


def deployment(
    resource: Resource, spec: EmbeddingServiceSpec, settings: RenderSettings, *, revision: str, config: str
) -> Manifest:
    """The Deployment of a revision, mounting the ConfigMap named `config`."""
    hardware = CLASSES[spec.hardware.class_]
    return fingerprinted(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata(resource, deployment_name(resource, revision), revision),
            "spec": {
                "replicas": wanted_replicas(spec),
                # An older ReplicaSet could not be rolled back to: its ConfigMap goes with its last pod.
                "revisionHistoryLimit": 0,
                "selector": {"matchLabels": selector(resource, revision)},
                "strategy": {
                    "type": "RollingUpdate",
                    "rollingUpdate": {
                        "maxSurge": hardware.max_surge,
                        "maxUnavailable": hardware.max_unavailable,
                    },
                },
                "template": pod_template(resource, spec, settings, revision=revision, config=config),
            },
        }
    )


def pod_template(
    resource: Resource, spec: EmbeddingServiceSpec, settings: RenderSettings, *, revision: str, config: str
) -> Manifest:
    """The pod template, with the hash of itself, by which pods of an older template are told apart."""
    template: Manifest = {
        "metadata": {"labels": labels(resource, revision)},
        "spec": _pod(spec, settings, config),
    }
    annotations = {
        "kubectl.kubernetes.io/default-container": RUNTIME,
        TEMPLATE_HASH: short_hash(template),
    }
    return {**template, "metadata": {**template["metadata"], "annotations": annotations}}


def template_hash(manifest: Manifest) -> str:
    """The hash that `pod_template` put into a Deployment."""
    return str(manifest["spec"]["template"]["metadata"]["annotations"][TEMPLATE_HASH])


def _pod(spec: EmbeddingServiceSpec, settings: RenderSettings, config: str) -> Manifest:
    volumes: list[Manifest] = [
        {"name": CONFIG_VOLUME, "configMap": {"name": config}},
        {"name": "models", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
    ]
    volume = spec.model.source.volume
    if volume is not None:
        claim = {"claimName": volume.claim_name, "readOnly": True}
        volumes.append({"name": "source", "persistentVolumeClaim": claim})
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "nodeSelector": dict(CLASSES[spec.hardware.class_].node_selector),
        "terminationGracePeriodSeconds": ENDPOINT_DRAIN_SECONDS
        + SHUTDOWN_GRACE_SECONDS
        + _STOP_MARGIN_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": [_fetch_container(spec, settings)],
        "containers": [_runtime_container(spec, settings)],
        "volumes": volumes,
    }


def _fetch_container(spec: EmbeddingServiceSpec, settings: RenderSettings) -> Manifest:
    container = _container(FETCH, FETCH, spec, settings)
    hub = spec.model.source.hugging_face
    if hub is not None and hub.token_secret_ref is not None:
        container["env"].append(_token(hub.token_secret_ref))
    return container


def _token(ref: SecretKeyRef) -> Manifest:
    """The kubelet puts the token in; the operator never sees it."""
    return {
        "name": "EMBEDSERVE_MODEL__TOKEN",
        "valueFrom": {"secretKeyRef": {"name": ref.name, "key": ref.key}},
    }


def _runtime_container(spec: EmbeddingServiceSpec, settings: RenderSettings) -> Manifest:
    return {
        **_container(RUNTIME, "serve", spec, settings),
        "ports": [
            {"name": "http", "containerPort": SERVING_PORT, "protocol": "TCP"},
            {"name": "management", "containerPort": MANAGEMENT_PORT, "protocol": "TCP"},
        ],
        # Loading a large model takes minutes and must not get the pod killed: start-up and liveness ask
        # whether the process answers, only readiness asks whether the model does.
        "startupProbe": _probe("/livez", period=2, failures=_START_LIMIT_SECONDS // 2),
        "livenessProbe": _probe("/livez", period=10, failures=6),
        "readinessProbe": _probe("/readyz", period=2, failures=2),
    }


def _container(name: str, command: str, spec: EmbeddingServiceSpec, settings: RenderSettings) -> Manifest:
    mounts: list[Manifest] = [
        {"name": CONFIG_VOLUME, "mountPath": CONFIG_PATH, "readOnly": True},
        {"name": "models", "mountPath": STORE_PATH},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    if spec.model.source.volume is not None:
        mounts.append({"name": "source", "mountPath": VOLUME_PATH, "readOnly": True})
    container: Manifest = {
        "name": name,
        "image": settings.runtime_image,
        "imagePullPolicy": settings.runtime_image_pull_policy,
        "args": [command, "--config", f"{CONFIG_PATH}/runtime.yaml"],
        "env": [{"name": "HOME", "value": "/tmp"}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "volumeMounts": mounts,
    }
    if spec.resources is not None:
        container["resources"] = _resources(spec.resources)
    return container


def _resources(resources: Resources) -> dict[str, Any]:
    return resources.model_dump(by_alias=True, exclude_none=True, mode="json")


def _probe(path: str, *, period: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": "management", "scheme": "HTTP"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
