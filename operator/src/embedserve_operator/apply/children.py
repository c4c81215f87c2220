"""This module makes the children what the plan says: it applies them on the server side, prunes, and sends
nothing where nothing has changed.
"""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass

from embedserve_operator.apply.conflicts import ConflictHistory, find_applying_managers
from embedserve_operator.apply.drift import find_reason_to_apply
from embedserve_operator.cache.objects import ObjectCache
from embedserve_operator.errors import ConflictError, NotFoundError, RefusedError
from embedserve_operator.kube.client import FIELD_MANAGER, SCALE_MANAGER, KubeClient
from embedserve_operator.kube.kinds import JOB, POD
from embedserve_operator.kube.objects import Manifest, Received
from embedserve_operator.kube.references import ChildRef
from embedserve_operator.kube.views.objects import Object
from embedserve_operator.kube.views.workloads import Workload
from embedserve_operator.manifests.metadata import SPACE_LABEL, read_ref
from embedserve_operator.plan import Plan, PodLabel, ReplicasHandOver
from embedserve_operator.state.observed import ObservedState
from embedserve_operator.state.resource import Resource

log = logging.getLogger(__name__)

_OURS = frozenset({FIELD_MANAGER, SCALE_MANAGER})


@dataclass(frozen=True, slots=True)
class ApplyFailure:
    """Says why a child could not be made what it should be."""

    reason: str
    message: str


_UNKNOWN_VOLUME_KIND = re.compile(r"must specify a volume type|field not declared in schema|unknown field")
"""A pattern of what API servers say about a kind of volume that they do not know, if they say anything."""


def explain_refusal(ref: ChildRef, said: str, manifest: Manifest) -> ApplyFailure:
    """Return what the API server's refusal of a child means."""
    if _UNKNOWN_VOLUME_KIND.search(said) and _list_image_volumes(manifest):
        return _build_image_volumes_failure(f"the API server refused {ref}: {said}")
    return ApplyFailure("ChildRefused", f"the API server refused {ref}: {said}")


def _build_image_volumes_failure(said: str) -> ApplyFailure:
    return ApplyFailure(
        "ImageVolumesMissing",
        "spec.model.source.image: this cluster knows no image volumes, which come with Kubernetes 1.33 and its "
        f"feature ImageVolume; switch it on, or take the model from another source; {said}",
    )


def _list_image_volumes(workload: Received) -> tuple[str, ...]:
    return Workload.parse(workload).spec.template.spec.image_volumes


