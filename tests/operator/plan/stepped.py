"""A cluster of one service that moves one write at a time: the planner's own decisions, an API server as a dictionary,
and pods that come up, prove themselves or fail as a test says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import yaml

from embedserve_operator.apply.drift import AppliedDifferences, find_reason_to_apply
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.kube.views.children import parse_child
from embedserve_operator.kube.views.pods import Pod
from embedserve_operator.kube.views.resource import EmbeddingServiceObject
from embedserve_operator.manifests.deployment import read_template_hash
from embedserve_operator.manifests.metadata import (
    FINGERPRINT,
    REPLACED_AT,
    REVISION_LABEL,
    SPACE_LABEL,
    read_ref,
)
from embedserve_operator.observe.state import ReceivedObjects, observe
from embedserve_operator.plan import Plan, make_plan
from embedserve_operator.settings import RenderSettings, RuntimeImage
from embedserve_operator.state.observed import ObservedState
from embedserve_operator.state.pods import PodReplies, SelfCheckResult
from embedserve_operator.state.resource import Child
from embedserve_operator.state.upgrades import NO_UPGRADE, UpgradeProgress
from embedserve_operator.status.report import build_status
from tests.operator.builders import NOW, REPORT, SETTINGS, failed, pod, ready, resource

Ref = tuple[str, str]
Write = Callable[[], None]
RESOURCE_REF: Ref = ("EmbeddingService", "docs")


@dataclass
class SteppedCluster:
    """A cluster in one state. All that the operator does is a sequence of writes, of which a test may run the first few
    only."""

    spec: dict[str, Any]
    broken: frozenset[str] = frozenset()
    """Repositories that cannot be fetched at the moment."""
    unsound: frozenset[str] = frozenset()
    """Repositories whose pods come up and do not pass the self-check."""
    now: int = NOW
    settings: RenderSettings = SETTINGS
    """Those of the operator that runs now."""
    upgrade: UpgradeProgress = NO_UPGRADE
    """Counts the other services that an upgrade rolls, or has failed with."""
    objects: dict[Ref, Manifest] = field(default_factory=dict)
    replies: dict[str, PodReplies] = field(default_factory=dict)
    """The replies of pods that the operator which runs now has received."""
    proved: set[str] = field(default_factory=set)
    """The vector spaces that some pod has passed the self-check of."""

    def __post_init__(self) -> None:
        self.objects[RESOURCE_REF] = resource(self.spec)

    # -- the user, and what happens to the cluster

    def apply(self, spec: dict[str, Any]) -> None:
        """Store another manifest."""
        if spec == self.spec:
            return
        self.spec, stored = spec, self.objects[RESOURCE_REF]
        meta = {**stored["metadata"], "generation": stored["metadata"]["generation"] + 1}
        self.objects[RESOURCE_REF] = {**stored, "spec": spec, "metadata": meta}

    def lose_status(self) -> None:
        """Empty the published status."""
        self.objects[RESOURCE_REF] = {**self.objects[RESOURCE_REF], "status": {}}

    def settle(self) -> None:
        """Give every Deployment the pods that it asks for; those that no longer belong to one go."""
        pods: dict[Ref, Manifest] = {}
        for deployment in self.list_kind("Deployment"):
            pods_of_deployment = {
                ("Pod", received["metadata"]["name"]): received for received in self._make_pods(deployment)
            }
            pods |= pods_of_deployment
            running = sum("conditions" in received["status"] for received in pods_of_deployment.values())
            deployment["status"] = {
                "observedGeneration": deployment["metadata"]["generation"],
                "replicas": len(pods_of_deployment),
                "updatedReplicas": len(pods_of_deployment),
                "readyReplicas": running,
                "availableReplicas": running,
            }
        for ref in [ref for ref in self.objects if ref[0] == "Pod" and ref not in pods]:
            del self.objects[ref]
        for ref, received in pods.items():
            label = self.objects.get(ref, {}).get("metadata", {}).get("labels", {}).get(SPACE_LABEL)
            if label is not None:
                received["metadata"]["labels"][SPACE_LABEL] = label
            self.objects[ref] = received

    def _make_pods(self, deployment: Manifest) -> Iterator[Manifest]:
        template = deployment["spec"]["template"]
        mark = template["metadata"]["annotations"]["embedserve.dev/template"]
        config = template["spec"]["volumes"][0]["configMap"]["name"]
        repo = read_repo(self.objects["ConfigMap", config])
        for number in range(deployment["spec"].get("replicas", 1)):
            name = f"{deployment['metadata']['name']}-{mark}-{number}"
            received = pod(deployment["metadata"]["labels"][REVISION_LABEL], mark, config, name=name)
            is_running = "conditions" in self.objects.get(("Pod", name), {}).get("status", {})
            if repo in self.broken and not is_running:
                why = failed("ModelNotFound", "no such repository", retryable=False)
                received["status"] = {"phase": "Pending", "initContainerStatuses": [why]}
            else:
                received = ready(received, {**REPORT, "source": repo, "vectorSpace": name_space(repo)})
            yield received

    # -- the operator

    def restart_operator(self) -> None:
        """Start another operator, which has heard of nothing."""
        self.replies.clear()

    def upgrade_operator(self, image: str) -> None:
        """Start an operator that gives services another image of the runtime."""
        images = {**self.settings.images, "cpu": RuntimeImage(image)}
        self.settings = replace(self.settings, images=images)
        self.restart_operator()

    def run_pass(self, max_writes: int | None = None) -> bool:
        """Run one pass, or its first writes, after which the operator ends; return whether it wrote anything."""
        plan, observed = self.plan()
        writes = list(self._list_writes(plan, observed))
        for write in writes[:max_writes]:
            write()
        if max_writes is not None and max_writes < len(writes):
            self.restart_operator()
            return True
        before = len(self.replies)
        for request in plan.self_checks:
            self._check(request.pod.run_id, request.pod.name)
        return bool(writes) or len(self.replies) != before

    def plan(self) -> tuple[Plan, ObservedState]:
        """Return what the operator would do."""
        children = [
            received
            for (kind, _), received in self.objects.items()
            if kind not in ("EmbeddingService", "Pod")
        ]
        received = ReceivedObjects(
            EmbeddingServiceObject.parse(self.objects[RESOURCE_REF]),
            children,
            [Pod.parse(received) for received in self.list_kind("Pod")],
        )
        observed = replace(
            observe(received, replies=self.replies, now=self.now),
            upgrade=self.upgrade,
        )
        return make_plan(observed, self.settings), observed

    def _check(self, run_id: str, name: str) -> None:
        stored = self.objects["Pod", name]
        repo = read_repo(self.objects["ConfigMap", stored["spec"]["volumes"][0]["configMap"]["name"]])
        problem = "different texts gave the same vector" if repo in self.unsound else ""
        space = name_space(repo)
        if not problem:
            self.proved.add(space)
        self.replies[run_id] = PodReplies(SelfCheckResult(space, 384, problem))

    def _list_writes(self, plan: Plan, observed: ObservedState) -> Iterator[Write]:
        """Yield the writes of a plan in the order in which the operator carries them out."""
        for time in plan.replacement_times:
            yield partial(self._annotate, ("Deployment", time.deployment), time.replaced_at)
        for child in plan.children:
            ref = (child["kind"], child["metadata"]["name"])
            if self._is_changed(ref, child):
                yield partial(self._store, ref, child)
        for transfer in plan.ownership_transfers:
            yield partial(self._scale, ("Deployment", transfer.deployment), transfer.replicas)
        for label in plan.labels:
            yield partial(self._label, ("Pod", label.pod.name), label.space)
        for child_to_prune in plan.prune:
            yield partial(self._delete, (child_to_prune.ref.kind, child_to_prune.ref.name))
        status = build_status(plan, replace(observed, now=NOW)).model_dump(
            by_alias=True, exclude_none=True, mode="json"
        )
        if status != self.objects[RESOURCE_REF].get("status"):
            yield partial(self._publish, status)

    def _delete(self, ref: Ref) -> None:
        del self.objects[ref]

    def _is_changed(self, ref: Ref, child: Manifest) -> bool:
        stored = self.objects.get(ref)
        if stored is None:
            return True
        fingerprint = stored["metadata"]["annotations"].get(FINGERPRINT, "")
        there = Child(read_ref(stored), stored["metadata"]["uid"], fingerprint, parse_child(stored), stored)
        return find_reason_to_apply(child, there, AppliedDifferences()) is not None

    def _store(self, ref: Ref, child: Manifest) -> None:
        self.objects[ref] = _merge(self.objects.get(ref), child)

    def _annotate(self, ref: Ref, replaced_at: str | None) -> None:
        annotations = self.objects[ref]["metadata"]["annotations"]
        annotations.pop(REPLACED_AT, None)
        if replaced_at is not None:
            annotations[REPLACED_AT] = replaced_at

    def _scale(self, ref: Ref, replicas: int) -> None:
        stored = self.objects[ref]
        stored["spec"]["replicas"] = replicas
        stored["metadata"]["generation"] += 1

    def _label(self, ref: Ref, space: str) -> None:
        self.objects[ref]["metadata"]["labels"][SPACE_LABEL] = space

    def _publish(self, status: dict[str, Any]) -> None:
        self.objects[RESOURCE_REF] = {**self.objects[RESOURCE_REF], "status": status}

    # -- what is to be seen

    def list_kind(self, kind: str) -> list[Manifest]:
        """Return the objects of a kind."""
        return [received for (its, _), received in self.objects.items() if its == kind]

    def find_deployment(self, revision: str) -> Manifest | None:
        """Return the Deployment of a revision, if it exists."""
        return self.objects.get(("Deployment", f"docs-{revision}"))

    def find_template(self, revision: str | None) -> str | None:
        """Return the hash of the pod template of a revision."""
        deployment = self.find_deployment(revision or "")
        return None if deployment is None else read_template_hash(deployment)

    @property
    def generation(self) -> int:
        """The generation of the user's manifest."""
        return int(self.objects[RESOURCE_REF]["metadata"]["generation"])

    @property
    def serving_revision(self) -> str | None:
        """The revision to which the Service leads."""
        service = self.objects.get(("Service", "docs"))
        return None if service is None else str(service["spec"]["selector"][REVISION_LABEL])

    def find_space(self, revision: str | None) -> str | None:
        """Return the vector space of a revision whose Deployment exists."""
        deployment = self.find_deployment(revision or "")
        if deployment is None:
            return None
        config = deployment["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"]
        return name_space(read_repo(self.objects["ConfigMap", config]))

    def list_spaces(self, revision: str | None) -> set[str]:
        """Return the vector spaces of the ready pods of a revision."""
        return {
            name_space(
                read_repo(self.objects["ConfigMap", received["spec"]["volumes"][0]["configMap"]["name"]])
            )
            for received in self.list_kind("Pod")
            if received["metadata"]["labels"][REVISION_LABEL] == revision
            and "conditions" in received["status"]
        }


