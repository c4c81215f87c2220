"""`explain`: why the plan for a manifest is as it is, in words, without a cluster."""

from __future__ import annotations

from collections.abc import Iterator

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.kinds import SERVICE_MONITOR
from embedserve_operator.nodes import ClusterFacts, match
from embedserve_operator.plan import Plan
from embedserve_operator.plan.cache import cache_refusal, model_volume
from embedserve_operator.plan.placement import offers
from embedserve_operator.plan.refusals import refusal
from embedserve_operator.plan.revision import declared
from embedserve_operator.plan.scaling import keda_is_missing
from embedserve_operator.settings import RenderSettings
from embedserve_operator.specs.metadata import ref_of
from embedserve_operator.specs.placement import accelerators, demand, hardware_of, image_of
from embedserve_operator.wire import Manifest, dig, number
from embedserve_operator.world import World

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


def explain(world: World, plan: Plan, settings: RenderSettings) -> str:
    """Why the plan is as it is, as text."""
    spec = world.resource.spec
    if spec is None:
        return f"{world.resource.key}: {world.resource.problem}\n"
    refused = refusal(spec, settings) or cache_refusal(world, spec, settings)
    lines = [f"EmbeddingService {world.resource.key}", ""]
    if refused is not None:
        return "\n".join([*lines, f"refused: {refused.reason}", f"  {refused.message}", ""])
    lines += _hardware(spec, settings, world.cluster)
    lines += _cache(world, spec)
    lines += _revision(spec, plan)
    lines += _absent(spec, settings, world.cluster)
    return "\n".join(lines)


def _hardware(spec: EmbeddingServiceSpec, settings: RenderSettings, cluster: ClusterFacts) -> Iterator[str]:
    hardware, image, wanted = hardware_of(spec, settings), image_of(spec, settings), demand(spec, settings)
    yield f"hardware class {spec.hardware.class_}: {hardware.description}"
    yield f"  image      {image.reference} ({', '.join(image.architectures)})"
    yield f"  a node has {wanted.words()}"
    asked = accelerators(spec, settings)
    if asked is not None:
        yield f"  a pod has  {asked[1]} {asked[0]}"
    yield f"  a rolling update runs {hardware.max_surge} pods more and misses {hardware.max_unavailable}"
    if cluster.nodes is None:
        yield "  nodes are not known; give --nodes FILE (kubectl get nodes,runtimeclasses -o yaml)"
    else:
        found = match(wanted, cluster.nodes)
        yield f"  nodes that fit: {', '.join(found.fitting) or 'none'}"
        if found.too_few:
            yield f"  nodes with too few accelerators: {', '.join(found.too_few)}"
        if found.tainted or found.others:
            yield f"  others: {offers(found)}"
    yield ""


def _cache(world: World, spec: EmbeddingServiceSpec) -> Iterator[str]:
    volume = model_volume(world, spec)
    if volume is None:
        yield "no cache: each pod fetches the model for itself"
    else:
        where = (
            "one pod"
            if volume.one_pod
            else "the pods of one node"
            if volume.one_node
            else "pods of all nodes"
        )
        yield f"cache: claim {volume.claim}, for {where}"
        if volume.is_filled:
            yield "  it holds the model: nothing is fetched"
    yield ""


def _revision(spec: EmbeddingServiceSpec, plan: Plan) -> Iterator[str]:
    yield "the revision is the hash of what declares the vectors:"
    for key, value in declared(spec).items():
        parts = value if isinstance(value, list) else [value]
        yield f"  {key}: {' '.join(str(part) for part in parts if part is not None) or 'not given'}"
    yield ""
    yield "children, in the order in which they are applied:"
    for child in (*plan.children, *plan.start):
        yield f"  {ref_of(child)}{_detail(child)}: {_WHY[child['kind']]}"
    yield ""


def _detail(child: Manifest) -> str:
    if child["kind"] != "Deployment":
        return ""
    replicas = dig(child, "spec", "replicas")
    grace = number(child, "spec", "template", "spec", "terminationGracePeriodSeconds")
    pods = "as many pods as the autoscaler says" if replicas is None else f"{replicas} pods"
    return f" ({pods}, {grace} s to stop)"


def _absent(spec: EmbeddingServiceSpec, settings: RenderSettings, cluster: ClusterFacts) -> Iterator[str]:
    if keda_is_missing(spec, settings, cluster):
        yield "not made: ScaledObject: the cluster has no definition of it"
        yield ""
    asked = spec.monitoring is not None and spec.monitoring.service_monitor is not None
    if asked and SERVICE_MONITOR not in cluster.optional_kinds:
        yield "not made: ServiceMonitor: the cluster has no definition of it"
        yield ""
    if spec.network_policy.mode == "Disabled":
        yield "not made: NetworkPolicy: spec.networkPolicy.mode is Disabled"
        yield ""
