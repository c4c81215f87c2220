"""Who decides the number of pods, and how that passes from the operator to an autoscaler.

While an autoscaler decides, the operator never sends the number. Just leaving it out would let the API server put the
default of 1 in, so the number is first claimed by a second field manager, which the autoscaler then overrules.
"""

from __future__ import annotations

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.plan.outcome import HandOver
from embedserve_operator.specs.deployment import deployment_name, fixed_replicas
from embedserve_operator.world import World


def replicas_now(world: World, spec: EmbeddingServiceSpec, revision: str) -> int:
    """Pods that the Deployment of a revision should have at this moment."""
    fixed = fixed_replicas(spec)
    if fixed is not None:
        return fixed
    deployment = world.deployment(revision)
    if deployment is not None and deployment.autoscaled:
        return deployment.wanted
    return _first(world, spec, revision)


def hand_over(world: World, spec: EmbeddingServiceSpec, revision: str) -> HandOver | None:
    """The number to claim for the autoscaler; None when it has been, or when there is no autoscaler."""
    if fixed_replicas(spec) is not None:
        return None
    deployment = world.deployment(revision)
    if deployment is not None and deployment.autoscaled:
        return None
    return HandOver(deployment_name(world.resource, revision), _first(world, spec, revision))


def _first(world: World, spec: EmbeddingServiceSpec, revision: str) -> int:
    """The number that an autoscaler starts from: what runs, within its bounds."""
    if spec.autoscaling is None:
        raise ValueError("no autoscaler to start")
    running = world.deployment(revision) or world.deployment(world.serving_revision or "")
    count = running.wanted if running is not None else 0
    return min(max(count, spec.autoscaling.min_replicas), spec.autoscaling.max_replicas)
