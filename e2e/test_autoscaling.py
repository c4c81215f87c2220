"""Services that follow their queues, by the adapter of the chart."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator

import pytest

from e2e.cluster.kubectl import Kubectl, deployment_available
from e2e.cluster.lifecycle import Cluster
from e2e.cluster.polling import wait_until
from e2e.conftest import MakeService
from e2e.demo.release import OPERATOR_NAMESPACE, RELEASE
from e2e.load import asking
from e2e.scaled import LONG_TEXT, ready, scaled_spec, somebody_elses_api, upgrade
from e2e.services import TIMEOUT_S, Object, Service, condition

pytestmark = pytest.mark.soak

ADAPTER = f"{RELEASE}-metrics-adapter"
DEPLOYMENT = ("deployment", ADAPTER, "--namespace", OPERATOR_NAMESPACE)
API_SERVICE = ("apiservice", "v1beta2.custom.metrics.k8s.io")
SELECTOR = "app.kubernetes.io/component=metrics-adapter"
GRACE_S = 30
"""The seconds for which the operator leaves an API registered that nobody answers for."""


def is_available(resource: Object) -> bool:
    reported = condition(resource, "Available")
    return reported is not None and reported["status"] == "True"


def wait_registered(kubectl: Kubectl) -> None:
    kubectl.wait_for("the metrics API", API_SERVICE, is_available, timeout_s=TIMEOUT_S)


@pytest.fixture(scope="module", autouse=True)
def adapter(cluster: Cluster, kubectl: Kubectl) -> Iterator[None]:
    """The adapter, registered; after its removal nothing is left registered."""
    upgrade(cluster, "--set", "metricsAdapter.enabled=true", "--set", "metricsAdapter.hpaPeriodSeconds=5")
    wait_registered(kubectl)
    yield
    upgrade(cluster, "--set", "metricsAdapter.enabled=false")
    wait_until("nothing is registered", lambda: kubectl.get(*API_SERVICE) is None, timeout_s=TIMEOUT_S)


def value(resource: Object) -> float:
    """Waiting inputs of a pod, on average, as the status tells it."""
    quantity = resource["status"].get("autoscaling", {}).get("value", "0")
    return float(quantity.removesuffix("m")) / (1000 if quantity.endswith("m") else 1)


def test_a_service_grows_with_its_queue_and_shrinks_without_failing_a_request(scaled: Service) -> None:
    with asking(scaled) as trickle:
        with asking(scaled, threads=60, text=LONG_TEXT) as load:
            peak = value(scaled.wait_for("a queue", lambda resource: value(resource) > 16))
            scaled.wait_for("three pods", lambda resource: ready(resource) == 3)
            scaled.wait_for("a shorter queue", lambda resource: value(resource) < peak / 2)
        scaled.wait_for(
            "one pod", lambda resource: ready(resource) == 1 and resource["status"]["replicas"] == 1
        )
    assert load.failed == trickle.failed == []
    assert load.asked
    assert trickle.asked


def test_the_number_holds_while_the_adapter_dies_and_namespaces_can_be_deleted(
    kubectl: Kubectl, scaled: Service
) -> None:
    with asking(scaled, threads=60, text=LONG_TEXT) as load:
        scaled.wait_for("three pods", lambda resource: ready(resource) == 3)
        pods = kubectl.get("pods", "--namespace", OPERATOR_NAMESPACE, "--selector", SELECTOR)
        assert pods is not None
        name = pods["items"][0]["metadata"]["name"]
        kubectl("delete", "pod", name, "--namespace", OPERATOR_NAMESPACE, "--grace-period=0", "--force")
        kubectl.wait_for("the adapter", DEPLOYMENT, deployment_available, timeout_s=TIMEOUT_S)
        assert ready(scaled.get()) == 3
        kubectl("scale", *DEPLOYMENT, "--replicas=0")
        scaled.wait_condition("ScalingActive", "False", "MetricsUnavailable")
    try:
        # Without load now: whoever took silence for zero would shrink it.
        took = seconds_to_delete_a_namespace(kubectl)
        assert took < GRACE_S + 60
        assert kubectl.get(*API_SERVICE) is None, "withdrawn"
        assert ready(scaled.get()) == 3
        assert scaled.child("deployments")["spec"]["replicas"] == 3
    finally:
        kubectl("scale", *DEPLOYMENT, "--replicas=2")
    wait_registered(kubectl)
    scaled.wait_condition("ScalingActive", "True", "Scaling")
    scaled.wait_for("one pod", lambda resource: ready(resource) == 1)
    assert load.failed == []


def seconds_to_delete_a_namespace(kubectl: Kubectl) -> float:
    name = f"e2e-{secrets.token_hex(4)}"
    kubectl.apply(json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}))
    start = time.monotonic()
    kubectl("delete", "namespace", name, f"--timeout={TIMEOUT_S}s", timeout_s=TIMEOUT_S + 30)
    return time.monotonic() - start


def test_two_services_scale_apart(service: MakeService, scaled: Service) -> None:
    quiet = service("quiet")
    quiet.apply(scaled_spec(metric="inFlight", target=4))
    quiet.wait_serving()
    quiet.wait_condition("ScalingActive", "True", "Scaling")
    with asking(scaled, threads=60, text=LONG_TEXT) as load:
        scaled.wait_for("three pods", lambda resource: ready(resource) == 3)
        resource = quiet.get()
        assert resource["status"]["autoscaling"]["desiredReplicas"] == 1
        assert resource["status"]["autoscaling"]["value"] == "0"
    assert load.failed == []
    quiet.delete()


def test_somebody_elses_metrics_api_is_left_alone_and_named(kubectl: Kubectl, scaled: Service) -> None:
    foreign = somebody_elses_api()
    kubectl("create", "--filename", "-", stdin=json.dumps(foreign))
    try:
        wait_until("ours is gone", lambda: kubectl.get(*API_SERVICE) is None, timeout_s=TIMEOUT_S)
        reported = scaled.wait_condition("ScalingActive", "False", "MetricsUnavailable")
        assert "monitoring/prometheus-adapter" in reported["message"]
    finally:
        kubectl("delete", "apiservice", foreign["metadata"]["name"])
    wait_registered(kubectl)
    scaled.wait_condition("ScalingActive", "True", "Scaling")


def test_nobody_but_the_api_server_is_let_in(scaled: Service) -> None:
    output = scaled.client.run("python3", "-c", KNOCK, f"{ADAPTER}.{OPERATOR_NAMESPACE}.svc.cluster.local")
    assert any(end in output.lower().replace("_", " ") for end in ENDS), output


# In TLS 1.3 a client learns of it after its own handshake; the connection may be closed before the alert is read.
ENDS = ("certificate required", "closed without an answer")


KNOCK = """
import socket, ssl, sys
context = ssl._create_unverified_context()
try:
    with context.wrap_socket(socket.create_connection((sys.argv[1], 443))) as knocking:
        knocking.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
        answer = knocking.recv(100)
        print(f"let in: {answer}" if answer else "closed without an answer")
except ssl.SSLError as error:
    print(error)
"""
