"""The volume that models are kept on: how pods mount it, what it asks of their place, and the claim of our own."""

from __future__ import annotations

from dataclasses import dataclass

from embedserve_operator.api.cache import CacheVolume
from embedserve_operator.specs.metadata import CLAIM_LABEL, claim_mark, fingerprinted, metadata
from embedserve_operator.specs.placement import HOSTNAME
from embedserve_operator.wire import Manifest, mappings
from embedserve_operator.world import Resource

VOLUME = "models"
GROUP = 65532
"""The pods' group, which files of the volume belong to where its driver can do that."""


@dataclass(frozen=True, slots=True)
class ModelVolume:
    """The volume that a service keeps its models on, as decided by `plan.cache`."""

    claim: str
    is_own: bool
    """The claim is made for this service alone."""
    is_filled: bool
    """It holds the model already and is never written."""
    one_node: bool
    """Its access modes let the pods of one node only mount it at the same time."""
    one_pod: bool
    """Its access modes let one pod only mount it."""

    @property
    def mark(self) -> str:
        """The claim as the value of a label."""
        return claim_mark(self.claim)


def pod_volume(volume: ModelVolume | None) -> Manifest:
    """The pods' volume of models: their own without a claim.

    Who may write is said where it is mounted: a volume that is attached for reading only cannot be attached for a Job
    that writes. A filled one has no such Job.
    """
    if volume is None:
        return {"name": VOLUME, "emptyDir": {}}
    claim = {"claimName": volume.claim, **({"readOnly": True} if volume.is_filled else {})}
    return {"name": VOLUME, "persistentVolumeClaim": claim}


def group(volume: ModelVolume | None) -> Manifest:
    """What the pods' security context says of the volume: a new one belongs to root."""
    if volume is None or volume.is_filled:
        return {}
    return {"fsGroup": GROUP, "fsGroupChangePolicy": "OnRootMismatch"}


def volume_labels(volume: ModelVolume | None) -> dict[str, str]:
    """Labels of the pods that mount the volume."""
    return {} if volume is None else {CLAIM_LABEL: volume.mark}


def together(affinity: Manifest, volume: ModelVolume | None) -> Manifest:
    """The affinity, with all pods of a volume that one node can mount kept on one node.

    A pod that no other one is there for goes where it likes, and the volume follows it. Without this a second pod on
    another node would wait for the volume for ever (Multi-Attach).
    """
    if volume is None or not volume.one_node:
        return affinity
    term = {"labelSelector": {"matchLabels": volume_labels(volume)}, "topologyKey": HOSTNAME}
    pods = affinity.get("podAffinity") or {}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    return {**affinity, "podAffinity": {**pods, required: [*mappings(pods, required), term]}}


def claim(resource: Resource, wanted: CacheVolume, volume: ModelVolume) -> Manifest:
    """The claim of the service's own. One that is to be kept has no owner, by which it would go."""
    meta = metadata(resource, volume.claim)
    if wanted.when_deleted == "Retain":
        del meta["ownerReferences"]
    storage = {} if wanted.storage_class_name is None else {"storageClassName": wanted.storage_class_name}
    return fingerprinted(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": meta,
            "spec": {
                "accessModes": list(wanted.access_modes),
                **storage,
                "resources": {"requests": {"storage": wanted.size}},
            },
        }
    )
