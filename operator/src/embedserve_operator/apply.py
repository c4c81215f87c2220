"""Makes the children what the plan says: server-side apply, prune, and no request where nothing changed."""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass
from typing import Any

from embedserve_operator.conflicts import Overrulings, applying_managers
from embedserve_operator.drift import reason_to_apply
from embedserve_operator.errors import ConflictError, NotFoundError, RefusedError
from embedserve_operator.kinds import JOB, POD
from embedserve_operator.kube import FIELD_MANAGER, SCALE_MANAGER, Kube
from embedserve_operator.plan import HandOver, Plan, PodLabel
from embedserve_operator.specs.metadata import SPACE_LABEL, controller_uid, ref_of
from embedserve_operator.store import Store
from embedserve_operator.wire import Manifest, Received, dig, mappings, text
from embedserve_operator.world import ChildRef, Resource, World

log = logging.getLogger(__name__)

_OURS = frozenset({FIELD_MANAGER, SCALE_MANAGER})


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a child could not be made what it should be."""

    reason: str
    message: str


_UNKNOWN_KIND = re.compile(r"must specify a volume type|field not declared in schema|unknown field")
"""What API servers say of a kind of volume that they do not know, if they say anything."""


def refused(ref: ChildRef, said: str, manifest: Manifest) -> Refusal:
    """What the API server's refusal of a child means."""
    if _UNKNOWN_KIND.search(said) and _image_volumes(manifest):
        return _no_image_volumes(f"the API server refused {ref}: {said}")
    return Refusal("ChildRefused", f"the API server refused {ref}: {said}")


def _no_image_volumes(said: str) -> Refusal:
    return Refusal(
        "ImageVolumesMissing",
        "spec.model.source.image: this cluster knows no image volumes, which come with Kubernetes 1.33 and its "
        f"feature ImageVolume; switch it on, or take the model from another source; {said}",
    )


def _image_volumes(manifest: Any) -> list[str]:
    volumes = mappings(dig(manifest, "spec", "template", "spec"), "volumes")
    return [text(volume, "name") for volume in volumes if "image" in volume]


