"""Builds the Deployment of one revision.

Its pod template is a function of the spec, the images and the inputs that it was made for: an upgrade of the
operator that leaves the runtime image unchanged restarts no pod.
"""

from __future__ import annotations

from typing import Any

from embedserve_operator.api.hardware import HardwareClass
from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.kube.objects import Manifest, compute_short_hash, format_canonical_json
from embedserve_operator.manifests.containers import (
    CONFIG_VOLUME,
    FETCH,
    KEYS_VOLUME,
    RUNTIME,
    build_runtime_container,
    build_task_container,
)
from embedserve_operator.manifests.memory import format_mib
from embedserve_operator.manifests.mesh import build_mesh_annotations
from embedserve_operator.manifests.metadata import (
    DECLARATION,
    FETCHED,
    FOLLOWED,
    GENERATION,
    IMMEDIATE_FIELDS,
    MODEL_BYTES,
    MODEL_FIELDS,
    MODEL_MEMORY,
    SCALED_BY,
    SETTINGS,
    SPACE_LABEL,
    TEMPLATE_HASH,
    UPGRADE,
    add_fingerprint,
    build_labels,
    build_metadata,
    build_selector,
)
from embedserve_operator.manifests.placement import build_placement, find_hardware_class
from embedserve_operator.manifests.pod_inputs import PodInputs
from embedserve_operator.manifests.runtime_config import (
    ENDPOINT_DRAIN_SECONDS,
    KEYS_FILE,
    compute_grace_seconds,
)
from embedserve_operator.manifests.storage import (
    compute_models_bytes,
    compute_temporary_bytes,
    is_storage_given,
)
from embedserve_operator.manifests.volume import (
    TMP_VOLUME,
    VOLUME,
    ModelVolume,
    add_colocation,
    build_disk_volume,
    build_group_context,
    build_pod_volume,
    build_volume_labels,
)
from embedserve_operator.settings import RenderSettings
from embedserve_operator.state.jobs import JobTask
from embedserve_operator.state.models import ModelReport, ModelSize
from embedserve_operator.state.resource import Resource

LOCAL_VOLUMES = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
"""The annotation that names volumes which may be lost (FAQ of the cluster autoscaler)."""
_STOP_MARGIN_SECONDS = 5
"""The time beyond drain and grace, so that the kubelet kills only what no longer obeys."""


def build_deployment_name(resource: Resource, revision: str) -> str:
    """Return the name of the Deployment of a revision."""
    return f"{resource.key.name}-{revision}"


def find_fixed_replicas(spec: EmbeddingServiceSpec) -> int | None:
    """Return the number of pods that the spec asks for; None where an autoscaler decides."""
    if spec.suspend:
        return 0
    return None if spec.autoscaling is not None else spec.replicas


def build_deployment(
    pods: PodInputs,
    *,
    space: str | None,
    report: ModelReport | None = None,
    followed: str | None = None,
) -> Manifest:
    """Return the Deployment of a revision.

    `space` is its vector space, when that is known; only the Deployment gets the label, since a label in
    the template would restart the pods. `report` is what a Job has found out about the model on the volume.
    `followed` says how far the
    Deployment has followed a manifest that asks for another model; where the manifest asks for this one it is None,
    or empty to take back what was written before.
    """
    resource, spec, revision = pods.resource, pods.spec, pods.revision
    meta = build_metadata(resource, build_deployment_name(resource, revision), revision)
    replicas = find_fixed_replicas(spec)
    meta["annotations"] = {
        DECLARATION: build_declaration(spec),
        **({SCALED_BY: "autoscaler"} if replicas is None else {}),
        **({} if pods.model_size is None else _format_model_size(pods.model_size)),
    }
    manifest = add_fingerprint(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": meta,
            "spec": {
                # The number is never sent where an autoscaler writes it.
                **({} if replicas is None else {"replicas": replicas}),
                # Owned, so that a pause of somebody else is undone: no later change would reach the pods.
                "paused": False,
                # An older ReplicaSet is useless for a rollback, since its ConfigMap goes with its last pod.
                "revisionHistoryLimit": 0,
                "selector": {"matchLabels": build_selector(resource, revision)},
                "strategy": _build_strategy(find_hardware_class(spec, pods.settings), pods.volume),
                "template": build_pod_template(pods, report=report),
            },
        }
    )
    return _add_unhashed_metadata(manifest, pods, space=space, followed=followed)


