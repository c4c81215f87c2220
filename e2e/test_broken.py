"""Broken services: each says what is wrong in words a user can act on, disturbs no other, and can be repaired."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from e2e.cluster.kubectl import Kubectl
from e2e.cluster.polling import wait_until
from e2e.conftest import MakeService
from e2e.demo.partners import ClientPod, hub_token
from e2e.hub import samples
from e2e.services import TIMEOUT_S, Service, condition, hub_spec

TOKEN = {"tokenSecretRef": {"name": "hub", "key": "token"}}
MISSING_SECRET = {"tokenSecretRef": {"name": "no-such-secret", "key": "token"}}


@dataclass(frozen=True)
class Broken:
    """A service that cannot work, and what must be said about it."""

    spec: dict[str, Any]
    reason: str
    names: tuple[str, ...]
    """The words that the message must have."""
    stalls: bool
    repaired: dict[str, Any] = field(default_factory=hub_spec)


BROKEN = {
    "no-repo": Broken(
        hub_spec("acme/does-not-exist"), "ModelNotFound", ("acme/does-not-exist",), stalls=True
    ),
    "no-revision": Broken(
        hub_spec(hub={"revision": "v99"}), "RevisionNotFound", (samples.MINILM, "v99"), stalls=True
    ),
    "gated": Broken(hub_spec(samples.GATED), "ModelAccessDenied", (samples.GATED,), stalls=True),
    "no-tokenizer": Broken(
        hub_spec(samples.NO_TOKENIZER), "ModelFileMissing", ("tokenizer.json",), stalls=True
    ),
    "architecture": Broken(
        hub_spec(samples.UNKNOWN_ARCHITECTURE), "UnsupportedArchitecture", ("time-lord",), stalls=True
    ),
    "no-secret": Broken(
        hub_spec(samples.GATED, hub=MISSING_SECRET),
        "SecretMissing",
        ("no-such-secret",),
        stalls=False,
        repaired=hub_spec(samples.GATED, hub=TOKEN),
    ),
    "no-room": Broken(
        hub_spec(resources={"requests": {"cpu": "4000"}}),
        "Unschedulable",
        ("Insufficient cpu",),
        stalls=False,
    ),
}


@pytest.fixture(scope="module")
def secret(kubectl: Kubectl, namespace: str) -> None:
    """The Secret with a token that may read the gated repository."""
    data = {"token": hub_token(kubectl)}
    metadata = {"name": "hub", "namespace": namespace}
    kubectl.apply(
        json.dumps({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data})
    )


@pytest.fixture(scope="module")
def good(kubectl: Kubectl, client: ClientPod, namespace: str) -> Service:
    """A service beside the broken ones; it must not notice them."""
    embsvc = Service(kubectl, client, namespace, "good")
    embsvc.apply(hub_spec())
    embsvc.wait_serving()
    return embsvc


@pytest.fixture(scope="module")
def broken(
    kubectl: Kubectl, client: ClientPod, namespace: str, secret: None, good: Service
) -> dict[str, Service]:
    """All of them at once, so that they wait together."""
    services = {name: Service(kubectl, client, namespace, name) for name in BROKEN}
    for name, embsvc in services.items():
        embsvc.apply(BROKEN[name].spec)
    return services


# What is stuck, what waits for a Secret, and what waits for room: the others go one of these ways.
REPAIRED = ("no-repo", "no-secret", "no-room")


@pytest.fixture(scope="module")
def repaired(broken: dict[str, Service]) -> dict[str, Service]:
    """Some of them after their manifests were put right."""
    for name in REPAIRED:
        broken[name].apply(BROKEN[name].repaired)
    return broken


@pytest.mark.parametrize("name", list(BROKEN))
def test_a_broken_service_says_why(broken: dict[str, Service], name: str) -> None:
    case, service = BROKEN[name], broken[name]
    ready = service.wait_condition("Ready", "False", case.reason)
    for word in case.names:
        assert word in ready["message"]
    way = "Stalled" if case.stalls else "Reconciling"
    assert service.wait_condition(way, "True", case.reason)["message"] == ready["message"]
    resource = service.get()
    assert condition(resource, "Reconciling" if case.stalls else "Stalled") is None
    assert "vectorSpace" not in resource["status"]


def test_a_service_beside_them_does_not_notice(broken: dict[str, Service], good: Service) -> None:
    assert good.get()["status"]["readyReplicas"] == 1
    assert len(good.embed("still here")) == 1


@pytest.mark.parametrize("name", REPAIRED)
def test_its_manifest_repairs_it(repaired: dict[str, Service], name: str) -> None:
    repaired[name].wait_serving()
    assert len(repaired[name].embed("repaired")) == 1


def test_a_token_is_nowhere_but_in_its_secret(
    kubectl: Kubectl, service: MakeService, secret: None, namespace: str
) -> None:
    gated = service("gated-ready")
    gated.apply(hub_spec(samples.GATED, hub=TOKEN))
    gated.wait_serving()
    token = hub_token(kubectl)
    everything = kubectl("get", "all,configmaps,events,embsvc", "--namespace", namespace, "--output", "yaml")
    (pod,) = gated.pods()
    for container in ("fetch", "runtime"):
        everything += kubectl(
            "logs", pod["metadata"]["name"], "--container", container, "--namespace", namespace
        )
    assert token not in everything
    gated.delete()


def test_a_service_of_somebody_else_is_not_taken_over(
    kubectl: Kubectl, service: MakeService, namespace: str
) -> None:
    foreign = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "taken", "namespace": namespace},
        "spec": {"selector": {"app": "somebody-else"}, "ports": [{"port": 80}]},
    }
    kubectl.apply(json.dumps(foreign))
    before = kubectl.get("service", "taken", "--namespace", namespace)
    embsvc = service("taken")
    embsvc.apply(hub_spec())
    ready = embsvc.wait_condition("Ready", "False", "NameTaken")
    assert "Service taken exists already" in ready["message"]
    assert kubectl.get("service", "taken", "--namespace", namespace) == before
    kubectl("delete", "service", "taken", "--namespace", namespace)
    embsvc.wait_serving()
    embsvc.delete()


def test_no_pod_reads_the_pin_of_somebody_else(
    kubectl: Kubectl, service: MakeService, namespace: str
) -> None:
    embsvc = service("pinned")
    embsvc.apply(hub_spec(suspend=True))
    embsvc.wait_condition("Ready", "True", "Suspended")
    name = f"{embsvc.child('deployments')['metadata']['name']}-pin"
    embsvc.delete()
    wait_until("all children are gone", lambda: not embsvc.children(), timeout_s=TIMEOUT_S)
    commit = "deadbeef00000000000000000000000000000000"
    kubectl("create", "configmap", name, f"--from-literal=commit={commit}", "--namespace", namespace)
    embsvc.apply(hub_spec())
    ready = embsvc.wait_condition("Ready", "False", "NameTaken")
    assert f"ConfigMap {name} exists already" in ready["message"]
    assert not embsvc.children("deployments", "pods")
    kubectl("delete", "configmap", name, "--namespace", namespace)
    embsvc.wait_serving()
    embsvc.delete()


def test_a_refusal_by_the_api_server_is_passed_on(service: MakeService) -> None:
    refused = service("refused")
    refused.apply(hub_spec(resources={"requests": {"example.com/device": 1}}))
    ready = refused.wait_condition("Ready", "False", "ChildRefused")
    assert "Limit must be set for non overcommitable resources" in ready["message"]
    refused.apply(hub_spec())
    refused.wait_serving()
    refused.delete()
    wait_until("its pods are gone", lambda: not refused.children("pods"), timeout_s=TIMEOUT_S)
