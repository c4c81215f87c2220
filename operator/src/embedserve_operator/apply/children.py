"""Makes the children what the plan says: it applies them on the server side, prunes, and sends
nothing where nothing has changed.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Iterable, Mapping

from embedserve_operator.apply.conflicts import (
    AUTOSCALING_MANAGER,
    ConflictHistory,
    concerns_only_replicas,
    find_applying_managers,
    find_managers,
)
from embedserve_operator.apply.drift import AppliedDifferences, find_reason_to_apply
from embedserve_operator.apply.results import ApplyFailure, PassResults
from embedserve_operator.cache.objects import ObjectCache
from embedserve_operator.errors import (
    ConflictError,
    FailedRequestError,
    InvalidContentError,
    NotFoundError,
    RefusedError,
)
from embedserve_operator.kube.client import FIELD_MANAGER, HISTORY_MANAGER, SCALE_MANAGER, KubeClient
from embedserve_operator.kube.kinds import AUTOSCALER, JOB, POD, SCALER_KINDS
from embedserve_operator.kube.objects import Manifest, Received
from embedserve_operator.kube.references import ChildRef
from embedserve_operator.kube.views.objects import Metadata, Object
from embedserve_operator.kube.views.workloads import Deployment, HorizontalPodAutoscaler, Workload
from embedserve_operator.manifests.metadata import REPLACED_AT, SPACE_LABEL, read_ref
from embedserve_operator.manifests.pin import find_pin_name
from embedserve_operator.plan import Plan, PodLabel, ReplacementTime, ReplicasOwnershipTransfer
from embedserve_operator.state.observed import ObservedState
from embedserve_operator.state.resource import Child, Resource

log = logging.getLogger(__name__)

_OWN_FIELD_MANAGERS = frozenset({FIELD_MANAGER, HISTORY_MANAGER, SCALE_MANAGER})


_UNKNOWN_VOLUME_KIND = re.compile(r"must specify a volume type|field not declared in schema|unknown field")
"""A pattern of what API servers say about a kind of volume that they do not know, if they say anything."""
_FIXED_SIZE = re.compile(r"must support resize")
"""A pattern of what they say about a claim whose StorageClass cannot enlarge volumes, which no waiting changes."""


def explain_refusal(ref: ChildRef, error: RefusedError, manifest: Manifest) -> ApplyFailure:
    """Return what the API server's refusal of a child means."""
    message = f"the API server refused {ref}: {error.message}"
    if _UNKNOWN_VOLUME_KIND.search(error.message) and _list_image_volumes(manifest):
        return _build_image_volumes_failure(message)
    is_lasting = isinstance(error, InvalidContentError) or _FIXED_SIZE.search(error.message) is not None
    return ApplyFailure("ChildRefused", message, is_transient=not is_lasting)


def _build_image_volumes_failure(message: str) -> ApplyFailure:
    return ApplyFailure(
        "ImageVolumesMissing",
        "spec.model.source.image: this cluster does not support image volumes, which need Kubernetes 1.33 and its "
        f"feature gate ImageVolume; enable it, or use another source; {message}",
    )


def _list_image_volumes(workload: Received) -> tuple[str, ...]:
    return Workload.parse(workload).spec.template.spec.image_volumes


