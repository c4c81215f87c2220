"""A mutating webhook of the platform adds fields to everything that the operator makes: nothing is written twice."""

from __future__ import annotations

import base64
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from e2e.cluster.kubectl import Kubectl
from e2e.cluster.layout import NODE_ADDRESS, Layout
from e2e.cluster.lifecycle import Cluster
from e2e.cluster.polling import wait_until
from e2e.cluster.shell import attempt, in_node
from e2e.conftest import MakeService
from e2e.fault_proxy import Request
from e2e.outside import Operator, proxied_operator
from e2e.s3 import free_port
from e2e.server import Server
from e2e.services import TIMEOUT_S, Object, Service, hub_spec

NAME = "platform-defaults"
ADDED = "platform.example.com/owner"
ROUNDS = 5
_SERVE = """
import base64, http.server, json, ssl, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def do_POST(self):
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        made = review["request"]["object"]
        changes = []
        def add(path, value):
            changes.append({"op": "add", "path": path, "value": value})
        annotations = {**made["metadata"].get("annotations", {}), sys.argv[5]: "platform"}
        add("/metadata/annotations", annotations)
        pod = made["spec"].get("template", {}).get("spec") if made["kind"] == "Deployment" else None
        if pod is not None:
            for number, container in enumerate(pod["containers"]):
                others = [one for one in container.get("env", []) if one["name"] != "PLATFORM"]
                add(f"/spec/template/spec/containers/{number}/env", [*others, {"name": "PLATFORM", "value": "yes"}])
            tolerations = [one for one in pod.get("tolerations", []) if one.get("key") != "platform"]
            add("/spec/template/spec/tolerations", [*tolerations, {"key": "platform", "operator": "Exists"}])
        patch = base64.b64encode(json.dumps(changes).encode()).decode()
        answer = {"uid": review["request"]["uid"], "allowed": True, "patchType": "JSONPatch", "patch": patch}
        said = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)
server = http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler)
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
tls.load_cert_chain(sys.argv[3], sys.argv[4])
server.socket = tls.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""


class Webhook(Server):
    """Answers the API server on the node."""

    def __init__(self, layout: Layout, log: Path) -> None:
        super().__init__("the webhook", log)
        self._certificates = layout.certificates
        self._port = free_port()

    @property
    def url(self) -> str:
        return f"https://{NODE_ADDRESS}:{self._port}/"

    def command(self) -> Sequence[str]:
        pair = [str(self._certificates / name) for name in ("apiserver.crt", "apiserver.key")]
        return in_node([sys.executable, "-c", _SERVE, NODE_ADDRESS, str(self._port), *pair, ADDED])

    def answers(self) -> bool:
        authority = self._certificates / "ca.crt"
        return attempt(in_node(["curl", "-sf", "--cacert", authority, self.url])).returncode == 0

    def configuration(self, namespace: str) -> Object:
        """The registration for the operator's children in one namespace."""
        authority = base64.b64encode((self._certificates / "ca.crt").read_bytes()).decode()
        groups = {
            "apps": ["deployments"],
            "": ["services", "configmaps"],
            "networking.k8s.io": ["networkpolicies"],
            "autoscaling": ["horizontalpodautoscalers"],
        }
        rules = [
            {
                "apiGroups": [group],
                "apiVersions": ["*"],
                "operations": ["CREATE", "UPDATE"],
                "resources": resources,
            }
            for group, resources in groups.items()
        ]
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": NAME},
            "webhooks": [
                {
                    "name": f"{NAME}.example.com",
                    "admissionReviewVersions": ["v1"],
                    "sideEffects": "None",
                    "clientConfig": {"url": self.url, "caBundle": authority},
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                    "rules": rules,
                }
            ],
        }


@pytest.fixture(scope="module")
def webhook(
    cluster: Cluster, kubectl: Kubectl, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    with Webhook(cluster.layout, tmp_path_factory.mktemp("webhook") / "log") as server:
        kubectl.apply(json.dumps(server.configuration(namespace)))
        yield
        kubectl("delete", "mutatingwebhookconfiguration", NAME)


@pytest.fixture(scope="module")
def operator(
    cluster: Cluster,
    no_operator: None,
    webhook: None,
    namespace: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Operator]:
    folder = tmp_path_factory.mktemp("outside")
    with proxied_operator(cluster.layout, namespace, folder, restarts=False) as outside_operator:
        yield outside_operator


def spec(mark: int) -> Object:
    """A service without pods, with quantities that the API server spells in its own way."""
    return hub_spec(
        suspend=True,
        autoscaling={"minReplicas": 1, "maxReplicas": 2, "target": "1000m"},
        resources={"requests": {"cpu": "1000m", "memory": "1024Mi"}},
        service={"annotations": {"mark": str(mark)}},
    )


def has_mark(service: Service, mark: int) -> bool:
    annotations = service.child("services")["metadata"]["annotations"]
    return bool(annotations.get("mark") == str(mark) and annotations.get(ADDED) == "platform")


def is_write_of_child(request: Request) -> bool:
    return (
        request.is_write
        and not request.is_of_lease
        and "embeddingservices" not in request.path
        and not request.path.partition("?")[0].endswith("/events")
    )


def test_what_a_webhook_adds_is_kept_and_not_fought_over(operator: Operator, service: MakeService) -> None:
    mutated = service("mutated")
    mutated.apply(spec(0))
    mutated.wait_condition("Ready", "True", "Suspended")
    wait_until("the webhook was asked", lambda: has_mark(mutated, 0), timeout_s=TIMEOUT_S)
    began = len(operator.proxy.passed)
    for number in range(1, ROUNDS + 1):
        mutated.apply(spec(number))
        wait_until(f"the mark is {number}", lambda n=number: has_mark(mutated, n), timeout_s=TIMEOUT_S)  # type: ignore[misc]
    writes = Counter(
        request.path.partition("?")[0].split("/")[-2]
        for request in operator.proxy.passed[began:]
        if is_write_of_child(request)
    )
    print(f"\n{ROUNDS} changes of one annotation: {dict(writes)}")
    # A Deployment remembers the generation that it was made from.
    assert writes == {"services": ROUNDS, "deployments": ROUNDS}, "nothing is written again"
    pod = mutated.child("deployments")["spec"]["template"]["spec"]
    assert {"name": "PLATFORM", "value": "yes"} in pod["containers"][0]["env"]
    assert {"key": "platform", "operator": "Exists"} in pod["tolerations"]
