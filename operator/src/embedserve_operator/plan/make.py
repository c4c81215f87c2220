"""The plan for one resource, put together from the decisions of this folder."""

from __future__ import annotations

from dataclasses import dataclass, replace

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.plan import conditions as words
from embedserve_operator.plan.cache import cache_refusal
from embedserve_operator.plan.children import children_of, unwanted
from embedserve_operator.plan.held import with_model_of
from embedserve_operator.plan.made import Made, made_of
from embedserve_operator.plan.outcome import Plan
from embedserve_operator.plan.progress import fetchers
from embedserve_operator.plan.refusals import refusal
from embedserve_operator.plan.rollout import Rollout, steer
from embedserve_operator.plan.scaling import hand_over
from embedserve_operator.plan.statement import statement
from embedserve_operator.plan.status import rollout_status, unchanged
from embedserve_operator.plan.talks import labels, notices, questions
from embedserve_operator.settings import RenderSettings
from embedserve_operator.world import Failure, World


def make_plan(world: World, settings: RenderSettings) -> Plan:
    """Decide what the children should be and what there is to say."""
    spec = world.resource.spec
    if spec is None:
        # What runs goes on running: a resource that cannot be read is no order to change anything.
        return Plan((), (), unchanged(world.resource, words.invalid(world.resource.problem)))
    way = _way(world, spec, settings)
    if isinstance(way, Failure):
        return _nothing(world, way)
    if way.rollout.state == "Refused":
        return _without_the_model(way.world, spec, settings, way.rollout)
    return _all_of(way, spec, settings)


@dataclass(frozen=True, slots=True)
class _Way:
    """How far a spec is. world: with what a Job has found out about its model."""

    world: World
    made: Made
    rollout: Rollout


def _way(world: World, spec: EmbeddingServiceSpec, settings: RenderSettings) -> _Way | Failure:
    """Why no children can be made of the spec, or how far it is."""
    refused = refusal(spec, settings) or cache_refusal(world, spec, settings)
    if refused is not None:
        return refused
    made = made_of(world, spec, settings)
    world = replace(world, fetched=made.fetched)
    return _Way(world, made, steer(world, spec, made.wanted))


def _all_of(
    way: _Way, spec: EmbeddingServiceSpec, settings: RenderSettings, *, refused: Rollout | None = None
) -> Plan:
    """The plan for a spec; `refused` is what the manifest asks for beyond it and does not get."""
    world, made, rollout = way.world, way.made, way.rollout
    prepared = made.prepared
    children = children_of(world, spec, settings, rollout, made)
    asked = fetchers(world, made.wanted, prepared.fetch)
    ends = [*(one.until for one in rollout.kept), *([world.due] if world.due is not None else [])]
    return Plan(
        children=children,
        prune=unwanted(world, children, rollout, prepared),
        status=statement(world, spec, settings, rollout=rollout, made=made, asked=asked, refused=refused),
        start=prepared.start,
        remove=prepared.remove,
        hand_over=hand_over(world, spec, rollout) if prepared.serves else None,
        labels=labels(world),
        notices=notices(world, rollout),
        questions=questions(world, rollout, made.wanted),
        fetchers=asked,
        wake_after=max(1, min(ends) - world.now) if ends else None,
    )


def _without_the_model(
    world: World, spec: EmbeddingServiceSpec, settings: RenderSettings, refused: Rollout
) -> Plan:
    """The plan for the manifest with the model that is served: all but the change of the model is done."""
    held = with_model_of(world, spec, refused)
    if isinstance(held, Failure):
        return _nothing(world, held, refused)
    way = _way(world, held, settings)
    if isinstance(way, Failure):
        return _nothing(world, way, refused)
    return _all_of(way, held, settings, refused=refused)


def _nothing(world: World, why: Failure, refused: Rollout | None = None) -> Plan:
    """What serves goes on serving, as it is."""
    serving = world.deployment(world.serving_revision or "")
    status = unchanged(world.resource, words.refused(why, serving))
    if refused is not None:
        status = replace(status, rollout=rollout_status(world, refused))
    return Plan((), (), status)
