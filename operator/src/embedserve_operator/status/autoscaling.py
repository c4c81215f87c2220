"""Reports what the autoscaler of the serving revision says."""

from __future__ import annotations

from embedserve_operator.api.status import AutoscalingStatus
from embedserve_operator.api.times import format_moment, parse_moment
from embedserve_operator.manifests.autoscaler import METRICS, find_target_value
from embedserve_operator.manifests.deployment import build_deployment_name
from embedserve_operator.plan.plan_input import PlanInput
from embedserve_operator.plan.scaling import is_keda_missing
from embedserve_operator.settings import RenderSettings
from embedserve_operator.state.observed import ObservedState
from embedserve_operator.state.workloads import AutoscalerState
from embedserve_operator.status.condition_values import ConditionValue

METRICS_UNAVAILABLE = "MetricsUnavailable"
SCALING = "Scaling"
KEDA_MISSING = "KedaMissing"
_KEDA_MISSING_MESSAGE = (
    "the number of pods does not change: the chart's keda.enabled is true, and the cluster has no ScaledObjects that "
    "the operator may create; install KEDA, or set keda.enabled to false"
)
_NO_METRIC_REASONS = ("FailedGet", "InvalidMetric")
"""The beginnings of the autoscaler's reasons when it could not get the value of a metric."""
_AT_MAXIMUM_SECONDS = 120
"""A burst that is shorter is what the limit is for."""


def build_autoscaling_status(inputs: PlanInput, serving: str) -> AutoscalingStatus | None:
    """Return what the autoscaler of the serving revision says; None where there is none."""
    state, autoscaling = _find_autoscaler(inputs.observed, serving), inputs.spec.autoscaling
    if state is None or state.is_active is None or autoscaling is None:
        return None
    published = inputs.observed.resource.status.autoscaling
    since = published.at_maximum_since if published is not None else None
    return AutoscalingStatus(
        current_replicas=state.current,
        desired_replicas=state.desired,
        metric=autoscaling.metric,
        value=state.value,
        target=find_target_value(autoscaling),
        at_maximum_since=(since or format_moment(inputs.observed.now)) if state.is_at_maximum else None,
    )


def build_maximum_conditions(status: AutoscalingStatus | None, now: int) -> tuple[ConditionValue, ...]:
    """Return the condition that the autoscaler has wanted more pods than it is allowed to have for a while; none where
    it has not.
    """
    if status is None or status.at_maximum_since is None:
        return ()
    since = parse_moment(status.at_maximum_since)
    if since is None or now - since < _AT_MAXIMUM_SECONDS:
        return ()
    message = (
        f"{status.metric} asks for more than the {status.current_replicas} pods that "
        "spec.autoscaling.maxReplicas allows; raise it, or let requests wait"
    )
    return (ConditionValue("AtMaximum", "True", "MaxReplicas", message),)


def build_scaling_conditions(inputs: PlanInput, serving: str) -> tuple[ConditionValue, ...]:
    """Return the condition whether the autoscaler can do its work, in its own words; none where there is no autoscaler,
    or where it has not looked yet.
    """
    observed, settings, autoscaling = inputs.observed, inputs.settings, inputs.spec.autoscaling
    if is_keda_missing(inputs.spec, settings, observed.cluster):
        return (ConditionValue("ScalingActive", "False", KEDA_MISSING, _KEDA_MISSING_MESSAGE),)
    state = _find_autoscaler(observed, serving)
    if state is None or state.is_active is None or autoscaling is None:
        return ()
    if state.is_active:
        message = f"the number of pods follows {autoscaling.metric}, {find_target_value(autoscaling)} a pod"
        return (ConditionValue("ScalingActive", "True", SCALING, message),)
    if not state.reason.startswith(_NO_METRIC_REASONS):
        return (ConditionValue("ScalingActive", "False", state.reason, state.message),)
    remedy = _describe_remedy(observed, settings, autoscaling.metric)
    message = f"the number of pods does not change: {state.message}; {remedy}"
    return (ConditionValue("ScalingActive", "False", METRICS_UNAVAILABLE, message),)


def _describe_remedy(observed: ObservedState, settings: RenderSettings, metric: str) -> str:
    if settings.keda is not None:
        source = settings.keda.prometheus or "the pods' management ports"
        return f"see the log of KEDA's operator; it reads {METRICS[metric]} from {source}"
    providers = observed.cluster.metrics_providers
    if providers:
        return f"{', '.join(providers)} must provide {METRICS[metric]} for the pods"
    return (
        "check that the chart's metricsAdapter is enabled and ready, or that another provider of custom.metrics.k8s.io "
        f"provides {METRICS[metric]} for the pods"
    )


def _find_autoscaler(observed: ObservedState, revision: str) -> AutoscalerState | None:
    return observed.find_autoscaler(build_deployment_name(observed.resource, revision))