class Applier:
    """Carries plans out."""

    def __init__(self, kube: Kube, store: Store) -> None:
        self._kube = kube
        self._store = store
        self._overrulings = Overrulings()

    async def apply(self, plan: Plan, world: World) -> Refusal | None:
        """Carry a plan out. The first refusal ends it: what comes later rests on what comes before."""
        for job in plan.remove:
            ref = ChildRef(JOB, job.name)
            log.info("%s: delete %s: another try, or no longer wanted", world.resource.key, ref)
            await self._kube.delete(world.resource.key.namespace, ref, job.uid)
            self._store.drop_uid(JOB, job.uid)
        for manifest in plan.children:
            why = reason_to_apply(manifest, world.child(ref_of(manifest)))
            if why is None:
                await self._follow(manifest, world, plan.hand_over)
                continue
            refusal = await self._apply_one(manifest, why, world, plan.hand_over)
            if refusal is not None:
                return refusal
        for label in plan.labels:
            await self._label(label, world)
        for child in plan.prune:
            log.info("%s: delete %s: no longer wanted", world.resource.key, child.ref)
            await self._kube.delete(world.resource.key.namespace, child.ref, child.uid)
            self._store.drop(child.ref.kind, child.received)
        return await self._start(plan, world)

    async def _start(self, plan: Plan, world: World) -> Refusal | None:
        """Create Jobs. One that is there by now was made for another service, and does as well."""
        for manifest in plan.start:
            ref = ref_of(manifest)
            log.info("%s: create %s", world.resource.key, ref)
            try:
                dropped = await self._dropped(manifest)
                if dropped is not None:
                    return dropped
                self._store.put(JOB, await self._kube.create(manifest))
            except ConflictError:
                log.info("%s: %s exists already", world.resource.key, ref)
            except RefusedError as error:
                return refused(ref, error.message, manifest)
        return None

    async def _dropped(self, manifest: Manifest) -> Refusal | None:
        """Tries what has an image volume. An API server whose feature is off leaves the image out without a word, and
        pods would find an empty folder in its place."""
        wanted = _image_volumes(manifest)
        if not wanted:
            return None
        made = await self._kube.create(manifest, dry_run=True)
        if _image_volumes(made) == wanted:
            return None
        return _no_image_volumes(f"the API server leaves volume {wanted[0]} out of {ref_of(manifest)}")

    async def _label(self, label: PodLabel, world: World) -> None:
        """Beside the labels of its Deployment, and without a restart."""
        key = world.resource.key
        log.info("%s: label pod %s: %s", key, label.pod.name, label.space)
        meta = {"name": label.pod.name, "namespace": key.namespace, "uid": label.pod.uid}
        manifest = {
            "apiVersion": "v1",
            "kind": POD,
            "metadata": {**meta, "labels": {SPACE_LABEL: label.space}},
        }
        try:
            self._store.put(POD, await self._kube.apply(manifest, force=True))
        except (ConflictError, NotFoundError):
            return  # the pod is gone, or another one has its name

    async def _apply_one(
        self, manifest: Manifest, why: str, world: World, hand_over: HandOver | None
    ) -> Refusal | None:
        key, ref = world.resource.key, ref_of(manifest)
        exists = world.child(ref) is not None
        if not exists:
            # The caches hold labelled objects only; an unlabelled one of that name would be taken over unasked.
            existing = await self._kube.get(key.namespace, ref)
            if existing is not None and controller_uid(existing) != world.resource.uid:
                return Refusal("NameTaken", _taken(ref.kind, ref.name, existing, world.resource))
        log.info("%s: apply %s: %s", key, ref, why)
        claims = hand_over is not None and ref == ChildRef("Deployment", hand_over.deployment)
        try:
            dropped = None if exists else await self._dropped(manifest)
            if dropped is not None:
                return dropped
            if hand_over is not None and claims and exists:
                await self._claim(manifest, hand_over)
            refusal = await self._apply_over_conflicts(manifest)
            if hand_over is not None and claims and not exists and refusal is None:
                await self._claim(manifest, hand_over)
        except RefusedError as error:
            return refused(ref, error.message, manifest)
        return refusal

    async def _follow(self, manifest: Manifest, world: World, hand_over: HandOver | None) -> None:
        """Claim another number for a Deployment that is otherwise as it should be."""
        if hand_over is None or ref_of(manifest) != ChildRef("Deployment", hand_over.deployment):
            return
        log.info("%s: %s pods for %s", world.resource.key, hand_over.replicas, hand_over.deployment)
        await self._claim(manifest, hand_over)

    async def _claim(self, manifest: Manifest, hand_over: HandOver) -> None:
        """Keep the number of pods while it is no longer sent, until an autoscaler writes another."""
        meta = {key: manifest["metadata"][key] for key in ("name", "namespace")}
        claim = {
            "apiVersion": manifest["apiVersion"],
            "kind": manifest["kind"],
            "metadata": meta,
            "spec": {"replicas": hand_over.replicas},
        }
        got = await self._kube.apply(claim, force=True, manager=SCALE_MANAGER)
        self._store.put(manifest["kind"], got)

    async def _apply_over_conflicts(self, manifest: Manifest) -> Refusal | None:
        """What was changed once is put right; a manager that insists is reported."""
        kind, ref, meta = manifest["kind"], ref_of(manifest), manifest["metadata"]
        try:
            self._store.put(kind, await self._kube.apply(manifest, force=False))
        except ConflictError as error:
            insist = applying_managers(error.message, _OURS)
            now = asyncio.get_running_loop().time()
            if insist or not self._overrulings.may_overrule((meta["namespace"], ref), now):
                who = " and ".join(insist) or "another controller"
                return Refusal(
                    "FieldConflict",
                    f"{ref}: {error.message}; {who} wants these fields different and is not overruled: "
                    "make it leave them out",
                )
            log.warning("%s/%s: %s; taking the fields back", meta["namespace"], ref, error)
            self._store.put(kind, await self._kube.apply(manifest, force=True))
        return None


def _taken(kind: str, name: str, existing: Received, resource: Resource) -> str:
    owned = "belongs to another owner" if controller_uid(existing) else "was not made by this operator"
    return (
        f"{kind} {name} exists already and {owned}; delete it, or give EmbeddingService {resource.key.name} "
        "another name"
    )
