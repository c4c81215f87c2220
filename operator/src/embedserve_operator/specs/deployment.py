"""The Deployment of one revision.

Its pod template is a function of the spec, the images and the RuntimeClasses that exist: an upgrade of the operator
that leaves the runtime image as it is restarts no pod.
"""

from __future__ import annotations

from typing import Any

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.nodes import ClusterFacts
from embedserve_operator.settings import RenderSettings
from embedserve_operator.specs.containers import CONFIG_VOLUME, RUNTIME, fetch_container, runtime_container
from embedserve_operator.specs.metadata import (
    SCALED_BY,
    SPACE_LABEL,
    TEMPLATE_HASH,
    fingerprinted,
    labels,
    metadata,
    selector,
)
from embedserve_operator.specs.placement import hardware_of, placement
from embedserve_operator.specs.runtime_config import ENDPOINT_DRAIN_SECONDS, grace_seconds
from embedserve_operator.wire import Manifest, short_hash
from embedserve_operator.world import Resource

_USER = 65532
_STOP_MARGIN_SECONDS = 5
"""Beyond drain and grace, so that the kubelet kills only what no longer obeys."""


def deployment_name(resource: Resource, revision: str) -> str:
    """Name of the Deployment of a revision."""
    return f"{resource.key.name}-{revision}"


def fixed_replicas(spec: EmbeddingServiceSpec) -> int | None:
    """Pods that the spec asks for; None where an autoscaler decides."""
    if spec.suspend:
        return 0
    if spec.autoscaling is not None:
        return None
    return 1 if spec.replicas is None else spec.replicas


def deployment(
    resource: Resource,
    spec: EmbeddingServiceSpec,
    settings: RenderSettings,
    cluster: ClusterFacts,
    *,
    revision: str,
    config: str,
    space: str | None,
) -> Manifest:
    """The Deployment of a revision, mounting the ConfigMap named `config`. `space`: what it makes, when that is
    known; the label is on the Deployment alone, since one on the template would restart the pods."""
    hardware = hardware_of(spec, settings)
    meta = metadata(resource, deployment_name(resource, revision), revision)
    replicas = fixed_replicas(spec)
    if replicas is None:
        meta["annotations"] = {SCALED_BY: "autoscaler"}
    made = fingerprinted(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": meta,
            "spec": {
                # Never sent where an autoscaler writes it.
                **({} if replicas is None else {"replicas": replicas}),
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
                "template": pod_template(resource, spec, settings, cluster, revision=revision, config=config),
            },
        }
    )
    if space is not None:
        # Not in the fingerprint: learning what the pods make does not change what runs.
        made["metadata"]["labels"] = {**made["metadata"]["labels"], SPACE_LABEL: space}
    return made


def pod_template(
    resource: Resource,
    spec: EmbeddingServiceSpec,
    settings: RenderSettings,
    cluster: ClusterFacts,
    *,
    revision: str,
    config: str,
) -> Manifest:
    """The pod template, with the hash of itself, by which pods of an older template are told apart."""
    template: Manifest = {
        "metadata": {"labels": {**(spec.pod.labels or {}), **labels(resource, revision)}},
        "spec": _pod(spec, settings, cluster, config, selector(resource, revision)),
    }
    annotations = {
        **(spec.pod.annotations or {}),
        "kubectl.kubernetes.io/default-container": RUNTIME,
        TEMPLATE_HASH: short_hash([template, spec.pod.annotations or {}]),
    }
    return {**template, "metadata": {**template["metadata"], "annotations": annotations}}


def template_hash(manifest: Manifest) -> str:
    """The hash that `pod_template` put into a Deployment."""
    return str(manifest["spec"]["template"]["metadata"]["annotations"][TEMPLATE_HASH])


def _pod(
    spec: EmbeddingServiceSpec,
    settings: RenderSettings,
    cluster: ClusterFacts,
    config: str,
    pods: dict[str, str],
) -> Manifest:
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **placement(spec, settings, cluster, pods),
        **_accounts(spec),
        "terminationGracePeriodSeconds": ENDPOINT_DRAIN_SECONDS + grace_seconds(spec) + _STOP_MARGIN_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": [fetch_container(spec, settings)],
        "containers": [runtime_container(spec, settings)],
        "volumes": _volumes(spec, config),
    }


def _accounts(spec: EmbeddingServiceSpec) -> Manifest:
    found: dict[str, Any] = {}
    if spec.pod.service_account_name is not None:
        found["serviceAccountName"] = spec.pod.service_account_name
    if spec.pod.image_pull_secrets:
        found["imagePullSecrets"] = [secret.as_wire() for secret in spec.pod.image_pull_secrets]
    return found


def _volumes(spec: EmbeddingServiceSpec, config: str) -> list[Manifest]:
    volumes: list[Manifest] = [
        {"name": CONFIG_VOLUME, "configMap": {"name": config}},
        {"name": "models", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
    ]
    source = spec.model.source
    if source.volume is not None:
        claim = {"claimName": source.volume.claim_name, "readOnly": True}
        volumes.append({"name": "source", "persistentVolumeClaim": claim})
    if source.image is not None:
        volumes.append({"name": "source", "image": {"reference": source.image.reference}})
    return [*volumes, *(volume.as_wire() for volume in spec.pod.volumes or ())]
