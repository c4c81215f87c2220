"""Received objects for tests: what the API server would send, in the fewest words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Self

from embedserve_operator.api.status import Condition, EmbeddingServiceStatus
from embedserve_operator.apply.results import ApplyFailure
from embedserve_operator.kube.kinds import CLAIM
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.kube.views.pods import Pod
from embedserve_operator.kube.views.resource import EmbeddingServiceObject
from embedserve_operator.kube.views.workloads import Job, PersistentVolumeClaim
from embedserve_operator.manifests.metadata import REPLACED_AT, REVISION_LABEL, SPACE_LABEL
from embedserve_operator.observe.resource import read_resource
from embedserve_operator.observe.state import ReceivedObjects, VolumeObjects, observe
from embedserve_operator.plan import Plan, make_plan
from embedserve_operator.plan.revision import compute_revision
from embedserve_operator.settings import RenderSettings, RuntimeImage
from embedserve_operator.state.nodes import UNKNOWN_CLUSTER, ClusterState, NodeState, Taint
from embedserve_operator.state.observed import ObservedState
from embedserve_operator.state.pods import PodReplies, SelfCheckResult
from embedserve_operator.status.report import build_status
from tests.operator.moments import NOON

SETTINGS = RenderSettings(
    images={
        "cpu": RuntimeImage("embedserve-runtime:test-cpu"),
        "cuda": RuntimeImage("embedserve-runtime:test-cuda"),
    },
    hf_endpoint="http://hub.example",
    management_clients=("embedserve-system", "monitoring"),
    allowed_endpoints=("*",),
)
UID = "11111111-1111-1111-1111-111111111111"
NOW = int(NOON.timestamp())
REPO = "sentence-transformers/all-MiniLM-L6-v2"
OTHER_REPO = "sentence-transformers/paraphrase-MiniLM-L3-v2"
REPORT = {
    "source": REPO,
    "revision": "c9745ed1d9f207416be6d2e6f8de32d1f16199bf",
    "digest": "sha256:abc",
    "sizeBytes": 91000000,
    "dimensions": 384,
    "vectorSpace": "vs1-0123456789abcdef0123",
    "outputs": ["dense", "hidden"],
    "onnxOutputs": ["last_hidden_state", "sentence_embedding"],
}


def hub_spec(repo: str = REPO, **more: Any) -> dict[str, Any]:
    """A spec with a Hub repository and any other fields."""
    model = {"source": {"huggingFace": {"repo": repo}}, **more.pop("model", {})}
    return {"model": model, **more}


def resource(spec: Mapping[str, Any] | None = None, *, name: str = "docs", generation: int = 1) -> Manifest:
    """An EmbeddingService as it was just created."""
    return {
        "apiVersion": "embedserve.dev/v1alpha1",
        "kind": "EmbeddingService",
        "metadata": {"name": name, "namespace": "search", "uid": UID, "generation": generation},
        "spec": dict(spec if spec is not None else hub_spec()),
        "status": {"observedGeneration": -1},
    }


def pod(revision: str, template: str, config: str, *, name: str = "docs-pod") -> Manifest:
    """A pod that was just created."""
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "search",
            "uid": f"uid-{name}",
            "labels": {"embedserve.dev/service": "docs", "embedserve.dev/revision": revision},
            "annotations": {"embedserve.dev/template": template},
        },
        "spec": {
            "volumes": [{"name": "config", "configMap": {"name": config}}],
            "initContainers": [{"name": "fetch"}],
            "containers": [
                {"name": "runtime", "resources": {"limits": {"memory": "1Gi", "ephemeral-storage": "2Gi"}}}
            ],
        },
        "status": {"phase": "Pending"},
    }


def fetched(report: Mapping[str, Any] = REPORT) -> Manifest:
    """Status of a fetch container that has ended well."""
    return {
        "name": "fetch",
        "state": {"terminated": {"exitCode": 0, "message": json.dumps({"model": report})}},
    }


def failed(
    reason: str, message: str, *, retryable: bool, container: str = "fetch", loops: bool = True
) -> Manifest:
    """Status of a container whose runtime said why it ended."""
    replies = json.dumps({"reason": reason, "message": message, "retryable": retryable})
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": replies}}
    if not loops:
        return {"name": container, "state": ended, "restartCount": 0}
    return {
        "name": container,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
        "lastState": ended,
        "restartCount": 2,
    }


def ready(of: Manifest, report: Mapping[str, Any] = REPORT) -> Manifest:
    """The pod once it serves."""
    serving = deepcopy(of)
    serving["status"] = {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "conditions": [{"type": "Ready", "status": "True"}],
        "initContainerStatuses": [fetched(report)],
        "containerStatuses": [{"name": "runtime", "state": {"running": {}}}],
    }
    return serving


@dataclass(frozen=True)
class Cluster:
    """The objects around one resource. Every method returns the cluster after it; nothing is shared."""

    resource: Manifest = field(default_factory=resource)
    children: tuple[Manifest, ...] = ()
    pods: tuple[Manifest, ...] = ()
    facts: ClusterState = UNKNOWN_CLUSTER
    jobs: tuple[Manifest, ...] = ()
    job_pods: tuple[Manifest, ...] = ()
    claims: tuple[Manifest, ...] = ()
    now: int = NOW
    settings: RenderSettings = SETTINGS
    replies: Mapping[str, PodReplies] = field(default_factory=dict)
    """Beside what is proved, by runs of pods."""
    creation_problems: Mapping[str, str] = field(default_factory=dict)
    """The reason why pods of Jobs cannot be created, by the UID of the Job."""

    def observed(self) -> ObservedState:
        """Pods that are ready have passed the self-check."""
        service = EmbeddingServiceObject.parse(self.resource)
        pods = [Pod.parse(pod) for pod in self.pods]
        before = observe(ReceivedObjects(service, self.children, pods))
        replies = {
            pod.run_id: PodReplies(
                SelfCheckResult(
                    pod.report.vector_space,
                    pod.report.dimensions,
                    "",
                    former_space=pod.report.former_vector_space,
                )
            )
            for pod in before.pods
            if pod.phase == "Ready" and pod.report is not None
        }
        volume = VolumeObjects(
            jobs=[Job.parse(job) for job in self.jobs],
            pods=[Pod.parse(pod) for pod in self.job_pods],
            claims=[PersistentVolumeClaim.parse(claim) for claim in self.claims],
            creation_problems=self.creation_problems,
        )
        return observe(
            ReceivedObjects(service, (*self.children, *self.claims), pods, volume),
            self.facts,
            replies={**replies, **self.replies},
            now=self.now,
        )

    def plan(self) -> Plan:
        return make_plan(self.observed(), self.settings)

    def status(self, failure: ApplyFailure | None = None) -> EmbeddingServiceStatus:
        """The status after a pass, of which `failure` could not be written."""
        return build_status(self.plan(), self.observed(), failure)

    def conditions(self) -> dict[str, Condition]:
        return {condition.type: condition for condition in self.status().conditions}

    def changed(self, spec: Mapping[str, Any]) -> Self:
        """After the user changed the spec."""
        meta = {**self.resource["metadata"], "generation": self.resource["metadata"]["generation"] + 1}
        return replace(self, resource={**self.resource, "spec": dict(spec), "metadata": meta})

    def applied(self) -> Self:
        """After the plan was carried out, and nothing else happened."""
        plan = self.plan()
        pruned = {child.ref for child in plan.prune}
        live = {(c["kind"], c["metadata"]["name"]): c for c in (*self.children, *self.claims)}
        live = {ref: child for ref, child in live.items() if ref not in pruned}
        for child in plan.children:
            ref = (child["kind"], child["metadata"]["name"])
            before = live.get(ref, {})
            live[ref] = _stored(child, before)
        for time in plan.replacement_times:
            stored = live["Deployment", time.deployment]
            annotations = {**stored["metadata"]["annotations"], REPLACED_AT: time.replaced_at}
            remaining = {name: value for name, value in annotations.items() if value is not None}
            live["Deployment", time.deployment] = {
                **stored,
                "metadata": {**stored["metadata"], "annotations": remaining},
            }
        for transfer in plan.ownership_transfers:
            stored = live["Deployment", transfer.deployment]
            live["Deployment", transfer.deployment] = _stored(
                {**stored, "spec": {**stored["spec"], "replicas": transfer.replicas}}, stored
            )
        spaces = {label.pod.name: label.space for label in plan.labels}
        pods = tuple(_labelled(pod, spaces.get(pod["metadata"]["name"])) for pod in self.pods)
        removed = {job.name for job in plan.jobs_to_delete}
        jobs = [job for job in self.jobs if job["metadata"]["name"] not in removed]
        return replace(
            self,
            children=tuple(child for child in live.values() if child["kind"] != CLAIM),
            pods=pods,
            claims=tuple(child for child in live.values() if child["kind"] == CLAIM),
            jobs=(*jobs, *(_stored(job, {}) for job in plan.jobs_to_create)),
        )

    def rolled_out(
        self, spec: Mapping[str, Any] | None = None, *, report: Mapping[str, Any] = REPORT
    ) -> Self:
        """After the Deployment of a spec (the current one by default) became complete, its Service of the vector space
        is there, and its pods are labelled with it."""
        cluster = self._with_pods(spec, report)
        existing = cluster.names("Service")
        created = [
            _stored(child, {})
            for child in cluster.plan().children
            if child["kind"] == "Service" and child["metadata"]["name"] not in existing
        ]
        return replace(cluster, children=(*cluster.children, *created))

    def _with_pods(self, spec: Mapping[str, Any] | None, report: Mapping[str, Any]) -> Self:
        revision = self.revision(spec)
        children, pods = [], [p for p in self.pods if _revision(p) != revision]
        for child in self.children:
            if child["kind"] != "Deployment" or _revision(child) != revision:
                children.append(child)
                continue
            replicas = child["spec"].get("replicas", 1)
            children.append(_labelled(_with_status(child, replicas, replicas), report["vectorSpace"]))
            pods += [
                _labelled(ready(received, report), report["vectorSpace"])
                for received in _pods_of(child, replicas)
            ]
        return replace(self, children=tuple(children), pods=tuple(pods))

    def started(self, *statuses: Manifest, spec: Mapping[str, Any] | None = None, **status: Any) -> Self:
        """After the pods of a Deployment exist, with these statuses of their fetch container."""
        revision = self.revision(spec)
        children, pods = [], [p for p in self.pods if _revision(p) != revision]
        for child in self.children:
            if child["kind"] != "Deployment" or _revision(child) != revision:
                children.append(child)
                continue
            replicas = child["spec"].get("replicas", 1)
            children.append(_with_status(child, replicas, 0))
            for received in _pods_of(child, replicas):
                received["status"] = {"phase": "Pending", "initContainerStatuses": list(statuses), **status}
                pods.append(received)
        return replace(self, children=tuple(children), pods=tuple(pods))

    def without(self, kind: str) -> Self:
        """After somebody deleted the children of a kind."""
        return replace(self, children=tuple(c for c in self.children if c["kind"] != kind))

    def published(self) -> Self:
        """After the status was written."""

        dumped = self.status().model_dump(by_alias=True, exclude_none=True, mode="json")
        return replace(self, resource={**self.resource, "status": dumped})

    def revision(self, spec: Mapping[str, Any] | None = None) -> str:
        """The revision that a spec declares."""
        declared = {**self.resource, "spec": dict(spec or self.resource["spec"])}
        parsed = read_resource(EmbeddingServiceObject.parse(declared)).spec
        assert parsed is not None
        return compute_revision(parsed)

    def config_files(self) -> list[str]:
        """Names of the ConfigMaps that hold configuration files."""
        return [name for name in self.names("ConfigMap") if not name.endswith("-pin")]

    def names(self, kind: str) -> list[str]:
        return sorted(c["metadata"]["name"] for c in self.children if c["kind"] == kind)

    def service_revision(self) -> str:
        """The revision that the Service selects."""
        name = self.resource["metadata"]["name"]
        service = next(c for c in self.children if c["kind"] == "Service" and c["metadata"]["name"] == name)
        revision = service["spec"]["selector"][REVISION_LABEL]
        assert isinstance(revision, str)
        return revision


def _labelled(received: Manifest, space: str | None) -> Manifest:
    if space is None:
        return received
    labels = {**received["metadata"]["labels"], SPACE_LABEL: space}
    return {**received, "metadata": {**received["metadata"], "labels": labels}}


def with_pods(cluster: Cluster, count: int, *, only: str = "") -> Cluster:
    """After an autoscaler wrote a number; to the Deployment of one revision or to all."""
    children = [
        {**c, "spec": {**c["spec"], "replicas": count}}
        if c["kind"] == "Deployment" and c["metadata"]["name"].endswith(only)
        else c
        for c in cluster.children
    ]
    return replace(cluster, children=tuple(children))


def _stored(child: Manifest, before: Manifest) -> Manifest:
    if "replicas" in before.get("spec", {}):
        # A number that is not sent stays what somebody else has made it.
        child = {**child, "spec": {"replicas": before["spec"]["replicas"], **child["spec"]}}
    changed = before.get("spec") != child.get("spec")
    generation = before.get("metadata", {}).get("generation", 0) + changed
    uid = before.get("metadata", {}).get("uid") or f"uid-{child['kind']}-{child['metadata']['name']}"
    stored = {**deepcopy(child), "metadata": {**child["metadata"], "uid": uid, "generation": generation}}
    replaced = before.get("metadata", {}).get("annotations", {}).get(REPLACED_AT)
    if replaced is not None:  # another manager's
        stored["metadata"]["annotations"] = {**stored["metadata"]["annotations"], REPLACED_AT: replaced}
    if "status" in before:
        stored["status"] = before["status"]
    return stored


def _with_status(deployment: Manifest, replicas: int, available: int) -> Manifest:
    status = {
        "observedGeneration": deployment["metadata"]["generation"],
        "replicas": replicas,
        "updatedReplicas": replicas,
        "readyReplicas": available,
        "availableReplicas": available,
    }
    return {**deployment, "status": status}


def _pods_of(deployment: Manifest, replicas: int) -> list[Manifest]:
    template = deployment["spec"]["template"]
    config = template["spec"]["volumes"][0]["configMap"]["name"]
    mark = template["metadata"]["annotations"]["embedserve.dev/template"]
    name = deployment["metadata"]["name"]
    pods = [pod(_revision(deployment), mark, config, name=f"{name}-{number}") for number in range(replicas)]
    for received in pods:
        received["spec"]["volumes"] = template["spec"]["volumes"]
    return pods


def _revision(received: Manifest) -> str:
    revision = received["metadata"]["labels"]["embedserve.dev/revision"]
    assert isinstance(revision, str)
    return revision


def node(
    name: str,
    *,
    capability: str = "",
    architecture: str = "amd64",
    taints: tuple[Taint, ...] = (),
    cordoned: bool = False,
    labels: Mapping[str, str] | None = None,
    **accelerators: int,
) -> NodeState:
    """A node as discovery labels it. Accelerators by resource name, `gpu` for nvidia.com/gpu."""
    major, _, minor = capability.partition(".")
    all_labels = {"kubernetes.io/arch": architecture, "kubernetes.io/os": "linux", **(labels or {})}
    if capability:
        all_labels |= {"nvidia.com/gpu.compute.major": major, "nvidia.com/gpu.compute.minor": minor}
    return NodeState(
        name=name,
        labels=all_labels,
        taints=taints,
        is_unschedulable=cordoned,
        allocatable={f"nvidia.com/{resource}": count for resource, count in accelerators.items()},
    )