class ChildApplier:
    """Carries out plans."""

    def __init__(self, kube: KubeClient, objects: ObjectCache) -> None:
        self._kube = kube
        self._objects = objects
        self._conflict_history = ConflictHistory()
        self._applied = AppliedDifferences()

    async def apply(self, plan: Plan, observed: ObservedState) -> ApplyFailure | None:
        """Carry out a plan; return what could not be done.

        Each child gets its turn, whatever became of the others, except for one that needs another.
        """
        results = PassResults(observed)
        if not await self._apply_replacement_times(plan, observed, results):
            return results.merge()  # the Service must not lead elsewhere before
        await self._delete_jobs(plan, observed, results)
        # KEDA refuses a ScaledObject as long as the Deployment has another autoscaler.
        scalers = [child for child in plan.prune if child.ref.kind in SCALER_KINDS]
        await self._prune(scalers, observed, results)
        await self._apply_children(plan, observed, results)
        await self._transfer_remaining_ownership(plan, observed, results)
        for label in plan.labels:
            ref = ChildRef(POD, label.pod.name)
            results.record(ref, await _attempt(ref, self._apply_label(label, observed)))
        if results.may_prune():
            unneeded = [child for child in plan.prune if child.ref.kind not in SCALER_KINDS]
            await self._prune(unneeded, observed, results)
        await self._create_jobs(plan, observed, results)
        return results.merge()

    async def _apply_replacement_times(
        self, plan: Plan, observed: ObservedState, results: PassResults
    ) -> bool:
        """Annotate the Deployments that were replaced; return whether all of them could be written."""
        for time in plan.replacement_times:
            ref = ChildRef("Deployment", time.deployment)
            if not results.record(ref, await _attempt(ref, self._apply_replacement_time(time, observed))):
                return False
        return True

    async def _apply_children(self, plan: Plan, observed: ObservedState, results: PassResults) -> None:
        """Apply the manifests in their order, each Deployment with the transfer of its `spec.replicas`."""
        transfers = {_read_target(transfer): transfer for transfer in plan.ownership_transfers}
        for manifest in plan.children:
            ref = read_ref(manifest)
            if results.may_write(ref):
                work = self._bring_up_to_date(manifest, observed, transfers.get(ref))
                results.record(ref, await _attempt(ref, work, manifest))

    async def _transfer_remaining_ownership(
        self, plan: Plan, observed: ObservedState, results: PassResults
    ) -> None:
        """Transfer `spec.replicas` of the Deployments that otherwise stay as they are."""
        applied = {read_ref(manifest) for manifest in plan.children}
        for transfer in plan.ownership_transfers:
            ref = _read_target(transfer)
            if ref not in applied:
                results.record(
                    ref, await _attempt(ref, self._transfer_replicas_ownership(observed, transfer))
                )

    async def _delete_jobs(self, plan: Plan, observed: ObservedState, results: PassResults) -> None:
        key = observed.resource.key
        for job in plan.jobs_to_delete:
            ref = ChildRef(JOB, job.name)
            log.info("%s: delete %s: another try, or no longer wanted", key, ref)
            if results.record(ref, await _attempt(ref, self._delete(key.namespace, ref, job.uid))):
                self._objects.drop_uid(JOB, job.uid)

    async def _create_jobs(self, plan: Plan, observed: ObservedState, results: PassResults) -> None:
        for manifest in plan.jobs_to_create:
            ref = read_ref(manifest)
            if results.may_write(ref):
                results.record(ref, await _attempt(ref, self._create_job(manifest, observed), manifest))

    async def _prune(self, children: Iterable[Child], observed: ObservedState, results: PassResults) -> None:
        key = observed.resource.key
        for child in children:
            log.info("%s: delete %s: no longer wanted", key, child.ref)
            work = self._delete(key.namespace, child.ref, child.uid)
            if results.record(child.ref, await _attempt(child.ref, work)):
                self._objects.drop(child.ref.kind, child.received)

    async def _delete(self, namespace: str, ref: ChildRef, uid: str) -> None:
        await self._kube.delete(namespace, ref, uid)

    async def _create_job(self, manifest: Manifest, observed: ObservedState) -> ApplyFailure | None:
        """Create a Job. One that exists by now was made for another service, and serves this one as well."""
        ref = read_ref(manifest)
        log.info("%s: create %s", observed.resource.key, ref)
        try:
            failure = await self._check_new_workload(manifest, observed)
            if failure is None:
                self._objects.put(JOB, await self._kube.create(manifest))
            return failure
        except ConflictError:
            log.info("%s: %s exists already", observed.resource.key, ref)
            return None

    async def _check_new_workload(self, manifest: Manifest, observed: ObservedState) -> ApplyFailure | None:
        """Return why the pods of a new Deployment or Job may not start; None for other children too."""
        if manifest["kind"] not in ("Deployment", JOB):
            return None
        return await self._check_pin(manifest, observed) or await self._check_image_volumes(manifest)

    async def _check_pin(self, manifest: Manifest, observed: ObservedState) -> ApplyFailure | None:
        """Refuse to start pods that would read a pin of somebody else, and so fetch what nobody asked for: the operator
        writes its own only once they have found a commit.
        """
        name = find_pin_name(manifest)
        if name is None or observed.find_child(ref := ChildRef("ConfigMap", name)) is not None:
            return None
        existing = await self._kube.get(observed.resource.key.namespace, ref)
        if existing is None:
            return None
        return _find_name_conflict(ref, Object.parse(existing).metadata, observed.resource)

    async def _check_image_volumes(self, manifest: Manifest) -> ApplyFailure | None:
        """Try a manifest that has an image volume, without creating it.

        An API server whose feature is off silently drops the image, and pods would find an empty folder in
        its place.
        """
        volumes = _list_image_volumes(manifest)
        if not volumes:
            return None
        accepted = await self._kube.create(manifest, dry_run=True)
        if _list_image_volumes(accepted) == volumes:
            return None
        return _build_image_volumes_failure(
            f"the API server leaves volume {volumes[0]} out of {read_ref(manifest)}"
        )

    async def _apply_label(self, label: PodLabel, observed: ObservedState) -> None:
        """Label a pod without restarting it, in addition to the labels that its Deployment gives it."""
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

    async def _apply_replacement_time(self, time: ReplacementTime, observed: ObservedState) -> None:
        """Annotate a Deployment with the time at which it was replaced, in addition to what else was applied to it."""
        key, ref = observed.resource.key, ChildRef("Deployment", time.deployment)
        deployment = observed.find_child(ref)
        if deployment is None:
            return
        log.info("%s: %s was replaced: %s", key, ref, time.replaced_at or "no longer")
        annotations = {} if time.replaced_at is None else {REPLACED_AT: time.replaced_at}
        meta = {
            "name": ref.name,
            "namespace": key.namespace,
            "uid": deployment.uid,
            "annotations": annotations,
        }
        manifest = {"apiVersion": "apps/v1", "kind": ref.kind, "metadata": meta}
        try:
            answer = await self._kube.apply(manifest, force=True, manager=HISTORY_MANAGER)
            self._objects.put(ref.kind, answer)
        except (ConflictError, NotFoundError):
            return  # the Deployment is gone, or another one has its name

    async def _bring_up_to_date(
        self, manifest: Manifest, observed: ObservedState, transfer: ReplicasOwnershipTransfer | None
    ) -> ApplyFailure | None:
        reason = find_reason_to_apply(manifest, observed.find_child(read_ref(manifest)), self._applied)
        if reason is None:
            if transfer is not None:
                await self._transfer_replicas_ownership(observed, transfer)
            return None
        return await self._apply_child(manifest, reason, observed, transfer)

    async def _apply_child(
        self,
        manifest: Manifest,
        reason: str,
        observed: ObservedState,
        transfer: ReplicasOwnershipTransfer | None,
    ) -> ApplyFailure | None:
        key, ref = observed.resource.key, read_ref(manifest)
        exists = observed.find_child(ref) is not None
        if not exists:
            # The caches hold only labelled objects; an unlabelled one of that name would be taken over unasked.
            existing = await self._kube.get(key.namespace, ref)
            if existing is not None:
                return await self._claim_unlabelled(
                    manifest, Object.parse(existing).metadata, observed.resource
                )
        log.info("%s: apply %s: %s", key, ref, reason)
        failure = None if exists else await self._check_new_workload(manifest, observed)
        if failure is not None:
            return failure
        if transfer is not None and exists:
            await self._transfer_replicas_ownership(observed, transfer)
        failure = await self._apply_over_conflicts(manifest, observed.resource.generation)
        if transfer is not None and not exists and failure is None:
            await self._transfer_replicas_ownership(observed, transfer)
        return failure

    async def _claim_unlabelled(
        self, manifest: Manifest, existing: Metadata, resource: Resource
    ) -> ApplyFailure | None:
        """Put the labels back on a child from which somebody took them; refuse an object of somebody else.

        This pass planned as if the child did not exist, so its manifest may restart pods for nothing. With the labels
        the watch sees the child again, which is followed by a pass that knows it.
        """
        ref = read_ref(manifest)
        name_conflict = _find_name_conflict(ref, existing, resource)
        if name_conflict is not None:
            return name_conflict
        log.info("%s: %s has lost its labels; putting them back", resource.key, ref)
        labels: Mapping[str, str] = manifest["metadata"]["labels"]
        answer = await self._kube.add_labels(resource.key.namespace, ref, existing.uid, labels)
        self._objects.put(ref.kind, answer)
        return None

    async def _transfer_replicas_ownership(
        self, observed: ObservedState, transfer: ReplicasOwnershipTransfer
    ) -> None:
        """Set the number of pods of a Deployment that is otherwise as it should be, or about to be."""
        key = observed.resource.key
        log.info("%s: %s pods for %s", key, transfer.replicas, transfer.deployment)
        manifest = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": transfer.deployment, "namespace": key.namespace},
            "spec": {"replicas": transfer.replicas},
        }
        self._objects.put("Deployment", await self._kube.apply(manifest, force=True, manager=SCALE_MANAGER))

    async def _apply_over_conflicts(self, manifest: Manifest, generation: int) -> ApplyFailure | None:
        """Apply a manifest for a generation of the spec.

        A field that was changed once is taken back; a manager that insists on it is reported, and everything but a
        number of pods that it insists on is written nevertheless.
        """
        ref, namespace = read_ref(manifest), manifest["metadata"]["namespace"]
        try:
            await self._apply_and_remember(manifest, force=False)
        except ConflictError as error:
            insisting = find_applying_managers(error.message, _OWN_FIELD_MANAGERS)
            if not insisting and await self._may_overrule(namespace, ref, generation, error.message):
                log.warning("%s/%s: %s; taking the fields back", namespace, ref, error)
                await self._apply_and_remember(manifest, force=True)
                return None
            if concerns_only_replicas(error.message):
                await self._apply_with_live_replicas(manifest)
            managers = " and ".join(insisting) or "another controller"
            return ApplyFailure(
                "FieldConflict",
                f"{ref}: {error.message}; {managers} sets these fields to other values and is not overruled: "
                "remove them there",
            )
        return None

    async def _may_overrule(self, namespace: str, ref: ChildRef, generation: int, message: str) -> bool:
        """Return whether to take fields back once more from managers that have updated them.

        An edit of the resource begins a new history.
        """
        now = asyncio.get_running_loop().time()
        if self._conflict_history.may_overrule((namespace, ref, generation), now):
            return True
        if not concerns_only_replicas(message) or find_managers(message) != {AUTOSCALING_MANAGER}:
            return False
        autoscalers = await self._kube.list_in_namespace(AUTOSCALER, namespace)
        return not any(
            HorizontalPodAutoscaler.parse(autoscaler).spec.scale_target_ref.name == ref.name
            for autoscaler in autoscalers
        )

    async def _apply_with_live_replicas(self, manifest: Manifest) -> None:
        """Apply a manifest with the number of pods that its Deployment has by the will of somebody else."""
        live = await self._kube.get(manifest["metadata"]["namespace"], read_ref(manifest))
        replicas = Deployment.parse(live or {}).spec.replicas
        try:
            changed = {**manifest, "spec": {**manifest["spec"], "replicas": replicas}}
            await self._apply_and_remember(changed, force=False)
        except ConflictError:
            return  # it has just been changed again; the next try is the queue's

    async def _apply_and_remember(self, manifest: Manifest, *, force: bool) -> None:
        answer = await self._kube.apply(manifest, force=force)
        self._applied.record(manifest, answer)
        self._objects.put(manifest["kind"], answer)


def _read_target(transfer: ReplicasOwnershipTransfer) -> ChildRef:
    return ChildRef("Deployment", transfer.deployment)


async def _attempt(
    ref: ChildRef, work: Awaitable[ApplyFailure | None], manifest: Manifest | None = None
) -> ApplyFailure | None:
    """Do something about a child; return what became of it where the API server answers that it cannot be done.

    Errors that say nothing about this child are raised, since they would meet all others as well.
    """
    try:
        return await work
    except RefusedError as error:
        return explain_refusal(ref, error, manifest or {})
    except FailedRequestError as error:
        return ApplyFailure("ChildNotWritten", f"the API server could not write {ref}: {error.message}")


def _find_name_conflict(ref: ChildRef, existing: Metadata, resource: Resource) -> ApplyFailure | None:
    """Return the failure that an object of somebody else has the name of a child; None where it is the child."""
    owner = existing.controller_uid
    if owner == resource.uid:
        return None
    owned = "belongs to another owner" if owner else "was not made by this operator"
    return ApplyFailure(
        "NameTaken",
        f"{ref} exists already and {owned}; delete it, or give EmbeddingService {resource.key.name} another name",
    )
