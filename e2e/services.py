"""EmbeddingServices of the tests: applied, watched and asked as a user would."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any

from e2e.cluster.errors import ClusterError
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.polling import wait_until
from e2e.cluster.process_table import list_commands
from e2e.demo.partners import ClientPod
from e2e.demo.release import OPERATOR_NAMESPACE, RELEASE
from e2e.hub import samples

TIMEOUT_S = 240
"""Bound of every wait: far beyond what anything takes, so that only what never happens fails."""
CHILD_KINDS = ("deployments", "services", "configmaps", "networkpolicies")
OPERATOR = f"{RELEASE}-operator"
"""Name of the operator's Deployment and of its Lease."""
Object = dict[str, Any]


def hub_spec(repo: str = samples.MINILM, **more: Any) -> Object:
    """A spec with a repository of the test hub and any other fields."""
    hub = {"repo": repo, **more.pop("hub", {})}
    return {"model": {"source": {"huggingFace": hub}, **more.pop("model", {})}, **more}


@dataclass(frozen=True)
class Service:
    """One EmbeddingService of a test."""

    kubectl: Kubectl
    client: ClientPod
    namespace: str
    name: str

    def manifest(self, spec: Mapping[str, Any]) -> str:
        """JSON, which is YAML."""
        return json.dumps(
            {
                "apiVersion": "embedserve.dev/v1alpha1",
                "kind": "EmbeddingService",
                "metadata": {"name": self.name, "namespace": self.namespace},
                "spec": spec,
            }
        )

    def apply(self, spec: Mapping[str, Any]) -> None:
        self.kubectl("apply", "--filename", "-", stdin=self.manifest(spec))

    def get(self) -> Object:
        received = self.kubectl.get("embeddingservice", self.name, "--namespace", self.namespace)
        assert received is not None
        return received

    def wait_for(self, what: str, met: Callable[[Object], bool]) -> Object:
        """The resource once the operator has acted on its latest spec and `met` holds."""
        words = ("embeddingservice", self.name, "--namespace", self.namespace)
        return self.kubectl.wait_for(
            f"{self.name}: {what}",
            words,
            lambda resource: is_observed(resource) and met(resource),
            timeout_s=TIMEOUT_S,
            give_up=lambda: None,
        )

    def wait_serving(self) -> Object:
        """The resource once exactly what its spec asks for is served."""
        return self.wait_for("serves what is asked for", is_serving)

    def wait_serving_by_others(self, before: Set[str]) -> Object:
        """The resource once none of the pods `before` is left and as many others as it has replicas are ready.

        What the status says is not enough: until the operator has seen the old pods end it tells of them.
        """

        def by_others(resource: Object) -> bool:
            pods = {pod["metadata"]["name"]: is_ready(pod) for pod in self.pods()}
            ready = sum(pods.values())
            return is_serving(resource) and not before & set(pods) and ready >= resource["status"]["replicas"]

        return self.wait_for("serves by other pods", by_others)

    def wait_condition(self, kind: str, status: str, reason: str) -> Object:
        """Return that condition of the resource, once it is so."""
        resource = self.wait_for(
            f"{kind} is {status} because of {reason}",
            lambda resource: (
                (c := condition(resource, kind)) is not None
                and (c["status"], c["reason"]) == (status, reason)
            ),
        )
        stated = condition(resource, kind)
        assert stated is not None
        return stated

    def delete(self) -> None:
        """Delete it and wait until it is gone; its pods may take longer."""
        words = ("embeddingservice", self.name, "--namespace", self.namespace)
        self.kubectl("delete", *words, f"--timeout={TIMEOUT_S}s", timeout_s=TIMEOUT_S + 30)

    def children(self, *kinds: str) -> list[Object]:
        """Children that carry the service's label, of all kinds or of some."""
        children = []
        for kind in kinds or CHILD_KINDS:
            listed = self.kubectl.get(kind, "--namespace", self.namespace, "--selector", self.selector)
            children += (listed or {}).get("items", [])
        return children

    def child(self, kind: str) -> Object:
        """The only child of a kind."""
        (child,) = self.children(kind)
        return child

    def child_named(self, kind: str, name: str) -> Object:
        """A child that exists."""
        received = self.kubectl.get(kind, name, "--namespace", self.namespace)
        assert received is not None
        return received

    def pods(self) -> list[Object]:
        return [pod for pod in self.children("pods") if "deletionTimestamp" not in pod["metadata"]]

    def embed(self, *texts: str) -> list[list[float]]:
        """Vectors, asked for from a pod by the Service's name."""
        url = f"{self.get()['status']['endpoint']['url']}/v1"
        vectors: list[list[float]] = []

        def answered() -> bool:
            # kube-proxy needs a moment after the first endpoint; an answer with an error is an error at once.
            try:
                vectors[:] = self.client.embed(url, self.name, texts)
            except ClusterError as error:
                if "APIConnectionError" in str(error):
                    return False
                raise
            return True

        wait_until(f"{url} answers", answered, timeout_s=60, every_s=0.5)
        return vectors

    @property
    def selector(self) -> str:
        return f"embedserve.dev/service={self.name}"


def is_observed(resource: Object) -> bool:
    return bool(
        resource.get("status", {}).get("observedGeneration", -1) >= resource["metadata"]["generation"]
    )


def is_serving(resource: Object) -> bool:
    """Ready, and nothing on the way or stuck."""
    conditions = {c["type"]: c for c in resource.get("status", {}).get("conditions", [])}
    return conditions.get("Ready", {}).get("status") == "True" and not {"Reconciling", "Stalled"} & set(
        conditions
    )


def is_ready(pod: Object) -> bool:
    ready = condition(pod, "Ready")
    return ready is not None and ready["status"] == "True"


def condition(resource: Object, kind: str) -> Object | None:
    return next((c for c in resource.get("status", {}).get("conditions", []) if c["type"] == kind), None)


def operator_pods(kubectl: Kubectl) -> list[Object]:
    """The operator's pods, those that are ending left out."""
    words = ("pods", "--namespace", OPERATOR_NAMESPACE, "--selector", "app.kubernetes.io/component=operator")
    listed = (kubectl.get(*words) or {}).get("items", [])
    return [pod for pod in listed if "deletionTimestamp" not in pod["metadata"]]


def leader(kubectl: Kubectl, *, other_than: str = "") -> Object:
    """The pod that leads, once one does that is not ending."""
    leaders: list[Object] = []

    def leads() -> bool:
        lease = kubectl.get("lease", OPERATOR, "--namespace", OPERATOR_NAMESPACE)
        holder = lease["spec"]["holderIdentity"] if lease is not None else ""
        leaders[:] = [pod for pod in operator_pods(kubectl) if pod["metadata"]["name"] == holder]
        return bool(leaders) and holder != other_than

    wait_until("an operator leads", leads, timeout_s=TIMEOUT_S)
    return leaders[0]


def kill_operator(pod: Object) -> None:
    """SIGKILL to the operator's process, from the machine that the node is part of."""
    mark = f"--identity={pod['metadata']['name']}".encode()
    process_ids = [number for number, words in list_commands() if mark in words]
    assert process_ids, f"no process of {pod['metadata']['name']}"
    for number in process_ids:
        os.kill(number, signal.SIGKILL)
