"""The children that a resource should have, and which of those that exist may go."""

from __future__ import annotations

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.kinds import SCALED_OBJECT, SERVICE_MONITOR
from embedserve_operator.plan.cache import is_kept_claim
from embedserve_operator.plan.made import Made
from embedserve_operator.plan.pins import pin_of, pins_in_use
from embedserve_operator.plan.preparation import Preparation
from embedserve_operator.plan.rollout import Rollout
from embedserve_operator.plan.scaling import scalers
from embedserve_operator.settings import RenderSettings
from embedserve_operator.specs.disruption import disruption_budget
from embedserve_operator.specs.metadata import ref_of, space_name
from embedserve_operator.specs.network_policy import network_policy
from embedserve_operator.specs.service import service, space_service
from embedserve_operator.specs.service_monitor import service_monitor
from embedserve_operator.wire import Manifest
from embedserve_operator.world import Child, ChildRef, World


def children_of(
    world: World, spec: EmbeddingServiceSpec, settings: RenderSettings, rollout: Rollout, made: Made
) -> tuple[Manifest, ...]:
    """In the order in which they need each other: what leads to a space's pods is there before the switch to them."""
    resource = world.resource
    prepared, volume = made.prepared, made.volume
    # Pods of the revisions that stay may have to fetch again.
    fetches = (volume is None and spec.model.source.is_remote) or rollout.waits or bool(rollout.kept)
    by_job = volume is not None and not volume.is_filled
    # One that waits for another conversion goes on being scaled.
    is_scaled = not rollout.waits and (prepared.serves or world.deployment(rollout.wanted) is not None)
    found = (
        *prepared.children,
        made.config,
        pin_of(world, spec, rollout.wanted),
        network_policy(resource, spec, settings, fetches=fetches, by_job=by_job),
        made.pods if prepared.serves else None,
        *(
            space_service(resource, spec.service, space, is_current=space == rollout.space)
            for space in _living_spaces(rollout)
        ),
        service(resource, spec.service, rollout.serving, rollout.space),
        *(scalers(world, spec, settings, rollout.wanted) if is_scaled else ()),
        disruption_budget(resource, spec, resource.key.name, rollout.serving, volume),
        *(
            disruption_budget(
                resource, spec, space_name(resource, one.former.space), one.former.revision, volume
            )
            for one in rollout.kept
        ),
        service_monitor(resource, spec) if SERVICE_MONITOR in world.cluster.optional_kinds else None,
    )
    return tuple(child for child in found if child is not None)


def _living_spaces(rollout: Rollout) -> tuple[str, ...]:
    """Those that have pods, or will have, each once."""
    wanted = rollout.wanted_space if rollout.waits else None
    found = (rollout.space, wanted, *(one.former.space for one in rollout.kept))
    return tuple(dict.fromkeys(space for space in found if space is not None))


def unwanted(
    world: World, children: tuple[Manifest, ...], rollout: Rollout, prepared: Preparation
) -> tuple[Child, ...]:
    """Existing children that are neither wanted nor still needed."""
    wanted = {ref_of(child) for child in children}
    needed = _still_needed(world, rollout, prepared)
    return tuple(
        child for child in world.children if child.ref not in wanted | needed and not is_kept_claim(child)
    )


def _still_needed(world: World, rollout: Rollout, prepared: Preparation) -> frozenset[ChildRef]:
    """The Deployments that serve meanwhile or are kept, and ConfigMaps that a pod mounts or may yet mount.

    Until the wanted Deployment is complete, an older ReplicaSet of it can still start pods, and those want
    their ConfigMap, whose name no longer stands in any Deployment. So ConfigMaps go only after completion.
    """
    needed: set[ChildRef] = set()
    # The Service must have been seen to point at the wanted revision before what it pointed at goes.
    switched = world.serving_revision == rollout.wanted
    keep = rollout.serving if switched else world.serving_revision
    if prepared.clears:
        keep = None
    # One that waits for another fetch or conversion stays as it is meanwhile.
    stay = {keep} if prepared.serves or prepared.clears else {keep, rollout.wanted}
    kept = [found for found in world.deployments if found.revision in stay]
    needed |= {ChildRef("Deployment", found.name) for found in kept}
    if keep != rollout.wanted:
        # Its autoscaler has the same name, and goes on with it.
        needed |= {
            ChildRef(kind, found.name)
            for found in kept
            if found.autoscaled
            for kind in ("HorizontalPodAutoscaler", SCALED_OBJECT)
        }
    back = set() if prepared.clears else {one.former.revision for one in rollout.kept}
    needed |= {ChildRef("Deployment", found.name) for found in world.deployments if found.revision in back}
    in_use = {pod.config for pod in world.pods} | {found.config for found in world.deployments}
    in_use |= {found.config for found in world.jobs if found.state == "Running"}
    needed |= pins_in_use(world)
    needed |= {
        child.ref
        for child in world.children
        if child.ref.kind == "ConfigMap" and (not rollout.complete or child.ref.name in in_use)
    }
    return frozenset(needed)