def name_space(repo: str) -> str:
    """Return the vector space of a repository; a mirror's is that of what it mirrors."""
    name = repo.partition("/")[2].removesuffix("-mirror")
    return f"vs2-{name.encode().hex():0<20}"


def read_repo(config: Manifest) -> str:
    """Return the repository that a configuration names."""
    return str(yaml.safe_load(config["data"]["runtime.yaml"])["model"]["source"])


def _merge(stored: Manifest | None, child: Manifest) -> Manifest:
    """Return an object once a manifest was applied to it; what other managers wrote stays."""
    merged = deepcopy(child)
    kind, name = read_ref(child).kind, read_ref(child).name
    if stored is None:
        merged["metadata"] |= {"uid": f"uid-{kind}-{name}", "generation": 1}
        return merged
    if "replicas" in stored.get("spec", {}):
        merged["spec"].setdefault("replicas", stored["spec"]["replicas"])
    replaced = stored["metadata"].get("annotations", {}).get(REPLACED_AT)
    if replaced is not None:
        merged["metadata"]["annotations"][REPLACED_AT] = replaced
    changed = merged.get("spec") != stored.get("spec")
    merged["metadata"] |= {
        "uid": stored["metadata"]["uid"],
        "generation": stored["metadata"]["generation"] + changed,
    }
    if "status" in stored:
        merged["status"] = stored["status"]
    return merged
