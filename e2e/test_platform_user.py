"""A platform that chooses the user of every pod and refuses fixed ones, as OpenShift's restricted-v2 does.

A validating policy of the API server stands in for it: pods that name a user or a group are refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from e2e.cluster.errors import ClusterError
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.lifecycle import Cluster
from e2e.cluster.polling import wait_until
from e2e.conftest import MakeService
from e2e.demo.partners import HUB_URL
from e2e.demo.release import OPERATOR_NAMESPACE, Release
from e2e.services import TIMEOUT_S, Object, hub_spec, operator_pods

POLICY = "e2e-no-fixed-users"
MARK = "e2e.embedserve.dev/no-fixed-users"
REFUSAL = "must not name a user or a group: the platform chooses them"
DETECTED = "securitycontextconstraints.security.openshift.io"
_NAMES_NONE = (
    "!has(c.securityContext) || !(has(c.securityContext.runAsUser) || has(c.securityContext.runAsGroup))"
)


def policy() -> list[Object]:
    """The policy and its binding, for the namespaces with the mark."""
    pod = "object.spec"
    of_pod = " || ".join(
        f"has({pod}.securityContext.{field})" for field in ("runAsUser", "runAsGroup", "fsGroup")
    )
    checks = [
        f"!has({pod}.securityContext) || !({of_pod})",
        f"{pod}.containers.all(c, {_NAMES_NONE})",
        f"!has({pod}.initContainers) || {pod}.initContainers.all(c, {_NAMES_NONE})",
    ]
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "resources": ["pods"],
        "operations": ["CREATE"],
    }
    api = "admissionregistration.k8s.io/v1"
    return [
        {
            "apiVersion": api,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": POLICY},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {
                    "namespaceSelector": {"matchLabels": {MARK: "true"}},
                    "resourceRules": [rule],
                },
                "validations": [{"expression": check, "message": f"pods {REFUSAL}"} for check in checks],
            },
        },
        {
            "apiVersion": api,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": POLICY},
            "spec": {"policyName": POLICY, "validationActions": ["Deny"]},
        },
    ]


def detected_kind() -> Object:
    """A definition by which the chart knows the platform; there are no objects of it."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": DETECTED,
            # Groups of *.openshift.io are not protected, as those of *.k8s.io are.
            "labels": {MARK: "true"},
        },
        "spec": {
            "group": "security.openshift.io",
            "names": {"plural": "securitycontextconstraints", "kind": "SecurityContextConstraints"},
            "scope": "Cluster",
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object"}},
                }
            ],
        },
    }


@pytest.fixture
def no_fixed_users(kubectl: Kubectl, namespace: str) -> Iterator[None]:
    """The policy is in force in the namespace of the test and in that of the operator."""
    kubectl.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": policy()}))
    for name in (namespace, OPERATOR_NAMESPACE):
        kubectl("label", "namespace", name, f"{MARK}=true", "--overwrite")
    wait_until("the policy is in force", lambda: is_refused(kubectl, namespace), timeout_s=TIMEOUT_S)
    yield
    for name in (namespace, OPERATOR_NAMESPACE):
        kubectl("label", "namespace", name, f"{MARK}-")
    for kind in ("validatingadmissionpolicybinding", "validatingadmissionpolicy"):
        kubectl("delete", kind, POLICY)


def is_refused(kubectl: Kubectl, namespace: str) -> bool:
    """Return whether a pod with a user of its own is refused."""
    security = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    own = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "fixed", "namespace": namespace},
        "spec": {
            "securityContext": security,
            "containers": [{"name": "c", "image": "none", "securityContext": own}],
        },
    }
    try:
        kubectl("create", "--dry-run=server", "--filename", "-", stdin=json.dumps(pod))
    except ClusterError as error:
        return REFUSAL in str(error)
    return False


@pytest.fixture
def release(cluster: Cluster, kubectl: Kubectl) -> Iterator[Release]:
    chart_release = Release(cluster, HUB_URL)
    yield chart_release
    kubectl("delete", "customresourcedefinition", DETECTED, "--ignore-not-found")
    chart_release.install()


def test_where_the_platform_chooses_users_pods_name_none(
    release: Release, kubectl: Kubectl, service: MakeService, no_fixed_users: None
) -> None:
    """One service has a volume, which a Job fills; by then the chart has found out by itself."""
    embsvc = service("anybody")
    embsvc.apply(hub_spec())
    reported = embsvc.wait_condition("Reconciling", "True", "PodsNotCreated")
    assert REFUSAL in reported["message"]

    kubectl.apply(json.dumps(detected_kind()))
    kubectl.wait_for(
        "the API server has the platform's kind",
        ("customresourcedefinition", DETECTED),
        lambda resource: any(
            c["type"] == "Established" and c["status"] == "True"
            for c in resource.get("status", {}).get("conditions", [])
        ),
        timeout_s=TIMEOUT_S,
    )
    release.install()
    embsvc.wait_serving()
    cached = service("cached")
    cached.apply(hub_spec(cache={"volume": {"size": "1Gi"}}))
    cached.wait_serving()
    for pod in (*embsvc.pods(), *cached.pods(), *operator_pods(kubectl)):
        security = pod["spec"]["securityContext"]
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(security), pod["metadata"]["name"]
        assert security["runAsNonRoot"] is True
    assert len(embsvc.embed("served by whoever the platform says")[0]) == 384
    assert len(cached.embed("from a volume")[0]) == 384
    embsvc.delete()
    cached.delete()