def _add_unhashed_metadata(
    manifest: Manifest, pods: PodInputs, *, space: str | None, followed: str | None
) -> Manifest:
    """Return a Deployment with what does not change what runs, and so is not part of the fingerprint."""
    metadata, generation = manifest["metadata"], pods.resource.generation
    annotations = {
        **metadata["annotations"],
        SETTINGS: format_settings(pods.spec),
        **({GENERATION: str(generation)} if generation > 0 else {}),
        **({FOLLOWED: followed} if followed is not None else {}),
    }
    labels = {**metadata["labels"], **({SPACE_LABEL: space} if space is not None else {})}
    return {**manifest, "metadata": {**metadata, "annotations": annotations, "labels": labels}}


def annotate_upgrade(deployment: Manifest, phase: str) -> Manifest:
    """Return a Deployment that says how far an upgrade has come with it."""
    metadata = deployment["metadata"]
    return {
        **deployment,
        "metadata": {**metadata, "annotations": {**metadata["annotations"], UPGRADE: phase}},
    }


def _build_strategy(hardware: HardwareClass, volume: ModelVolume | None) -> Manifest:
    # One pod more than the volume takes would wait for a pod that waits for it.
    alone = volume is not None and volume.is_single_pod
    surge, unavailable = (0, 1) if alone else (hardware.max_surge, hardware.max_unavailable)
    return {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable},
    }


def build_declaration(spec: EmbeddingServiceSpec) -> str:
    """Return the fields of the spec that declare the model, in a form that can be put into another spec."""
    return format_canonical_json({key: value for key, value in spec.as_wire().items() if key in MODEL_FIELDS})


def format_settings(spec: EmbeddingServiceSpec) -> str:
    """Return the fields of the spec that say how the pods of its model run, in a form that can be put into another
    spec.
    """
    excluded = (*MODEL_FIELDS, *IMMEDIATE_FIELDS)
    return format_canonical_json({key: value for key, value in spec.as_wire().items() if key not in excluded})


def build_pod_template(pods: PodInputs, *, report: ModelReport | None) -> Manifest:
    """Return the pod template with its own hash, which tells pods of an older template apart."""
    spec = pods.spec
    template: Manifest = {
        "metadata": {
            "labels": {
                **(spec.pod.labels or {}),
                **build_labels(pods.resource, pods.revision),
                **build_volume_labels(pods.volume),
            }
        },
        "spec": _build_pod_spec(pods),
    }
    annotations_of_user: Manifest = {
        **_build_eviction_annotations(pods),
        **build_mesh_annotations(spec, pods.settings),
        **(spec.pod.annotations or {}),
    }
    if report is not None:
        # Pods that fetch nothing cannot report the model themselves.
        annotations_of_user[FETCHED] = format_canonical_json(format_report(report))
    annotations = {
        **annotations_of_user,
        "kubectl.kubernetes.io/default-container": RUNTIME,
        TEMPLATE_HASH: compute_short_hash([template, annotations_of_user]),
    }
    return {**template, "metadata": {**template["metadata"], "annotations": annotations}}


def _build_eviction_annotations(pods: PodInputs) -> Manifest:
    """Return what lets the cluster autoscaler take a node away although pods keep files on it.

    It leaves nodes with such pods alone unless it is told for each volume that it may be lost. Ours may: the next pod
    fetches the model again. The user's own volumes are the user's to name.
    """
    volumes = [TMP_VOLUME] if pods.volume is not None else [VOLUME, TMP_VOLUME]
    return {LOCAL_VOLUMES: ",".join(volumes)}


def read_template_hash(manifest: Manifest) -> str:
    """Return the hash that `build_pod_template` put into a Deployment."""
    return str(manifest["spec"]["template"]["metadata"]["annotations"][TEMPLATE_HASH])


def _build_pod_spec(pods: PodInputs) -> Manifest:
    spec, settings, volume = pods.spec, pods.settings, pods.volume
    selector = build_selector(pods.resource, pods.revision)
    placement = build_placement(spec, settings, selector, runtime_class=pods.runtime_class)
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **placement,
        "affinity": add_colocation(placement["affinity"], volume),
        **build_accounts(spec),
        "terminationGracePeriodSeconds": ENDPOINT_DRAIN_SECONDS
        + compute_grace_seconds(spec)
        + _STOP_MARGIN_SECONDS,
        "securityContext": build_security_context(settings, volume),
        **_build_init_containers(pods),
        "containers": [build_runtime_container(pods)],
        "volumes": [*build_pod_volumes(pods), *_build_key_volumes(spec)],
    }


