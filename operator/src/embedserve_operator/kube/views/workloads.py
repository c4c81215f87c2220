"""Defines the views of what makes pods: Deployments, their autoscalers, and Jobs with their claim."""

from __future__ import annotations

from pydantic import StrictStr

from embedserve_operator.kube.views.base import Count, Items, Part, Quantities, Text, View
from embedserve_operator.kube.views.objects import Metadata, Object, ObjectCondition
from embedserve_operator.kube.views.pods import PodSpec


class PodTemplate(View):
    """The fields that are read of the template that pods are made from."""

    metadata: Part[Metadata]
    spec: Part[PodSpec]


class WorkloadSpec(View):
    """The fields that are read of the spec of anything that makes pods."""

    template: Part[PodTemplate]


class Workload(Object):
    """The fields that are read of anything that makes pods, of whichever kind."""

    spec: Part[WorkloadSpec]


class DeploymentSpec(WorkloadSpec):
    """The fields that are read of the spec of a Deployment."""

    replicas: Count


class DeploymentStatus(View):
    """The fields that are read of the status of a Deployment."""

    observed_generation: Count
    replicas: Count
    updated_replicas: Count
    ready_replicas: Count
    available_replicas: Count
    conditions: Items[ObjectCondition]


class Deployment(Object):
    """The fields that are read of a Deployment."""

    spec: Part[DeploymentSpec]
    status: Part[DeploymentStatus]


class JobStatus(View):
    """The fields that are read of the status of a Job."""

    completion_time: Text
    active: Count
    failed: Count
    conditions: Items[ObjectCondition]


class Job(Object):
    """The fields that are read of a Job."""

    spec: Part[WorkloadSpec]
    status: Part[JobStatus]


class ClaimResources(View):
    """The resources that a PersistentVolumeClaim asks for."""

    requests: Quantities


class ClaimSpec(View):
    """The fields that are read of the spec of a PersistentVolumeClaim."""

    access_modes: Items[StrictStr]
    storage_class_name: Text
    resources: Part[ClaimResources]


class PersistentVolumeClaim(Object):
    """The fields that are read of a PersistentVolumeClaim."""

    spec: Part[ClaimSpec]


class ScaleTarget(View):
    """The object that an autoscaler scales."""

    name: Text


class AutoscalerSpec(View):
    """The fields that are read of the spec of a HorizontalPodAutoscaler."""

    scale_target_ref: Part[ScaleTarget]


class MetricValue(View):
    """The value of a metric as the autoscaler last saw it."""

    average_value: Text


class MetricSource(View):
    """A metric of one source."""

    current: Part[MetricValue]


class CurrentMetric(View):
    """A metric of an autoscaler, which has one source."""

    pods: Part[MetricSource]
    external: Part[MetricSource]


class AutoscalerStatus(View):
    """The fields that are read of the status of a HorizontalPodAutoscaler."""

    current_replicas: Count
    desired_replicas: Count
    current_metrics: Items[CurrentMetric]
    conditions: Items[ObjectCondition]


class HorizontalPodAutoscaler(Object):
    """The fields that are read of a HorizontalPodAutoscaler."""

    spec: Part[AutoscalerSpec]
    status: Part[AutoscalerStatus]
