"""The plan for one resource, put together from the decisions of this folder."""

from __future__ import annotations

from dataclasses import replace

from embedserve_operator.api.status import HardwareStatus
from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.kinds import SCALED_OBJECT, SERVICE_MONITOR
from embedserve_operator.plan import conditions as words
from embedserve_operator.plan.failures import worst
from embedserve_operator.plan.outcome import Plan, PlannedStatus
from embedserve_operator.plan.placement import matching_nodes, placement_failure
from embedserve_operator.plan.refusals import refusal
from embedserve_operator.plan.revision import revision_of
from embedserve_operator.plan.rollout import Rollout, steer
from embedserve_operator.plan.scaling import (
    at_maximum,
    autoscaling_status,
    hand_over,
    replicas_now,
    scalers,
    scaling_condition,
)
from embedserve_operator.plan.status import served, unchanged
from embedserve_operator.settings import RenderSettings
from embedserve_operator.specs.configmap import config_map
from embedserve_operator.specs.deployment import deployment, template_hash
from embedserve_operator.specs.disruption import disruption_budget
from embedserve_operator.specs.metadata import fingerprint_of, ref_of
from embedserve_operator.specs.network_policy import fetches_over_network, network_policy
from embedserve_operator.specs.placement import demand
from embedserve_operator.specs.runtime_config import source_words
from embedserve_operator.specs.service import service
from embedserve_operator.specs.service_monitor import service_monitor
from embedserve_operator.wire import Manifest
from embedserve_operator.world import Child, ChildRef, World


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
    wanted = revision_of(spec)
    config = config_map(world.resource, spec, settings)
    pods = deployment(
        world.resource, spec, settings, world.cluster, revision=wanted, config=config["metadata"]["name"]
    )
    replicas = replicas_now(world, spec, wanted)
    rollout = steer(world, wanted=wanted, fingerprint=fingerprint_of(pods), replicas=replicas)
    children = _children(world, spec, settings, rollout, config=config, pods=pods)
    return Plan(
        children=children,
        prune=_unwanted(world, children, rollout),
        status=_status(world, spec, settings, rollout, wanted=pods, replicas=replicas),
        hand_over=hand_over(world, spec, rollout),
    )


def _children(
    world: World,
    spec: EmbeddingServiceSpec,
    settings: RenderSettings,
    rollout: Rollout,
    *,
    config: Manifest,
    pods: Manifest,
) -> tuple[Manifest, ...]:
    """In the order in which they need each other."""
    resource = world.resource
    # Pods of the revision that still serves may have to fetch again.
    fetches = fetches_over_network(spec) or rollout.waits
    found = (
        config,
        network_policy(resource, spec, settings, fetches=fetches),
        pods,
        service(resource, spec.service, rollout.serving),
        *(() if rollout.waits else scalers(world, spec, settings, rollout.wanted)),
        disruption_budget(resource, spec),
        service_monitor(resource, spec) if SERVICE_MONITOR in world.cluster.optional_kinds else None,
    )
    return tuple(child for child in found if child is not None)


def _status(
    world: World,
    spec: EmbeddingServiceSpec,
    settings: RenderSettings,
    rollout: Rollout,
    *,
    wanted: Manifest,
    replicas: int,
) -> PlannedStatus:
    pods = tuple(
        pod
        for pod in world.pods_of(rollout.wanted)
        if pod.template == template_hash(wanted) and pod.phase != "Ending"
    )
    failure = None
    if not rollout.complete and replicas > 0:
        unplaced = placement_failure(spec, settings, world.cluster, pods)
        failure = worst(world.deployment(rollout.wanted), pods, unplaced)
    situation = words.Situation(
        rollout=rollout,
        replicas=replicas,
        suspended=spec.suspend,
        autoscaled=spec.autoscaling is not None,
        serving=world.deployment(rollout.serving),
        pods=pods,
        failure=failure,
    )
    source = None if rollout.waits else source_words(spec.model.source)
    hardware = HardwareStatus(
        class_=spec.hardware.class_, matching_nodes=matching_nodes(demand(spec, settings), world.cluster)
    )
    scaling = scaling_condition(world, spec, settings, rollout.serving)
    said = words.conditions(situation) + ((scaling,) if scaling is not None else ())
    return replace(
        served(world, rollout.serving, source, hardware, said),
        autoscaling=autoscaling_status(world, spec, rollout.serving),
        at_maximum=at_maximum(world, rollout.serving),
    )


def _unwanted(world: World, children: tuple[Manifest, ...], rollout: Rollout) -> tuple[Child, ...]:
    """Existing children that are neither wanted nor still needed."""
    wanted = {ref_of(child) for child in children}
    needed = _still_needed(world, rollout)
    return tuple(child for child in world.children if child.ref not in wanted | needed)


def _still_needed(world: World, rollout: Rollout) -> frozenset[ChildRef]:
    """The Deployment that serves meanwhile, and ConfigMaps that a pod mounts or may yet mount.

    Until the wanted Deployment is complete, an older ReplicaSet of it can still start pods, and those want
    their ConfigMap, whose name no longer stands in any Deployment. So ConfigMaps go only after completion.
    """
    needed: set[ChildRef] = set()
    # The Service must have been seen to point at the wanted revision before what it pointed at goes.
    switched = world.serving_revision == rollout.wanted
    keep = rollout.serving if switched else world.serving_revision
    kept = [found for found in world.deployments if found.revision == keep]
    needed |= {ChildRef("Deployment", found.name) for found in kept}
    if keep != rollout.wanted:
        # Its autoscaler has the same name, and goes on with it.
        needed |= {
            ChildRef(kind, found.name)
            for found in kept
            if found.autoscaled
            for kind in ("HorizontalPodAutoscaler", SCALED_OBJECT)
        }
    in_use = {pod.config for pod in world.pods} | {found.config for found in world.deployments}
    needed |= {
        child.ref
        for child in world.children
        if child.ref.kind == "ConfigMap" and (not rollout.complete or child.ref.name in in_use)
    }
    return frozenset(needed)
