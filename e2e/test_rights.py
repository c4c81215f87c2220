"""Who may do what: users by the cluster's own roles, and services with the Secrets of their namespace."""

from __future__ import annotations

import json

import pytest

from e2e.cluster.kubectl import Kubectl
from e2e.cluster.lifecycle import Cluster
from e2e.conftest import MakeService
from e2e.demo.partners import HUB_NAMESPACE, HUB_PORT, hub_token
from e2e.scaled import upgrade
from e2e.services import hub_spec

CHOSEN = f"http://hub.{HUB_NAMESPACE}.svc:{HUB_PORT}"
"""The hub by another name than the release has: a server of the author's choice."""


@pytest.mark.parametrize(
    ("role", "may", "may_not"),
    [
        ("view", ("get", "list", "watch"), ("create", "patch", "delete")),
        ("edit", ("get", "list", "create", "update", "patch", "delete"), ()),
        ("admin", ("get", "list", "create", "update", "patch", "delete"), ()),
    ],
)
def test_the_roles_of_the_cluster_count_for_services(
    kubectl: Kubectl, namespace: str, role: str, may: tuple[str, ...], may_not: tuple[str, ...]
) -> None:
    user = f"user-of-{role}"
    words = ("rolebinding", user, f"--clusterrole={role}", f"--user={user}", "--namespace", namespace)
    kubectl("create", *words)

    def can(verb: str, where: str) -> bool:
        words = ("auth", "can-i", verb, "embeddingservices.embedserve.dev", "--as", user)
        return kubectl.attempt(*words, "--namespace", where).stdout.strip() == "yes"

    assert [verb for verb in may if not can(verb, namespace)] == []
    assert [verb for verb in may_not if can(verb, namespace)] == []
    assert not can("get", "default"), "in their own namespace only"
    status = (
        "auth",
        "can-i",
        "patch",
        "embeddingservices.embedserve.dev",
        "--subresource=status",
        "--as",
        user,
    )
    assert kubectl.attempt(*status, "--namespace", namespace).stdout.strip() == "no"


def test_a_secret_goes_to_no_server_that_the_platform_does_not_allow(
    cluster: Cluster, kubectl: Kubectl, namespace: str, service: MakeService
) -> None:
    metadata = {"name": "hub", "namespace": namespace}
    token = {"token": hub_token(kubectl)}
    kubectl.apply(
        json.dumps({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": token})
    )
    spec = hub_spec(hub={"endpoint": CHOSEN, "tokenSecretRef": {"name": "hub", "key": "token"}})
    embsvc = service("chosen")
    upgrade(cluster, "--set-json", "allowedEndpoints=[]")
    try:
        embsvc.apply(spec)
        refused = embsvc.wait_condition("Stalled", "True", "EndpointNotAllowed")
        assert CHOSEN in refused["message"]
        assert embsvc.children("deployments", "pods") == []
        upgrade(cluster, "--set-json", f"allowedEndpoints={json.dumps([CHOSEN])}")
        embsvc.wait_serving()
    finally:
        upgrade(cluster, "--set-json", 'allowedEndpoints=["*"]')
    embsvc.delete()
