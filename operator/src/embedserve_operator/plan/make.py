"""The plan for one resource, put together from the decisions of this folder."""

from __future__ import annotations

from dataclasses import dataclass, replace

from embedserve_operator.api.status import HardwareStatus
from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.kinds import SCALED_OBJECT, SERVICE_MONITOR
from embedserve_operator.plan import conditions as words
from embedserve_operator.plan.cache import cache_refusal, is_kept_claim, model_volume
from embedserve_operator.plan.failures import beside_another, mixed, unproved, worst
from embedserve_operator.plan.outcome import Plan, PlannedStatus
from embedserve_operator.plan.pins import pin_of, pins_in_use
from embedserve_operator.plan.placement import matching_nodes, placement_failure
from embedserve_operator.plan.preparation import Preparation, prepare
from embedserve_operator.plan.progress import fetchers, fetching
from embedserve_operator.plan.refusals import refusal
from embedserve_operator.plan.revision import revision_of
from embedserve_operator.plan.rollout import Rollout, Wanted, steer
from embedserve_operator.plan.scaling import (
    at_maximum,
    autoscaling_status,
    hand_over,
    replicas_now,
    scalers,
    scaling_condition,
)
from embedserve_operator.plan.spaces import space_of
from embedserve_operator.plan.status import served, unchanged
from embedserve_operator.plan.talks import labels, notices, questions
from embedserve_operator.settings import RenderSettings
from embedserve_operator.specs.configmap import config_map
from embedserve_operator.specs.deployment import deployment, template_hash
from embedserve_operator.specs.disruption import disruption_budget
from embedserve_operator.specs.metadata import fingerprint_of, ref_of, space_name
from embedserve_operator.specs.network_policy import network_policy
from embedserve_operator.specs.placement import demand
from embedserve_operator.specs.runtime_config import source_words
from embedserve_operator.specs.service import service, space_service
from embedserve_operator.specs.service import url as service_url
from embedserve_operator.specs.service_monitor import service_monitor
from embedserve_operator.specs.volume import ModelVolume
from embedserve_operator.wire import Manifest
from embedserve_operator.world import Child, ChildRef, Fetched, World


def make_plan(world: World, settings: RenderSettings) -> Plan:
    """Decide what the children should be and what there is to say."""
    spec = world.resource.spec
    if spec is None:
        # What runs goes on running: a resource that cannot be read is no order to change anything.
        return Plan((), (), unchanged(world.resource, words.invalid(world.resource.problem)))
    refused = refusal(spec, settings)
    if refused is not None:
        serving = world.deployment(world.serving_revision or "")
        return Plan((), (), unchanged(world.resource, words.refused(refused, serving)))
    refused = cache_refusal(world, spec, settings)
    if refused is not None:
        serving = world.deployment(world.serving_revision or "")
        return Plan((), (), unchanged(world.resource, words.refused(refused, serving)))
    volume = model_volume(world, spec)
    prepared = prepare(world, spec, settings, volume)
    if prepared.report is not None:
        world = replace(world, fetched=Fetched(revision_of(spec), prepared.report))
    made = _Made.of(world, spec, settings, volume, prepared)
    rollout = steer(world, spec, made.wanted)
    children = _children(world, spec, settings, rollout, made)
    ends = [one.until for one in rollout.kept]
    return Plan(
        children=children,
        prune=_unwanted(world, children, rollout, prepared),
        status=_status(world, spec, settings, rollout, made),
        start=prepared.start if rollout.state != "Refused" else (),
        remove=prepared.remove,
        hand_over=hand_over(world, spec, rollout) if prepared.serves else None,
        labels=labels(world),
        notices=notices(world, rollout),
        questions=questions(world, rollout, made.wanted),
        fetchers=fetchers(world, made.wanted, prepared.fetch),
        wake_after=max(1, min(ends) - world.now) if ends else None,
    )


