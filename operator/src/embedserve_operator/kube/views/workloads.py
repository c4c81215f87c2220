"""Defines the views of what makes pods: Deployments, their autoscalers, and Jobs with their claim."""

from __future__ import annotations

from pydantic import StrictStr

from embedserve_operator.kube.views.base import Count, Items, Part, Quantities, Text, View
from embedserve_operator.kube.views.objects import Metadata, Object, ObjectCondition
from embedserve_operator.kube.views.pods import PodSpec


class PodTemplate(View):
    """Holds what is read of the template that pods are made from."""

    metadata: Part[Metadata]
    spec: Part[PodSpec]


class WorkloadSpec(View):
    """Holds what is read of the spec of anything that makes pods."""

    template: Part[PodTemplate]


class Workload(Object):
    """Holds what is read of anything that makes pods, of whichever kind."""

    spec: Part[WorkloadSpec]


class DeploymentSpec(WorkloadSpec):
    """Holds what is read of the spec of a Deployment."""

    replicas: Count


class DeploymentStatus(View):
    """Holds what is read of the status of a Deployment."""

    observed_generation: Count
    replicas: Count
    updated_replicas: Count
    ready_replicas: Count
    available_replicas: Count
    conditions: Items[ObjectCondition]


class Deployment(Object):
    """Holds what is read of a Deployment."""

    spec: Part[DeploymentSpec]
    status: Part[DeploymentStatus]


class JobStatus(View):
    """Holds what is read of the status of a Job."""

    completion_time: Text
    active: Count
    failed: Count
    conditions: Items[ObjectCondition]


class Job(Object):
    """Holds what is read of a Job."""

    spec: Part[WorkloadSpec]
    status: Part[JobStatus]


class ClaimResources(View):
    """Holds what a PersistentVolumeClaim asks for."""

    requests: Quantities


class ClaimSpec(View):
    """Holds what is read of the spec of a PersistentVolumeClaim."""

    access_modes: Items[StrictStr]
    storage_class_name: Text
    resources: Part[ClaimResources]


class PersistentVolumeClaim(Object):
    """Holds what is read of a PersistentVolumeClaim."""

    spec: Part[ClaimSpec]


class ScaleTarget(View):
    """Names what an autoscaler scales."""

    name: Text


class AutoscalerSpec(View):
    """Holds what is read of the spec of a HorizontalPodAutoscaler."""

    scale_target_ref: Part[ScaleTarget]


class MetricValue(View):
    """Holds the value of a metric as the autoscaler last saw it."""

    average_value: Text


class MetricSource(View):
    """Holds a metric of one source."""

    current: Part[MetricValue]


class CurrentMetric(View):
    """Holds a metric of an autoscaler, which has one source."""

    pods: Part[MetricSource]
    external: Part[MetricSource]


class AutoscalerStatus(View):
    """Holds what is read of the status of a HorizontalPodAutoscaler."""

    current_replicas: Count
    desired_replicas: Count
    current_metrics: Items[CurrentMetric]
    conditions: Items[ObjectCondition]


class HorizontalPodAutoscaler(Object):
    """Holds what is read of a HorizontalPodAutoscaler."""

    spec: Part[AutoscalerSpec]
    status: Part[AutoscalerStatus]
