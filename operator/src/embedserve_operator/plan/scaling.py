"""Decides who sets the number of pods, and how that passes from the operator to an autoscaler.

While an autoscaler decides, the operator never sends the number. If it just left the number out, the API
server would put in the default of 1; so a second field manager claims the number first, which the
autoscaler then overrules.

A Deployment that does not serve yet has no autoscaler: the autoscaler would see no load, and shrink what is
about to serve. Until the switch, its number of pods follows that of the serving Deployment, upwards only,
so that it can become complete.
"""

from __future__ import annotations

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.kube.kinds import SCALED_OBJECT
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.manifests.autoscaler import build_autoscaler
from embedserve_operator.manifests.deployment import deployment_name, fixed_replicas
from embedserve_operator.manifests.scaled_object import build_metrics_service, build_scaled_object
from embedserve_operator.plan.actions import ReplicasHandOver
from embedserve_operator.plan.rollout import Rollout
from embedserve_operator.settings import RenderSettings
from embedserve_operator.state.nodes import ClusterState
from embedserve_operator.state.observed import ObservedState


def build_scalers(
    observed: ObservedState, spec: EmbeddingServiceSpec, settings: RenderSettings, revision: str
) -> tuple[Manifest | None, ...]:
    """Return what lets an autoscaler decide the number of pods of a revision; nothing where the number is
    fixed.
    """
    if settings.keda is None:
        return (build_autoscaler(observed.resource, spec, revision),)
    if is_keda_missing(spec, settings, observed.cluster):
        return ()
    return (
        None if settings.keda.prometheus else build_metrics_service(observed.resource, spec, revision),
        build_scaled_object(observed.resource, spec, settings.keda, revision),
    )


def is_keda_missing(spec: EmbeddingServiceSpec, settings: RenderSettings, cluster: ClusterState) -> bool:
    """Return whether KEDA is to decide the number of pods, but is not in the cluster."""
    return (
        fixed_replicas(spec) is None
        and settings.keda is not None
        and SCALED_OBJECT not in cluster.optional_kinds
    )


def choose_replicas(observed: ObservedState, spec: EmbeddingServiceSpec, revision: str) -> int:
    """Return the number of pods that the Deployment of a revision should have at this moment."""
    fixed = fixed_replicas(spec)
    if fixed is not None:
        return fixed
    deployment = observed.find_deployment(revision)
    if deployment is not None and deployment.is_autoscaled:
        return deployment.desired_replicas
    return _choose_first_replicas(observed, spec, revision)


def plan_replica_handover(
    observed: ObservedState, spec: EmbeddingServiceSpec, rollout: Rollout
) -> ReplicasHandOver | None:
    """Return the number to claim for the autoscaler; None when it has been claimed, or when there is no
    autoscaler.
    """
    if fixed_replicas(spec) is not None:
        return None
    name, deployment = (
        deployment_name(observed.resource, rollout.desired),
        observed.find_deployment(rollout.desired),
    )
    if deployment is None or not deployment.is_autoscaled:
        return ReplicasHandOver(name, _choose_first_replicas(observed, spec, rollout.desired))
    serving = observed.find_deployment(rollout.serving)
    if not rollout.is_waiting or serving is None:
        return None
    follows = _clamp_replicas(spec, serving.desired_replicas)
    return ReplicasHandOver(name, follows) if follows > deployment.desired_replicas else None


def plan_serving_replica_handover(
    observed: ObservedState, spec: EmbeddingServiceSpec, serving: str
) -> ReplicasHandOver | None:
    """Return the number to claim for the autoscaler of the revision that serves meanwhile, whose manifest is `spec`."""
    there = observed.find_deployment(serving)
    if fixed_replicas(spec) is not None or (there is not None and there.is_autoscaled):
        return None
    name = deployment_name(observed.resource, serving)
    return ReplicasHandOver(name, _choose_first_replicas(observed, spec, serving))


def plan_frozen_replicas(
    observed: ObservedState, spec: EmbeddingServiceSpec, revision: str
) -> ReplicasHandOver | None:
    """Return the number to claim for a Deployment that otherwise stays as it is: none where no pod should run, and
    again as many as the service has where pods should run and it has none.
    """
    there = observed.find_deployment(revision)
    if there is None:
        return None
    serving = observed.find_deployment(observed.serving_revision or "")
    wanted = fixed_replicas(spec)
    if wanted is None:
        may_rest = spec.autoscaling is not None and spec.autoscaling.min_replicas == 0
        if may_rest and there == serving:
            return None
        wanted = _clamp_replicas(spec, serving.desired_replicas if serving is not None else 0)
    if (wanted == 0) == (there.desired_replicas == 0):
        return None
    return ReplicasHandOver(there.name, wanted)


def _choose_first_replicas(observed: ObservedState, spec: EmbeddingServiceSpec, revision: str) -> int:
    """Return the number that an autoscaler starts from: that of the running pods, within its bounds."""
    running = observed.find_deployment(revision) or observed.find_deployment(observed.serving_revision or "")
    return _clamp_replicas(spec, running.desired_replicas if running is not None else 0)


def _clamp_replicas(spec: EmbeddingServiceSpec, count: int) -> int:
    if spec.autoscaling is None:
        raise ValueError("no autoscaler to start")
    # At least one pod runs until the model has been seen to load.
    return min(max(count, spec.autoscaling.min_replicas, 1), spec.autoscaling.max_replicas)
