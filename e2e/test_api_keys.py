"""API keys that change in their Secret: every pod takes the new one and refuses the old one, and none restarts."""

from __future__ import annotations

import json

from e2e.calls import Call, send
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.polling import wait_until
from e2e.conftest import MakeService
from e2e.services import TIMEOUT_S, Object, Service, hub_spec

TEXT = json.dumps({"inputs": "with a key"}).encode()


def write_key(kubectl: Kubectl, namespace: str, value: str) -> None:
    metadata = {"name": "keys", "namespace": namespace}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"api": value}}
    kubectl.apply(json.dumps(secret))


def ask(service: Service, pod: Object, key: str) -> int:
    """The status of the answer of one pod."""
    url = f"http://{pod['status']['podIP']}:8080/embed"
    status, _ = send(service.client, Call("POST", url, TEXT, {"Authorization": f"Bearer {key}"}))
    return status


def test_a_key_that_is_changed_in_its_secret_counts_in_every_pod(
    kubectl: Kubectl, namespace: str, service: MakeService
) -> None:
    embsvc = service("locked")
    write_key(kubectl, namespace, "old-key\n")
    embsvc.apply(hub_spec(replicas=2, auth={"secretRef": {"name": "keys", "key": "api"}}))
    embsvc.wait_serving()
    pods = embsvc.pods()
    assert [(ask(embsvc, pod, "old-key"), ask(embsvc, pod, "new-key")) for pod in pods] == 2 * [(200, 401)]
    write_key(kubectl, namespace, "new-key")
    # The kubelet writes a mounted Secret anew within a minute or so; pods read it again within seconds.
    wait_until(
        "all pods have the new key",
        lambda: (
            [(ask(embsvc, pod, "old-key"), ask(embsvc, pod, "new-key")) for pod in pods] == 2 * [(401, 200)]
        ),
        timeout_s=TIMEOUT_S,
    )
    assert {pod["metadata"]["uid"] for pod in embsvc.pods()} == {pod["metadata"]["uid"] for pod in pods}
    assert all(
        status["restartCount"] == 0 for pod in embsvc.pods() for status in pod["status"]["containerStatuses"]
    )
    embsvc.delete()
