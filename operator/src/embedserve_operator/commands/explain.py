"""Implements `explain`: it says why the plan for a manifest is as it is, without a cluster."""

from __future__ import annotations

from collections.abc import Iterator

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.kube.kinds import SERVICE_MONITOR
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.manifests.metadata import read_ref
from embedserve_operator.manifests.placement import (
    build_node_requirements,
    find_accelerators,
    find_hardware_class,
    find_image,
)
from embedserve_operator.plan import Plan
from embedserve_operator.plan.model_volume import choose_model_volume, find_cache_refusal
from embedserve_operator.plan.placement import describe_offers, describe_pool_labels
from embedserve_operator.plan.refusals import find_refusal
from embedserve_operator.plan.revision import collect_revision_inputs
from embedserve_operator.plan.scaling import is_keda_missing
from embedserve_operator.settings import RenderSettings
from embedserve_operator.state.nodes import ClusterState, match_nodes
from embedserve_operator.state.observed import ObservedState

_WHY = {
    "ConfigMap": "the runtime's configuration; its name carries the hash of its content",
    "NetworkPolicy": "who may reach the pods and what they may reach; spec.networkPolicy",
    "PersistentVolumeClaim": "where models are kept; spec.cache.volume",
    "Job": "fills the cache; its name carries the hash of what it works on, and it is run once",
    "Deployment": "the pods of this revision",
    "Service": "what clients call; switches to another revision in one write; or one vector space by its own name",
    "HorizontalPodAutoscaler": "spec.autoscaling is given",
    "ScaledObject": "spec.autoscaling is given, and KEDA decides",
    "PodDisruptionBudget": "two or more pods are asked for; drains take one at a time",
    "ServiceMonitor": "spec.monitoring.serviceMonitor is given, and the cluster has the definition",
}


def explain(observed: ObservedState, plan: Plan, settings: RenderSettings) -> str:
    """Return as text why the plan is as it is."""
    spec = observed.resource.spec
    if spec is None:
        return f"{observed.resource.key}: {observed.resource.problem}\n"
    refusal = find_refusal(spec, settings) or find_cache_refusal(observed, spec, settings)
    lines = [f"EmbeddingService {observed.resource.key}", ""]
    if refusal is not None:
        return "\n".join([*lines, f"refused: {refusal.reason}", f"  {refusal.message}", ""])
    lines += _explain_hardware(spec, settings, observed.cluster)
    lines += _explain_cache(observed, spec)
    lines += _explain_revision(spec, plan)
    lines += _explain_absent_children(spec, settings, observed.cluster)
    return "\n".join(lines)


def _explain_hardware(
    spec: EmbeddingServiceSpec, settings: RenderSettings, cluster: ClusterState
) -> Iterator[str]:
    hardware, image, requirements = (
        find_hardware_class(spec, settings),
        find_image(spec, settings),
        build_node_requirements(spec, settings),
    )
    yield f"hardware class {spec.hardware.class_}: {hardware.description}"
    yield f"  image      {image.reference} ({', '.join(image.architectures)})"
    yield f"  a node has {requirements.describe()}"
    for label in requirements.list_accelerator_labels():
        yield f"  a label    {label}"
    if requirements.capabilities:
        yield f"  a pool without nodes fits if its definition has {describe_pool_labels(requirements)}"
    accelerators = find_accelerators(spec, settings)
    if accelerators is not None:
        yield f"  a pod has  {accelerators[1]} {accelerators[0]}"
    yield f"  a rolling update runs {hardware.max_surge} pods more and misses {hardware.max_unavailable}"
    if cluster.nodes is None:
        yield "  nodes are not known; give --nodes FILE (kubectl get nodes,runtimeclasses -o yaml)"
    else:
        matches = match_nodes(requirements, cluster.nodes)
        yield f"  nodes that fit: {', '.join(matches.fitting) or 'none'}"
        if matches.too_few:
            yield f"  nodes with too few accelerators: {', '.join(matches.too_few)}"
        if matches.tainted or matches.other_nodes:
            yield f"  others: {describe_offers(matches)}"
    yield ""


def _explain_cache(observed: ObservedState, spec: EmbeddingServiceSpec) -> Iterator[str]:
    volume = choose_model_volume(observed, spec)
    if volume is None:
        yield "no cache: each pod fetches the model for itself"
    else:
        users = (
            "one pod"
            if volume.is_single_pod
            else "the pods of one node"
            if volume.is_single_node
            else "pods of all nodes"
        )
        yield f"cache: claim {volume.claim}, for {users}"
        if volume.is_filled:
            yield "  it holds the model: nothing is fetched"
    yield ""


def _explain_revision(spec: EmbeddingServiceSpec, plan: Plan) -> Iterator[str]:
    yield "the revision is the hash of what declares the vectors:"
    for key, value in collect_revision_inputs(spec).items():
        parts = value if isinstance(value, list) else [value]
        yield f"  {key}: {' '.join(str(part) for part in parts if part is not None) or 'not given'}"
    yield ""
    yield "children, in the order in which they are applied:"
    for child in (*plan.children, *plan.jobs_to_create):
        yield f"  {read_ref(child)}{_describe_child(child)}: {_WHY[child['kind']]}"
    yield ""


def _describe_child(child: Manifest) -> str:
    if child["kind"] != "Deployment":
        return ""
    replicas = child["spec"].get("replicas")
    grace = child["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    pods = "as many pods as the autoscaler says" if replicas is None else f"{replicas} pods"
    return f" ({pods}, {grace} s to stop)"


def _explain_absent_children(
    spec: EmbeddingServiceSpec, settings: RenderSettings, cluster: ClusterState
) -> Iterator[str]:
    if is_keda_missing(spec, settings, cluster):
        yield "not made: ScaledObject: the cluster has no definition of it"
        yield ""
    asks_for_monitor = spec.monitoring is not None and spec.monitoring.service_monitor is not None
    if asks_for_monitor and SERVICE_MONITOR not in cluster.optional_kinds:
        yield "not made: ServiceMonitor: the cluster has no definition of it"
        yield ""
    if spec.network_policy.mode == "Disabled":
        yield "not made: NetworkPolicy: spec.networkPolicy.mode is Disabled"
        yield ""
