"""Decides who sets the number of pods, and how that passes from the operator to an autoscaler.

While an autoscaler decides, the operator never sends the number. If it just left the number out, the API
server would put in the default of 1; so a second field manager takes the ownership of `spec.replicas` first, which the
autoscaler then overrules (`plan/ownership_transfers`).

A Deployment that does not serve yet has no autoscaler: the autoscaler would see no load, and shrink what is
about to serve. Until the switch, its number of pods follows that of the serving Deployment, upwards only,
so that it can become complete.
"""

from __future__ import annotations

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.kube.kinds import SCALED_OBJECT
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.manifests.autoscaler import build_autoscaler
from embedserve_operator.manifests.deployment import find_fixed_replicas
from embedserve_operator.manifests.scaled_object import build_metrics_service, build_scaled_object
from embedserve_operator.plan.actions import ReplicasOwnershipTransfer
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
        find_fixed_replicas(spec) is None
        and settings.keda is not None
        and SCALED_OBJECT not in cluster.optional_kinds
    )


def choose_replicas(observed: ObservedState, spec: EmbeddingServiceSpec, revision: str) -> int:
    """Return the number of pods that the Deployment of a revision should have at this moment."""
    fixed = find_fixed_replicas(spec)
    if fixed is not None:
        return fixed
    deployment = observed.find_deployment(revision)
    if deployment is not None and deployment.is_autoscaled:
        return deployment.desired_replicas
    return choose_first_replicas(observed, spec, revision)


def plan_frozen_replicas(
    observed: ObservedState, spec: EmbeddingServiceSpec, revision: str
) -> ReplicasOwnershipTransfer | None:
    """Return the number of pods to set on a Deployment that otherwise stays as it is: none where no pod should run, and
    again as many as the service has where pods should run and it has none. None where the number is right.
    """
    deployment = observed.find_deployment(revision)
    if deployment is None:
        return None
    serving = observed.find_deployment(observed.serving_revision or "")
    replicas = find_fixed_replicas(spec)
    if replicas is None:
        may_rest = spec.autoscaling is not None and spec.autoscaling.min_replicas == 0
        if may_rest and deployment == serving:
            return None
        replicas = clamp_replicas(spec, serving.desired_replicas if serving is not None else 0)
    if (replicas == 0) == (deployment.desired_replicas == 0):
        return None
    return ReplicasOwnershipTransfer(deployment.name, replicas)


def choose_first_replicas(observed: ObservedState, spec: EmbeddingServiceSpec, revision: str) -> int:
    """Return the number that an autoscaler starts from: that of the running pods, within its bounds."""
    running = observed.find_deployment(revision) or observed.find_deployment(observed.serving_revision or "")
    return clamp_replicas(spec, running.desired_replicas if running is not None else 0)


def clamp_replicas(spec: EmbeddingServiceSpec, count: int) -> int:
    """Return a number of pods within the bounds of the autoscaler. Raises ValueError where the spec has none."""
    if spec.autoscaling is None:
        raise ValueError("no autoscaler to start")
    # At least one pod runs until the model has been seen to load.
    return min(max(count, spec.autoscaling.min_replicas, 1), spec.autoscaling.max_replicas)
