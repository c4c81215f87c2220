"""The whole status that a pass publishes: what is served, and how far it is from what the manifest asks for."""

from __future__ import annotations

from dataclasses import replace

from embedserve_operator.api.status import HardwareStatus
from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.plan import conditions as words
from embedserve_operator.plan.failures import beside_another, mixed, unproved, worst
from embedserve_operator.plan.made import Made
from embedserve_operator.plan.outcome import PlannedStatus
from embedserve_operator.plan.placement import matching_nodes, placement_failure
from embedserve_operator.plan.progress import fetching
from embedserve_operator.plan.rollout import Rollout
from embedserve_operator.plan.scaling import at_maximum, autoscaling_status, scaling_condition
from embedserve_operator.plan.status import rollout_status, served
from embedserve_operator.settings import RenderSettings
from embedserve_operator.specs.placement import demand
from embedserve_operator.specs.runtime_config import source_words
from embedserve_operator.specs.service import url as service_url
from embedserve_operator.world import Failure, Fetcher, PodFacts, World


def statement(
    world: World,
    spec: EmbeddingServiceSpec,
    settings: RenderSettings,
    *,
    rollout: Rollout,
    made: Made,
    asked: tuple[Fetcher, ...],
    refused: Rollout | None,
) -> PlannedStatus:
    """The status. `refused` is the change of the model that the manifest asks for and that is not made; then `spec` and
    `rollout` are about what is done instead. `asked` are the pods that can say how far the fetch is."""
    wanted, prepared = made.wanted, made.prepared
    pods = tuple(
        pod
        for pod in world.pods_of(wanted.revision)
        if pod.template == wanted.template and pod.phase != "Ending"
    )
    situation = words.Situation(
        rollout=rollout,
        refused=refused,
        replicas=wanted.replicas,
        suspended=spec.suspend,
        autoscaled=spec.autoscaling is not None,
        serving=world.deployment(rollout.serving),
        pods=pods,
        failure=_failure(world, spec, settings, rollout=rollout, made=made, pods=pods),
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
    progress = fetching(asked)
    return replace(
        found,
        model=found.model.model_copy(update={"fetching": progress}) if found.model is not None else None,
        rollout=rollout_status(world, refused or rollout),
        fetch=prepared.fetch,
        conversion=prepared.conversion,
        autoscaling=autoscaling_status(world, spec, rollout.serving),
        at_maximum=at_maximum(world, rollout.serving),
    )


def _failure(
    world: World,
    spec: EmbeddingServiceSpec,
    settings: RenderSettings,
    *,
    rollout: Rollout,
    made: Made,
    pods: tuple[PodFacts, ...],
) -> Failure | None:
    """What keeps the wanted revision from serving. pods: of its present template."""
    prepared = made.prepared
    if prepared.failure is None and prepared.ready and not rollout.complete and made.wanted.replicas > 0:
        unplaced = placement_failure(spec, settings, world.cluster, pods)
        found = mixed(world, rollout) or worst(world.deployment(rollout.wanted), pods, unplaced)
        return beside_another(found, rollout)
    return unproved(pods) if rollout.state == "Checking" else prepared.failure
