"""Builds the volume that models are kept on: how pods mount it, what it requires of their
placement, and a claim of our own.
"""

from __future__ import annotations

from dataclasses import dataclass

from embedserve_operator.api.cache import CacheVolume
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.manifests.metadata import (
    CLAIM_LABEL,
    add_fingerprint,
    build_metadata,
    hash_claim_name,
)
from embedserve_operator.manifests.placement import HOSTNAME, list_terms
from embedserve_operator.state.resource import Resource

VOLUME = "models"
TMP_VOLUME = "tmp"


@dataclass(frozen=True, slots=True)
class ModelVolume:
    """The volume that a service keeps its models on, as `plan.model_volume` has decided."""

    claim: str
    is_own: bool
    """Indicates that the claim is made for this service alone."""
    is_filled: bool
    """Indicates that the volume holds the model already and is never written."""
    is_single_node: bool
    """Indicates that only the pods of one node can mount it at the same time."""
    is_single_pod: bool
    """Indicates that only one pod can mount it."""

    @property
    def claim_hash(self) -> str:
        """The name of the claim as the value of a label."""
        return hash_claim_name(self.claim)


def build_pod_volume(volume: ModelVolume | None, size_limit: str | None) -> Manifest:
    """Return the volume of models of the pods; without a claim each pod has its own, of at most `size_limit`.

    Who may write is said where the volume is mounted: a volume that is attached read-only cannot be
    attached for a Job that writes. A filled one has no such Job.
    """
    if volume is None:
        return build_disk_volume(VOLUME, size_limit)
    claim = {"claimName": volume.claim, **({"readOnly": True} if volume.is_filled else {})}
    return {"name": VOLUME, "persistentVolumeClaim": claim}


def build_disk_volume(name: str, size_limit: str | None) -> Manifest:
    """Return a volume on the node's disk that lives as long as the pod; None is no limit."""
    return {"name": name, "emptyDir": {} if size_limit is None else {"sizeLimit": size_limit}}


def build_group_context(volume: ModelVolume | None, group: int | None) -> Manifest:
    """Return what the security context of the pods says about the volume, since a new volume belongs to root.

    `group` is the group of the pods, to which files on the volume then belong where its driver supports that; None
    leaves it to the cluster.
    """
    if volume is None or volume.is_filled:
        return {}
    return {
        **({} if group is None else {"fsGroup": group}),
        "fsGroupChangePolicy": "OnRootMismatch",
    }


def build_volume_labels(volume: ModelVolume | None) -> dict[str, str]:
    """Return the labels of the pods that mount the volume."""
    return {} if volume is None else {CLAIM_LABEL: volume.claim_hash}


def add_colocation(affinity: Manifest, volume: ModelVolume | None) -> Manifest:
    """Return the affinity, with all pods of a single-node volume kept on one node.

    The first pod goes where it likes, and the volume follows it. Otherwise a second pod on another node
    would wait for the volume forever (Multi-Attach).
    """
    if volume is None or not volume.is_single_node:
        return affinity
    term = {"labelSelector": {"matchLabels": build_volume_labels(volume)}, "topologyKey": HOSTNAME}
    pods = affinity.get("podAffinity") or {}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    return {**affinity, "podAffinity": {**pods, required: [*list_terms(pods, required), term]}}


def build_claim(resource: Resource, settings: CacheVolume, volume: ModelVolume, size: int | str) -> Manifest:
    """Return the claim of a service, of so much room.

    One that is to be kept has no owner, since it would go with the owner.
    """
    meta = build_metadata(resource, volume.claim)
    if settings.when_deleted == "Retain":
        del meta["ownerReferences"]
    storage = {} if settings.storage_class_name is None else {"storageClassName": settings.storage_class_name}
    return add_fingerprint(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": meta,
            "spec": {
                "accessModes": list(settings.access_modes),
                **storage,
                "resources": {"requests": {"storage": size}},
            },
        }
    )