@dataclass(frozen=True, slots=True)
class _Made:
    """What the manifest's own revision consists of."""

    config: Manifest
    pods: Manifest
    wanted: Wanted
    volume: ModelVolume | None
    prepared: Preparation

    @classmethod
    def of(
        cls,
        world: World,
        spec: EmbeddingServiceSpec,
        settings: RenderSettings,
        volume: ModelVolume | None,
        prepared: Preparation,
    ) -> _Made:
        revision = revision_of(spec)
        config = config_map(world.resource, spec, settings)
        pods = deployment(
            world.resource,
            spec,
            settings,
            world.cluster,
            revision=revision,
            config=config["metadata"]["name"],
            space=space_of(world, revision),
            volume=volume,
            report=prepared.report,
        )
        replicas = replicas_now(world, spec, revision)
        # What is not prepared cannot be complete.
        fingerprint = fingerprint_of(pods) if prepared.ready else ""
        wanted = Wanted(revision, fingerprint, template_hash(pods), replicas)
        return cls(config, pods, wanted, volume, prepared)


def _children(
    world: World, spec: EmbeddingServiceSpec, settings: RenderSettings, rollout: Rollout, made: _Made
) -> tuple[Manifest, ...]:
    """In the order in which they need each other: what leads to a space's pods is there before the switch to them."""
    resource = world.resource
    prepared, volume = made.prepared, made.volume
    # Pods of the revisions that stay may have to fetch again.
    fetches = (volume is None and spec.model.source.is_remote) or rollout.waits or bool(rollout.kept)
    by_job = volume is not None and not volume.is_filled
    takes_part = rollout.state != "Refused"
    # One that waits for another conversion goes on being scaled.
    is_scaled = not rollout.waits and (prepared.serves or world.deployment(rollout.wanted) is not None)
    found = (
        *prepared.children,
        made.config if takes_part else None,
        pin_of(world, spec, rollout.wanted),
        network_policy(resource, spec, settings, fetches=fetches, by_job=by_job),
        made.pods if takes_part and prepared.serves else None,
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
    wanted = rollout.wanted_space if rollout.waits and rollout.state != "Refused" else None
    found = (rollout.space, wanted, *(one.former.space for one in rollout.kept))
    return tuple(dict.fromkeys(space for space in found if space is not None))


def _status(
    world: World, spec: EmbeddingServiceSpec, settings: RenderSettings, rollout: Rollout, made: _Made
) -> PlannedStatus:
    wanted, prepared = made.wanted, made.prepared
    pods = tuple(
        pod
        for pod in world.pods_of(wanted.revision)
        if pod.template == wanted.template and pod.phase != "Ending"
    )
    failure = prepared.failure
    if failure is None and prepared.ready and not rollout.complete and wanted.replicas > 0:
        unplaced = placement_failure(spec, settings, world.cluster, pods)
        failure = mixed(world, rollout) or worst(world.deployment(rollout.wanted), pods, unplaced)
        failure = beside_another(failure, rollout)
    elif rollout.state == "Checking":
        failure = unproved(pods)
    situation = words.Situation(
        rollout=rollout,
        replicas=wanted.replicas,
        suspended=spec.suspend,
        autoscaled=spec.autoscaling is not None,
        serving=world.deployment(rollout.serving),
        pods=pods,
        failure=failure,
        preparing=prepared.words,
        held_at=service_url(world.resource, rollout.wanted_space) if rollout.state == "Held" else "",
    )
    source = None if rollout.waits else source_words(spec.model.source)
    hardware = HardwareStatus(
        class_=spec.hardware.class_, matching_nodes=matching_nodes(demand(spec, settings), world.cluster)
    )
    scaling = scaling_condition(world, spec, settings, rollout.serving)
    said = words.conditions(situation) + ((scaling,) if scaling is not None else ())
    found = served(world, rollout, source, hardware, said)
    progress = fetching(fetchers(world, wanted, prepared.fetch))
    return replace(
        found,
        model=found.model.model_copy(update={"fetching": progress}) if found.model is not None else None,
        fetch=prepared.fetch,
        conversion=prepared.conversion,
        autoscaling=autoscaling_status(world, spec, rollout.serving),
        at_maximum=at_maximum(world, rollout.serving),
    )


def _unwanted(
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