class ChildApplier:
    """Carries out plans."""

    def __init__(self, kube: KubeClient, objects: ObjectCache) -> None:
        self._kube = kube
        self._objects = objects
        self._conflict_history = ConflictHistory()

    async def apply(self, plan: Plan, observed: ObservedState) -> ApplyFailure | None:
        """Carry out a plan. The first failure ends it, since later steps rest on earlier ones."""
        for job in plan.jobs_to_delete:
            ref = ChildRef(JOB, job.name)
            log.info("%s: delete %s: another try, or no longer wanted", observed.resource.key, ref)
            await self._kube.delete(observed.resource.key.namespace, ref, job.uid)
            self._objects.drop_uid(JOB, job.uid)
        for manifest in plan.children:
            why = find_reason_to_apply(manifest, observed.find_child(read_ref(manifest)))
            if why is None:
                await self._follow_replicas(manifest, observed, plan.hand_over)
                continue
            failure = await self._apply_child(manifest, why, observed, plan.hand_over)
            if failure is not None:
                return failure
        for label in plan.labels:
            await self._apply_label(label, observed)
        for child in plan.prune:
            log.info("%s: delete %s: no longer wanted", observed.resource.key, child.ref)
            await self._kube.delete(observed.resource.key.namespace, child.ref, child.uid)
            self._objects.drop(child.ref.kind, child.received)
        return await self._create_jobs(plan, observed)

    async def _create_jobs(self, plan: Plan, observed: ObservedState) -> ApplyFailure | None:
        """Create Jobs. One that exists by now was made for another service, and serves this one as well."""
        for manifest in plan.jobs_to_create:
            ref = read_ref(manifest)
            log.info("%s: create %s", observed.resource.key, ref)
            try:
                failure = await self._check_image_volumes(manifest)
                if failure is not None:
                    return failure
                self._objects.put(JOB, await self._kube.create(manifest))
            except ConflictError:
                log.info("%s: %s exists already", observed.resource.key, ref)
            except RefusedError as error:
                return explain_refusal(ref, error.message, manifest)
        return None

    async def _check_image_volumes(self, manifest: Manifest) -> ApplyFailure | None:
        """Try a manifest that has an image volume, without creating it.

        An API server whose feature is off silently drops the image, and pods would find an empty folder in
        its place.
        """
        wanted = _list_image_volumes(manifest)
        if not wanted:
            return None
        made = await self._kube.create(manifest, dry_run=True)
        if _list_image_volumes(made) == wanted:
            return None
        return _build_image_volumes_failure(
            f"the API server leaves volume {wanted[0]} out of {read_ref(manifest)}"
        )

    async def _apply_label(self, label: PodLabel, observed: ObservedState) -> None:
        """Label a pod, beside the labels that its Deployment gives it, and without restarting it."""
        key = observed.resource.key
        log.info("%s: label pod %s: %s", key, label.pod.name, label.space)
        meta = {"name": label.pod.name, "namespace": key.namespace, "uid": label.pod.uid}
        manifest = {
            "apiVersion": "v1",
            "kind": POD,
            "metadata": {**meta, "labels": {SPACE_LABEL: label.space}},
        }
        try:
            self._objects.put(POD, await self._kube.apply(manifest, force=True))
        except (ConflictError, NotFoundError):
            return  # the pod is gone, or another one has its name

    async def _apply_child(
        self, manifest: Manifest, why: str, observed: ObservedState, hand_over: ReplicasHandOver | None
    ) -> ApplyFailure | None:
        key, ref = observed.resource.key, read_ref(manifest)
        exists = observed.find_child(ref) is not None
        if not exists:
            # The caches hold only labelled objects; an unlabelled one of that name would be taken over unasked.
            existing = await self._kube.get(key.namespace, ref)
            owner = Object.parse(existing).metadata.controller_uid
            if existing is not None and owner != observed.resource.uid:
                return ApplyFailure("NameTaken", _describe_owner(ref, owner, observed.resource))
        log.info("%s: apply %s: %s", key, ref, why)
        claims = hand_over is not None and ref == ChildRef("Deployment", hand_over.deployment)
        try:
            failure = None if exists else await self._check_image_volumes(manifest)
            if failure is not None:
                return failure
            if hand_over is not None and claims and exists:
                await self._claim_replicas(manifest, hand_over)
            failure = await self._apply_over_conflicts(manifest)
            if hand_over is not None and claims and not exists and failure is None:
                await self._claim_replicas(manifest, hand_over)
        except RefusedError as error:
            return explain_refusal(ref, error.message, manifest)
        return failure

    async def _follow_replicas(
        self, manifest: Manifest, observed: ObservedState, hand_over: ReplicasHandOver | None
    ) -> None:
        """Claim another number of pods for a Deployment that is otherwise as it should be."""
        if hand_over is None or read_ref(manifest) != ChildRef("Deployment", hand_over.deployment):
            return
        log.info("%s: %s pods for %s", observed.resource.key, hand_over.replicas, hand_over.deployment)
        await self._claim_replicas(manifest, hand_over)

    async def _claim_replicas(self, manifest: Manifest, hand_over: ReplicasHandOver) -> None:
        """Keep the number of pods that is no longer sent, until an autoscaler writes another one."""
        meta = {key: manifest["metadata"][key] for key in ("name", "namespace")}
        claim = {
            "apiVersion": manifest["apiVersion"],
            "kind": manifest["kind"],
            "metadata": meta,
            "spec": {"replicas": hand_over.replicas},
        }
        got = await self._kube.apply(claim, force=True, manager=SCALE_MANAGER)
        self._objects.put(manifest["kind"], got)

    async def _apply_over_conflicts(self, manifest: Manifest) -> ApplyFailure | None:
        """Apply a manifest.

        A field that was changed once is taken back; a manager that insists on it is reported.
        """
        kind, ref, meta = manifest["kind"], read_ref(manifest), manifest["metadata"]
        try:
            self._objects.put(kind, await self._kube.apply(manifest, force=False))
        except ConflictError as error:
            insist = find_applying_managers(error.message, _OURS)
            now = asyncio.get_running_loop().time()
            if insist or not self._conflict_history.may_overrule((meta["namespace"], ref), now):
                who = " and ".join(insist) or "another controller"
                return ApplyFailure(
                    "FieldConflict",
                    f"{ref}: {error.message}; {who} wants these fields different and is not overruled: "
                    "make it leave them out",
                )
            log.warning("%s/%s: %s; taking the fields back", meta["namespace"], ref, error)
            self._objects.put(kind, await self._kube.apply(manifest, force=True))
        return None


def _describe_owner(ref: ChildRef, owner: str, resource: Resource) -> str:
    owned = "belongs to another owner" if owner else "was not made by this operator"
    return (
        f"{ref} exists already and {owned}; delete it, or give EmbeddingService {resource.key.name} "
        "another name"
    )
