"""The Deployment of one revision.

Its pod template is a function of the spec, the images and the RuntimeClasses that exist: an upgrade of the operator
that leaves the runtime image as it is restarts no pod.
"""

from __future__ import annotations

from typing import Any

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.hardware import HardwareClass
from embedserve_operator.nodes import ClusterFacts
from embedserve_operator.settings import RenderSettings
from embedserve_operator.specs.containers import (
    CONFIG_VOLUME,
    FETCH,
    RUNTIME,
    runtime_container,
    task_container,
)
from embedserve_operator.specs.memory import memory_request
from embedserve_operator.specs.metadata import (
    DECLARATION,
    FETCHED,
    MODEL_BYTES,
    MODEL_FIELDS,
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
from embedserve_operator.specs.volume import ModelVolume, group, pod_volume, together, volume_labels
from embedserve_operator.wire import Manifest, canonical, short_hash
from embedserve_operator.world import ModelReport, Resource

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
    volume: ModelVolume | None = None,
    report: ModelReport | None = None,
    model_bytes: int | None = None,
) -> Manifest:
    """The Deployment of a revision, mounting the ConfigMap named `config` and the volume of models.

    space: what it makes, when that is known; the label is on the Deployment alone, since one on the template would
    restart the pods. report: what a Job has found out about the model on the volume. model_bytes: size of the model's
    files, if the pods are to be made for it.
    """
    meta = metadata(resource, deployment_name(resource, revision), revision)
    replicas = fixed_replicas(spec)
    meta["annotations"] = {
        DECLARATION: declaration(spec),
        **({SCALED_BY: "autoscaler"} if replicas is None else {}),
        **({MODEL_BYTES: str(model_bytes)} if model_bytes is not None else {}),
    }
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
                "strategy": _strategy(hardware_of(spec, settings), volume),
                "template": pod_template(
                    resource,
                    spec,
                    settings,
                    cluster,
                    revision=revision,
                    config=config,
                    volume=volume,
                    report=report,
                    model_bytes=model_bytes,
                ),
            },
        }
    )
    if space is not None:
        # Not in the fingerprint: learning what the pods make does not change what runs.
        made["metadata"]["labels"] = {**made["metadata"]["labels"], SPACE_LABEL: space}
    return made


def _strategy(hardware: HardwareClass, volume: ModelVolume | None) -> Manifest:
    # A pod more than the volume takes would wait for one that waits for it.
    alone = volume is not None and volume.one_pod
    surge, unavailable = (0, 1) if alone else (hardware.max_surge, hardware.max_unavailable)
    return {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable},
    }


def declaration(spec: EmbeddingServiceSpec) -> str:
    """The fields of the spec that declare the model, as they can be put into another spec."""
    return canonical({key: value for key, value in spec.as_wire().items() if key in MODEL_FIELDS})


def pod_template(
    resource: Resource,
    spec: EmbeddingServiceSpec,
    settings: RenderSettings,
    cluster: ClusterFacts,
    *,
    revision: str,
    config: str,
    volume: ModelVolume | None,
    report: ModelReport | None,
    model_bytes: int | None,
) -> Manifest:
    """The pod template, with the hash of itself, by which pods of an older template are told apart."""
    template: Manifest = {
        "metadata": {
            "labels": {
                **(spec.pod.labels or {}),
                **labels(resource, revision),
                **volume_labels(volume),
            }
        },
        "spec": _pod(
            resource,
            spec,
            settings,
            cluster,
            revision=revision,
            config=config,
            volume=volume,
            memory=memory_request(spec, settings, model_bytes),
        ),
    }
    given: Manifest = {**(spec.pod.annotations or {})}
    if report is not None:
        # Pods that fetch nothing have nothing to tell of it.
        given[FETCHED] = canonical(report_wire(report))
    annotations = {
        **given,
        "kubectl.kubernetes.io/default-container": RUNTIME,
        TEMPLATE_HASH: short_hash([template, given]),
    }
    return {**template, "metadata": {**template["metadata"], "annotations": annotations}}


def template_hash(manifest: Manifest) -> str:
    """The hash that `pod_template` put into a Deployment."""
    return str(manifest["spec"]["template"]["metadata"]["annotations"][TEMPLATE_HASH])


def _pod(
    resource: Resource,
    spec: EmbeddingServiceSpec,
    settings: RenderSettings,
    cluster: ClusterFacts,
    *,
    revision: str,
    config: str,
    volume: ModelVolume | None,
    memory: str | None,
) -> Manifest:
    place = placement(spec, settings, cluster, selector(resource, revision))
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **place,
        "affinity": together(place["affinity"], volume),
        **accounts(spec),
        "terminationGracePeriodSeconds": ENDPOINT_DRAIN_SECONDS + grace_seconds(spec) + _STOP_MARGIN_SECONDS,
        "securityContext": security_context(volume),
        **_before(resource, spec, settings, revision, volume),
        "containers": [
            runtime_container(
                spec,
                settings,
                read_only=volume is not None,
                keeps_kernels=volume is not None and not volume.is_filled,
                memory=memory,
            )
        ],
        "volumes": pod_volumes(spec, config, volume),
    }


def _before(
    resource: Resource,
    spec: EmbeddingServiceSpec,
    settings: RenderSettings,
    revision: str,
    volume: ModelVolume | None,
) -> Manifest:
    """What fetches before the start; on a filled volume it finds out what is there, and where a Job has fetched there
    is nothing to do."""
    if volume is not None and not volume.is_filled:
        return {}
    read_only = volume is not None
    fetch = task_container(resource, spec, settings, task=FETCH, revision=revision, read_only=read_only)
    return {"initContainers": [fetch]}


def report_wire(report: ModelReport) -> Manifest:
    """A report as the runtime writes it."""
    found = {
        "source": report.source,
        "revision": report.revision,
        "digest": report.digest,
        "sizeBytes": report.size_bytes,
        "dimensions": report.dimensions,
        "vectorSpace": report.vector_space,
        "licence": report.licence,
        "outputs": list(report.outputs) or None,
    }
    return {key: value for key, value in found.items() if value is not None}


def security_context(volume: ModelVolume | None) -> Manifest:
    """The security context of the pods: the restricted profile, and a group for the volume."""
    return {
        "runAsNonRoot": True,
        "runAsUser": _USER,
        "runAsGroup": _USER,
        **group(volume),
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def accounts(spec: EmbeddingServiceSpec) -> Manifest:
    """As whom the pods run and pull."""
    found: dict[str, Any] = {}
    if spec.pod.service_account_name is not None:
        found["serviceAccountName"] = spec.pod.service_account_name
    if spec.pod.image_pull_secrets:
        found["imagePullSecrets"] = [secret.as_wire() for secret in spec.pod.image_pull_secrets]
    return found


def pod_volumes(spec: EmbeddingServiceSpec, config: str, volume: ModelVolume | None) -> list[Manifest]:
    """The volumes of the pods: ours, and those of the user."""
    volumes: list[Manifest] = [
        {"name": CONFIG_VOLUME, "configMap": {"name": config}},
        pod_volume(volume),
        {"name": "tmp", "emptyDir": {}},
    ]
    source = spec.model.source
    if source.volume is not None:
        claim = {"claimName": source.volume.claim_name, "readOnly": True}
        volumes.append({"name": "source", "persistentVolumeClaim": claim})
    if source.image is not None:
        volumes.append({"name": "source", "image": {"reference": source.image.reference}})
    return [*volumes, *(given.as_wire() for given in spec.pod.volumes or ())]
