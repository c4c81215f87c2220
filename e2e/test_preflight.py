"""What `kubectl embedserve preflight` and `helm test` say of a real cluster."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from subprocess import CompletedProcess

import pytest

from e2e.cluster.kubectl import Kubectl
from e2e.cluster.lifecycle import Cluster
from e2e.cluster.polling import wait_until
from e2e.cluster.shell import attempt, run
from e2e.conftest import MakeService
from e2e.demo.release import CHART, OPERATOR_NAMESPACE, RELEASE
from e2e.scaled import scaled_spec, somebody_elses_api
from e2e.services import OPERATOR, TIMEOUT_S

PROGRAM = "from embedserve_operator.commands.cli import kubectl_plugin; raise SystemExit(kubectl_plugin())"


@pytest.fixture(scope="module", autouse=True)
def nobody_scales(kubectl: Kubectl) -> None:
    """Wait until what other modules have deleted is gone: preflight looks at all services of the cluster."""

    def scaling() -> list[str]:
        received = kubectl.get("embeddingservices", "--all-namespaces") or {"items": []}
        return [item["metadata"]["name"] for item in received["items"] if "autoscaling" in item["spec"]]

    wait_until("no service scales", lambda: not scaling(), timeout_s=TIMEOUT_S)


def preflight(cluster: Cluster, *words: str) -> CompletedProcess[str]:
    environment = {**os.environ, "KUBECONFIG": str(cluster.layout.admin_kubeconfig)}
    return attempt([sys.executable, "-c", PROGRAM, "preflight", *words], environment=environment)


def finding(result: CompletedProcess[str], subject: str) -> str:
    (line,) = [line for line in result.stdout.splitlines() if line.startswith(subject)]
    return line.removeprefix(subject).strip()


def test_an_installed_release_passes_and_its_leader_is_named(cluster: Cluster) -> None:
    result = preflight(cluster, "--installed", "--service-account", OPERATOR)
    assert result.returncode == 0, result.stdout + result.stderr
    assert finding(result, "definition").startswith("ok")
    assert finding(result, "rights").startswith("ok")
    assert f"{RELEASE}-operator-" in finding(result, "operator")
    # Off by default in this Kubernetes: the API server itself says so, to a pod that is never made.
    assert finding(result, "image volumes").startswith("warning")


@pytest.mark.parametrize("more", [(), ("--logs",)], ids=["plain", "with logs"])
def test_the_account_of_the_operator_sees_enough_for_helm_test(
    cluster: Cluster, more: tuple[str, ...]
) -> None:
    environment = {**os.environ, "KUBECONFIG": str(cluster.layout.admin_kubeconfig)}
    words = ["test", RELEASE, "--namespace", OPERATOR_NAMESPACE, *more]
    result = attempt([cluster.helm, *words], environment=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    # By its annotation helm writes what the pod has said with its own log, with the option once more with its answer.
    assert "nothing is missing" in result.stderr
    assert ("nothing is missing" in result.stdout) == bool(more)


def test_rights_that_an_account_lacks_are_named(cluster: Cluster) -> None:
    result = preflight(cluster, "--service-account", "default")
    assert result.returncode == 1
    assert "may not list embeddingservices.embedserve.dev" in finding(result, "rights")


def test_a_service_that_scales_where_nobody_measures_fails(cluster: Cluster, service: MakeService) -> None:
    lonely = service("lonely")
    lonely.apply(scaled_spec())
    try:
        result = preflight(cluster)
        assert result.returncode == 1
        assert finding(result, "autoscaling").startswith("MISSING")
    finally:
        lonely.delete()


@pytest.fixture
def foreign(kubectl: Kubectl) -> Iterator[str]:
    """Name of an APIService of somebody else."""
    api_service = somebody_elses_api()
    name = str(api_service["metadata"]["name"])
    kubectl("create", "--filename", "-", stdin=json.dumps(api_service))
    yield name
    kubectl("delete", "apiservice", name)


def test_who_else_has_the_api_of_metrics_is_named(cluster: Cluster, foreign: str) -> None:
    result = preflight(cluster, "--metrics", "adapter")
    assert result.returncode == 1
    assert f"Service monitoring/prometheus-adapter (APIService {foreign})" in finding(result, "autoscaling")


@pytest.mark.parametrize(
    ("enabled", "want"),
    [
        ("true", "The metrics adapter stays off: custom.metrics.k8s.io is served by {}.\n"),
        ("false", "This cluster has {} (docs/autoscaling.md says what it has to know).\n"),
    ],
)
def test_the_notes_of_the_chart_name_it(cluster: Cluster, foreign: str, enabled: str, want: str) -> None:
    words = ["upgrade", RELEASE, str(CHART), "--namespace", OPERATOR_NAMESPACE, "--reuse-values"]
    options = ["--dry-run=server", "--set", f"metricsAdapter.enabled={enabled}"]
    environment = {**os.environ, "KUBECONFIG": str(cluster.layout.admin_kubeconfig)}
    notes = run([cluster.helm, *words, *options], environment=environment)
    assert want.format(f"monitoring/prometheus-adapter ({foreign})") in notes
