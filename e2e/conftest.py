"""A real cluster with the chart installed, a hub and a client pod; a namespace of its own for each test module."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator

import pytest

from e2e.cluster.image_node import remove_image_node
from e2e.cluster.kubectl import Kubectl, deployment_available
from e2e.cluster.kwok import remove_fake_nodes
from e2e.cluster.layout import Layout
from e2e.cluster.lifecycle import Cluster
from e2e.cluster.polling import wait_until
from e2e.cluster.progress import Progress
from e2e.demo.partners import HUB_URL, ClientPod, start_client, start_hub
from e2e.demo.release import OPERATOR_NAMESPACE, Release
from e2e.flux import flux
from e2e.scaled import scaled_spec
from e2e.services import OPERATOR, TIMEOUT_S, Service, operator_pods

# The first run builds Kubernetes, inside the first test that wants a cluster.
MAX_TEST_SECONDS = 3600

MakeService = Callable[[str], Service]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.timeout(MAX_TEST_SECONDS))


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The cluster, up, with hub and chart; it is left running, the next run finds it."""
    new_cluster = Cluster(Layout.of_user(), Progress())
    new_cluster.up()
    remove_fake_nodes(new_cluster.kubectl)
    remove_image_node(new_cluster)
    start_hub(new_cluster)
    Release(new_cluster, HUB_URL).install()
    return new_cluster


@pytest.fixture(scope="session")
def kubectl(cluster: Cluster) -> Kubectl:
    return cluster.kubectl


@pytest.fixture(scope="module")
def flux_controllers(cluster: Cluster) -> Iterator[None]:
    """Flux, for as long as a module needs it."""
    with flux(cluster):
        yield


@pytest.fixture(scope="session")
def client(cluster: Cluster) -> ClientPod:
    return start_client(cluster)


@pytest.fixture(scope="module")
def namespace(kubectl: Kubectl, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace that enforces the restricted Pod Security profile; what was in it is shown on failure."""
    name = f"e2e-{secrets.token_hex(4)}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    metadata = {"name": name, "labels": labels}
    kubectl.apply(json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}))
    failed_before = request.session.testsfailed
    yield name
    if request.session.testsfailed > failed_before:
        _show(kubectl, name)
    kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="module")
def no_operator(kubectl: Kubectl, cluster: Cluster) -> Iterator[None]:
    """The chart's operator is stopped meanwhile: the tests bring their own."""
    deployment = ("deployment", OPERATOR, "--namespace", OPERATOR_NAMESPACE)
    kubectl("scale", *deployment, "--replicas=0")
    wait_until("no operator runs", lambda: not operator_pods(kubectl), timeout_s=TIMEOUT_S)
    yield
    kubectl("scale", *deployment, "--replicas=1")
    kubectl.wait_for("the operator", deployment, deployment_available, timeout_s=TIMEOUT_S)


@pytest.fixture
def service(kubectl: Kubectl, client: ClientPod, namespace: str) -> MakeService:
    """A service of some name in the module's namespace; applying it is the test's business."""
    return lambda name: Service(kubectl, client, namespace, name)


@pytest.fixture
def scaled(service: MakeService) -> Iterator[Service]:
    """A service with one pod, which the autoscaler has looked at."""
    embsvc = service("scaled")
    embsvc.apply(scaled_spec())
    embsvc.wait_serving()
    embsvc.wait_condition("ScalingActive", "True", "Scaling")
    yield embsvc
    embsvc.delete()


def _show(kubectl: Kubectl, namespace: str) -> None:
    for words in (
        (
            "get",
            "embeddingservices,deployments,services,configmaps,pods",
            "--namespace",
            namespace,
            "-o",
            "wide",
        ),
        ("get", "embeddingservices", "--namespace", namespace, "--output", "yaml"),
        ("get", "events", "--namespace", namespace, "--sort-by=.lastTimestamp"),
        ("logs", "--namespace", OPERATOR_NAMESPACE, "--selector", "app.kubernetes.io/component=operator"),
    ):
        result = kubectl.attempt(*words)
        print(f"$ kubectl {' '.join(words)}\n{result.stdout}{result.stderr}")
