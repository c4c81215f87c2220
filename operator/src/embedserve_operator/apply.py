"""Makes the children what the plan says: server-side apply, prune, and no request where nothing changed."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from embedserve_operator.drift import reason_to_apply
from embedserve_operator.errors import ConflictError, RefusedError
from embedserve_operator.kube import Kube
from embedserve_operator.observe import controller_uid
from embedserve_operator.plan import Plan
from embedserve_operator.specs.metadata import ref_of
from embedserve_operator.store import Store
from embedserve_operator.wire import Manifest, Received
from embedserve_operator.world import Resource, World

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a child could not be made what it should be."""

    reason: str
    message: str


async def apply(plan: Plan, world: World, kube: Kube, store: Store) -> Refusal | None:
    """Carry the plan out. The first refusal ends it: what comes later rests on what comes before."""
    for manifest in plan.children:
        why = reason_to_apply(manifest, world.child(ref_of(manifest)))
        if why is None:
            continue
        refusal = await _apply_one(manifest, why, world, kube, store)
        if refusal is not None:
            return refusal
    for child in plan.prune:
        log.info("%s: delete %s: it is wanted no longer", world.resource.key, child.ref)
        await kube.delete(world.resource.key.namespace, child.ref, child.uid)
        store.drop(child.ref.kind, child.received)
    return None


async def _apply_one(manifest: Manifest, why: str, world: World, kube: Kube, store: Store) -> Refusal | None:
    key, ref = world.resource.key, ref_of(manifest)
    if world.child(ref) is None:
        # The caches hold labelled objects only; an unlabelled one of that name would be taken over unasked.
        existing = await kube.get(key.namespace, ref)
        if existing is not None and controller_uid(existing) != world.resource.uid:
            return Refusal("NameTaken", _taken(ref.kind, ref.name, existing, world.resource))
    log.info("%s: apply %s: %s", key, ref, why)
    try:
        store.put(ref.kind, await _apply_over_conflicts(manifest, kube))
    except RefusedError as error:
        return Refusal("ChildRefused", f"the API server refused {ref}: {error.message}")
    return None


async def _apply_over_conflicts(manifest: Manifest, kube: Kube) -> Received:
    """Our children are ours: who else wrote into our fields is named in the log, and overruled."""
    try:
        return await kube.apply(manifest, force=False)
    except ConflictError as error:
        log.warning(
            "%s/%s: %s; taking the fields back", manifest["metadata"]["namespace"], ref_of(manifest), error
        )
        return await kube.apply(manifest, force=True)


def _taken(kind: str, name: str, existing: Received, resource: Resource) -> str:
    owned = "belongs to another owner" if controller_uid(existing) else "was not made by this operator"
    return (
        f"{kind} {name} exists already and {owned}; delete it, or give EmbeddingService {resource.key.name} "
        "another name"
    )
