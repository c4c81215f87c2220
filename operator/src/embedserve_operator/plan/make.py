"""The plan for one resource, put together from the decisions of this folder."""

from __future__ import annotations

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.plan import conditions as words
from embedserve_operator.plan.failures import worst
from embedserve_operator.plan.outcome import Plan, PlannedStatus
from embedserve_operator.plan.revision import revision_of
from embedserve_operator.plan.rollout import Rollout, steer
from embedserve_operator.plan.status import served, unchanged
from embedserve_operator.settings import RenderSettings
from embedserve_operator.specs.configmap import config_map
from embedserve_operator.specs.deployment import deployment, template_hash, wanted_replicas
from embedserve_operator.specs.metadata import fingerprint_of, ref_of
from embedserve_operator.specs.runtime_config import source_words
from embedserve_operator.specs.service import service
from embedserve_operator.wire import Manifest
from embedserve_operator.world import Child, ChildRef, World


def make_plan(world: World, settings: RenderSettings) -> Plan:
    """Decide what the children should be and what there is to say."""
    spec = world.resource.spec
    if spec is None:
        # What runs goes on running: a resource that cannot be read is no order to change anything.
        return Plan((), (), unchanged(world.resource, words.invalid(world.resource.problem)))
    wanted = revision_of(spec)
    config = config_map(world.resource, spec, settings)
    pods = deployment(world.resource, spec, settings, revision=wanted, config=config["metadata"]["name"])
    rollout = steer(world, wanted=wanted, fingerprint=fingerprint_of(pods), replicas=wanted_replicas(spec))
    children = (config, pods, service(world.resource, rollout.serving))
    return Plan(
        children=children,
        prune=_unwanted(world, children, rollout),
        status=_status(world, spec, rollout, pods),
    )


def _status(world: World, spec: EmbeddingServiceSpec, rollout: Rollout, wanted: Manifest) -> PlannedStatus:
    pods = tuple(
        pod
        for pod in world.pods_of(rollout.wanted)
        if pod.template == template_hash(wanted) and pod.phase != "Ending"
    )
    situation = words.Situation(
        rollout=rollout,
        replicas=wanted_replicas(spec),
        suspended=spec.suspend,
        serving=world.deployment(rollout.serving),
        pods=pods,
        failure=None if rollout.complete else worst(world.deployment(rollout.wanted), pods),
    )
    source = None if rollout.waits else source_words(spec.model.source)
    return served(world, rollout.serving, source, words.conditions(situation))


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
    needed |= {ChildRef("Deployment", found.name) for found in world.deployments if found.revision == keep}
    in_use = {pod.config for pod in world.pods} | {found.config for found in world.deployments}
    needed |= {
        child.ref
        for child in world.children
        if child.ref.kind == "ConfigMap" and (not rollout.complete or child.ref.name in in_use)
    }
    return frozenset(needed)
