"""Who decides the number of pods, and how that passes from the operator to an autoscaler.

While an autoscaler decides, the operator never sends the number. Just leaving it out would let the API server put the
default of 1 in, so the number is first claimed by a second field manager, which the autoscaler then overrules.

A Deployment that does not serve yet has no autoscaler: it would see no load, and shrink what is about to serve. Until
the switch its number follows that of the one that serves, upwards only, so that it can be complete.
"""

from __future__ import annotations

from embedserve_operator.api.status import AutoscalingStatus
from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.kinds import SCALED_OBJECT
from embedserve_operator.nodes import ClusterFacts
from embedserve_operator.plan.outcome import HandOver, PlannedCondition
from embedserve_operator.plan.rollout import Rollout
from embedserve_operator.settings import RenderSettings
from embedserve_operator.specs.autoscaler import METRICS, autoscaler, target_of
from embedserve_operator.specs.deployment import deployment_name, fixed_replicas
from embedserve_operator.specs.scaled_object import metrics_service, scaled_object
from embedserve_operator.wire import Manifest
from embedserve_operator.world import AutoscalerFacts, World

METRICS_UNAVAILABLE = "MetricsUnavailable"
SCALING = "Scaling"
KEDA_MISSING = "KedaMissing"
_KEDA_MISSING_WORDS = (
    "the number of pods stays as it is: the chart's keda.enabled is true, and the cluster has no ScaledObjects that "
    "the operator may make; install KEDA, or set keda.enabled to false"
)
_NO_METRIC = ("FailedGet", "InvalidMetric")
"""How the autoscaler's reasons begin when it could not get a metric's value."""


def scalers(
    world: World, spec: EmbeddingServiceSpec, settings: RenderSettings, revision: str
) -> tuple[Manifest | None, ...]:
    """What lets an autoscaler decide the number of pods of a revision; nothing where the number is fixed."""
    if settings.keda is None:
        return (autoscaler(world.resource, spec, revision),)
    if keda_is_missing(spec, settings, world.cluster):
        return ()
    return (
        None if settings.keda.prometheus else metrics_service(world.resource, spec, revision),
        scaled_object(world.resource, spec, settings.keda, revision),
    )


def keda_is_missing(spec: EmbeddingServiceSpec, settings: RenderSettings, cluster: ClusterFacts) -> bool:
    """Whether KEDA is to decide the number of pods, and the cluster has none."""
    return (
        fixed_replicas(spec) is None
        and settings.keda is not None
        and SCALED_OBJECT not in cluster.optional_kinds
    )


def replicas_now(world: World, spec: EmbeddingServiceSpec, revision: str) -> int:
    """Pods that the Deployment of a revision should have at this moment."""
    fixed = fixed_replicas(spec)
    if fixed is not None:
        return fixed
    deployment = world.deployment(revision)
    if deployment is not None and deployment.autoscaled:
        return deployment.wanted
    return _first(world, spec, revision)


def hand_over(world: World, spec: EmbeddingServiceSpec, rollout: Rollout) -> HandOver | None:
    """The number to claim for the autoscaler; None when it has been, or when there is no autoscaler."""
    if fixed_replicas(spec) is not None:
        return None
    name, deployment = deployment_name(world.resource, rollout.wanted), world.deployment(rollout.wanted)
    if deployment is None or not deployment.autoscaled:
        return HandOver(name, _first(world, spec, rollout.wanted))
    serving = world.deployment(rollout.serving)
    if not rollout.waits or serving is None:
        return None
    follows = _within(spec, serving.wanted)
    return HandOver(name, follows) if follows > deployment.wanted else None


def _first(world: World, spec: EmbeddingServiceSpec, revision: str) -> int:
    """The number that an autoscaler starts from: what runs, within its bounds."""
    running = world.deployment(revision) or world.deployment(world.serving_revision or "")
    return _within(spec, running.wanted if running is not None else 0)


def _within(spec: EmbeddingServiceSpec, count: int) -> int:
    if spec.autoscaling is None:
        raise ValueError("no autoscaler to start")
    # One at least: a model has to be seen to load before nothing of it runs.
    return min(max(count, spec.autoscaling.min_replicas, 1), spec.autoscaling.max_replicas)


def autoscaling_status(world: World, spec: EmbeddingServiceSpec, serving: str) -> AutoscalingStatus | None:
    """What the autoscaler of the revision that serves says; None where there is none."""
    facts, wanted = _autoscaler(world, serving), spec.autoscaling
    if facts is None or facts.active is None or wanted is None:
        return None
    return AutoscalingStatus(
        current_replicas=facts.current,
        desired_replicas=facts.desired,
        metric=wanted.metric,
        value=facts.value,
        target=target_of(wanted),
    )


def scaling_condition(
    world: World, spec: EmbeddingServiceSpec, settings: RenderSettings, serving: str
) -> PlannedCondition | None:
    """Whether the autoscaler can do its work, in its words; None where there is none, or it has not looked yet."""
    if keda_is_missing(spec, settings, world.cluster):
        return PlannedCondition("ScalingActive", "False", KEDA_MISSING, _KEDA_MISSING_WORDS)
    facts, wanted = _autoscaler(world, serving), spec.autoscaling
    if facts is None or facts.active is None or wanted is None:
        return None
    if facts.active:
        said = f"the number of pods follows {wanted.metric}, {target_of(wanted)} a pod"
        return PlannedCondition("ScalingActive", "True", SCALING, said)
    if not facts.reason.startswith(_NO_METRIC):
        return PlannedCondition("ScalingActive", "False", facts.reason, facts.message)
    return PlannedCondition(
        "ScalingActive",
        "False",
        METRICS_UNAVAILABLE,
        f"the number of pods stays as it is: {facts.message}; {_remedy(world, settings, wanted.metric)}",
    )


def at_maximum(world: World, serving: str) -> bool:
    """Whether the autoscaler would have more pods than it may."""
    facts = _autoscaler(world, serving)
    return facts is not None and facts.at_maximum


def _remedy(world: World, settings: RenderSettings, metric: str) -> str:
    if settings.keda is not None:
        source = settings.keda.prometheus or "the pods' management ports"
        return f"see the log of KEDA's operator; it reads {METRICS[metric]} from {source}"
    others = world.cluster.metrics_providers
    if others:
        return f"{', '.join(others)} has to know {METRICS[metric]} of the pods"
    return (
        "see whether the chart's metricsAdapter is enabled and ready, or whether another provider of "
        f"custom.metrics.k8s.io knows {METRICS[metric]} of the pods"
    )


def _autoscaler(world: World, revision: str) -> AutoscalerFacts | None:
    return world.autoscaler(deployment_name(world.resource, revision))