def _build_init_containers(pods: PodInputs) -> Manifest:
    """Return the containers that fetch before the start.

    On a filled volume they find out what is there; where a Job has fetched there are none.
    """
    if pods.volume is not None and not pods.volume.is_filled:
        return {}
    return {
        "initContainers": [build_task_container(pods, FETCH, is_init=True, read_only=pods.volume is not None)]
    }


def _format_model_size(size: ModelSize) -> dict[str, str]:
    """Return the annotations that say for which size of the model the pod template was made."""
    planned = {} if size.memory is None else {MODEL_MEMORY: format_canonical_json(size.memory.as_wire())}
    return {MODEL_BYTES: str(size.file_bytes), **planned}


def format_report(report: ModelReport) -> Manifest:
    """Return a report in the form that the runtime writes."""
    fields = {
        "source": report.source,
        "revision": report.revision,
        "digest": report.digest,
        "sizeBytes": report.size_bytes,
        "dimensions": report.dimensions,
        "vectorSpace": report.vector_space,
        "formerVectorSpace": report.former_vector_space,
        "licence": report.licence,
        "outputs": list(report.outputs) or None,
        "guessesPooling": report.guesses_pooling or None,
        "adapterTasks": [task.as_wire() for task in report.adapter_tasks] or None,
        "memory": None if report.memory is None else report.memory.as_wire(),
    }
    return {key: value for key, value in fields.items() if value is not None}


def build_security_context(settings: RenderSettings, volume: ModelVolume | None) -> Manifest:
    """Return the security context of the pods: the restricted profile, and a group for the volume."""
    user = settings.run_as
    return {
        "runAsNonRoot": True,
        **({} if user is None else {"runAsUser": user, "runAsGroup": user}),
        **build_group_context(volume, user),
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def build_accounts(spec: EmbeddingServiceSpec) -> Manifest:
    """Return the account that the pods run under, and the Secrets that they pull images with."""
    accounts: dict[str, Any] = {}
    if spec.pod.service_account_name is not None:
        accounts["serviceAccountName"] = spec.pod.service_account_name
    if spec.pod.image_pull_secrets:
        accounts["imagePullSecrets"] = [secret.as_wire() for secret in spec.pod.image_pull_secrets]
    return accounts


def _build_key_volumes(spec: EmbeddingServiceSpec) -> list[Manifest]:
    """Return the volume of API keys, whose file changes with the Secret.

    A pod whose Secret is missing starts all the same: the runtime says what is missing, and the kubelet only in events.
    """
    if spec.auth is None:
        return []
    ref = spec.auth.secret_ref
    secret = {"secretName": ref.name, "items": [{"key": ref.key, "path": KEYS_FILE}], "optional": True}
    return [{"name": KEYS_VOLUME, "secret": secret}]


def build_pod_volumes(pods: PodInputs, task: JobTask | None = None) -> list[Manifest]:
    """Return the volumes of the pods: ours, and those of the user. `task` is that of a Job; None stands for pods that
    serve.
    """
    spec = pods.spec
    volumes: list[Manifest] = [
        {"name": CONFIG_VOLUME, "configMap": {"name": pods.config}},
        build_pod_volume(pods.volume, _choose_size_limit(spec, compute_models_bytes(pods, task))),
        build_disk_volume(TMP_VOLUME, _choose_size_limit(spec, compute_temporary_bytes(pods, task))),
    ]
    source = spec.model.source
    if source.volume is not None:
        claim = {"claimName": source.volume.claim_name, "readOnly": True}
        volumes.append({"name": "source", "persistentVolumeClaim": claim})
    if source.image is not None:
        volumes.append({"name": "source", "image": {"reference": source.image.reference}})
    return [*volumes, *(user_volume.as_wire() for user_volume in spec.pod.volumes or ())]


def _choose_size_limit(spec: EmbeddingServiceSpec, size: int | None) -> str | None:
    """Return the size of a volume on the node's disk; None where it is not known, or where the user says how much the
    whole pod has.
    """
    return None if size is None or is_storage_given(spec) else format_mib(size)
