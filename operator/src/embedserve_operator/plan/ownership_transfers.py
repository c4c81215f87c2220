"""Decides for which Deployments the ownership of `spec.replicas` passes from the operator to its second field manager,
from which an autoscaler takes it over.

Kubernetes calls this transferring ownership under server-side apply: the second manager writes the number before the
first one leaves it out, so that it never falls back to the default of 1.
"""

from __future__ import annotations

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.manifests.deployment import build_deployment_name, find_fixed_replicas
from embedserve_operator.plan.actions import ReplicasOwnershipTransfer
from embedserve_operator.plan.decision import Decision
from embedserve_operator.plan.rollout import Rollout
from embedserve_operator.plan.scaling import choose_first_replicas, clamp_replicas, plan_frozen_replicas
from embedserve_operator.state.observed import ObservedState


def plan_ownership_transfers(decision: Decision) -> tuple[ReplicasOwnershipTransfer, ...]:
    """Return the numbers of pods that the second field manager writes, at most one for a Deployment."""
    inputs, rollout, serving = decision.inputs, decision.rollout, decision.serving
    observed, spec, preparation = inputs.observed, inputs.spec, decision.preparation
    transfers = []
    if preparation.can_serve:
        transfers.append(_plan_desired_transfer(observed, spec, rollout))
    frozen = [retained.previous.revision for retained in rollout.retained]
    if serving is not None:
        transfers.append(_plan_serving_transfer(observed, serving.spec, rollout.serving))
    elif rollout.is_waiting and not (rollout.is_serving_broken or preparation.must_clear):
        frozen.append(rollout.serving)
    transfers += [plan_frozen_replicas(observed, spec, revision) for revision in frozen]
    sent = _find_deployments_with_replicas(decision)
    return tuple(
        transfer for transfer in transfers if transfer is not None and transfer.deployment not in sent
    )


def _find_deployments_with_replicas(decision: Decision) -> frozenset[str]:
    """Return the names of the Deployments of retained revisions whose manifests send the number of pods themselves."""
    deployments = [retained.deployment for retained in decision.retained]
    return frozenset(
        deployment["metadata"]["name"] for deployment in deployments if "replicas" in deployment["spec"]
    )


def _plan_desired_transfer(
    observed: ObservedState, spec: EmbeddingServiceSpec, rollout: Rollout
) -> ReplicasOwnershipTransfer | None:
    """Return the transfer for the desired revision: before its autoscaler starts, and again whenever the serving
    revision has more pods while the desired one waits. None where no autoscaler decides.
    """
    if find_fixed_replicas(spec) is not None:
        return None
    name = build_deployment_name(observed.resource, rollout.desired)
    deployment = observed.find_deployment(rollout.desired)
    if deployment is None or not deployment.is_autoscaled:
        return ReplicasOwnershipTransfer(name, choose_first_replicas(observed, spec, rollout.desired))
    serving = observed.find_deployment(rollout.serving)
    if not rollout.is_waiting or serving is None:
        return None
    replicas = clamp_replicas(spec, serving.desired_replicas)
    return ReplicasOwnershipTransfer(name, replicas) if replicas > deployment.desired_replicas else None


def _plan_serving_transfer(
    observed: ObservedState, spec: EmbeddingServiceSpec, serving: str
) -> ReplicasOwnershipTransfer | None:
    """Return the transfer for the revision that serves meanwhile, whose manifest is `spec`; None where its number of
    pods is fixed, or belongs to the second field manager already.
    """
    deployment = observed.find_deployment(serving)
    if find_fixed_replicas(spec) is not None or (deployment is not None and deployment.is_autoscaled):
        return None
    name = build_deployment_name(observed.resource, serving)
    return ReplicasOwnershipTransfer(name, choose_first_replicas(observed, spec, serving))
