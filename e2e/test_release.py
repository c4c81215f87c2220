"""The chart as it is installed: what it tells, and what its operator may do."""

from __future__ import annotations

import os
from typing import Any

import pytest
import yaml

from e2e.cluster.kubectl import Kubectl
from e2e.cluster.lifecycle import Cluster
from e2e.cluster.shell import run
from e2e.demo.release import OPERATOR_NAMESPACE, RELEASE
from e2e.services import OPERATOR


def test_the_notes_show_a_manifest_that_the_cluster_takes(cluster: Cluster, kubectl: Kubectl) -> None:
    environment = {**os.environ, "KUBECONFIG": str(cluster.layout.admin_kubeconfig)}
    words = [str(cluster.helm), "get", "notes", RELEASE, "--namespace", OPERATOR_NAMESPACE]
    notes = run(words, environment=environment)
    shown = notes.partition("<<'EOF'")[2].partition("EOF")[0]
    manifest = "\n".join(line.removeprefix("  ") for line in shown.splitlines())
    assert yaml.safe_load(manifest)["kind"] == "EmbeddingService"
    kubectl("apply", "--dry-run=server", "--filename", "-", stdin=manifest)


@pytest.mark.parametrize(
    ("verb", "resource"),
    [
        ("get", "secrets"),
        ("list", "secrets"),
        ("update", "embeddingservices.embedserve.dev"),
        ("patch", "embeddingservices.embedserve.dev"),
        ("delete", "embeddingservices.embedserve.dev"),
        ("update", "embeddingservices.embedserve.dev/finalizers"),
        ("create", "pods"),
        ("create", "pods/exec"),
        ("get", "nodes"),
        ("create", "clusterrolebindings.rbac.authorization.k8s.io"),
    ],
)
def test_the_operator_may_not(kubectl: Kubectl, verb: str, resource: str) -> None:
    account = f"system:serviceaccount:{OPERATOR_NAMESPACE}:{OPERATOR}"
    kind, _, subresource = resource.partition("/")
    more = (f"--subresource={subresource}",) if subresource else ()
    result = kubectl.attempt("auth", "can-i", verb, kind, "--as", account, "--namespace", "default", *more)
    assert result.stdout.strip() == "no"


def test_the_operator_runs_restricted(kubectl: Kubectl) -> None:
    """A namespace that enforces the restricted profile would take its pod."""
    deployment = kubectl.get("deployment", OPERATOR, "--namespace", OPERATOR_NAMESPACE)
    assert deployment is not None
    labels = "pod-security.kubernetes.io/enforce=restricted"
    output = kubectl("label", "namespace", OPERATOR_NAMESPACE, labels, "--dry-run=server", "--overwrite")
    assert "labeled" in output
    spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
    assert spec["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
