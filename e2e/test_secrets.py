"""A marked value in every field that bears a secret: it stays in its Secret, whatever the value and whatever fails."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.cluster.kubectl import Kubectl
from e2e.cluster.lifecycle import Cluster
from e2e.cluster.polling import wait_until
from e2e.demo.partners import ClientPod, hub_token
from e2e.demo.release import OPERATOR_NAMESPACE
from e2e.hub import samples
from e2e.services import TIMEOUT_S, Object, Service, condition, hub_spec

MARK = "marked5ecret"
TWO_LINES = f"{MARK}-first\n{MARK}-second\n"
NOWHERE = "127.0.0.1:9"
POD_LOGS = Path("/var/log/pods")


def secret(name: str, key: str) -> Object:
    return {"name": name, "key": key}


def variable(name: str, key: str) -> Object:
    return {"name": name, "valueFrom": {"secretKeyRef": secret("two-lines", key)}}


def archive(key: str) -> Object:
    http = {
        "url": f"https://{NOWHERE}/model.tar",
        "sha256": "0" * 64,
        "tokenSecretRef": secret("two-lines", key),
    }
    return {"model": {"source": {"http": http}}}


def bucket(name: str) -> Object:
    s3 = {"uri": "s3://models/team", "endpoint": f"http://{NOWHERE}", "secretRef": {"name": name}}
    return {"model": {"source": {"s3": s3}}}


OWN_CLAIM: Object = {"cache": {"volume": {"size": "1Gi", "whenDeleted": "Delete"}}}
SECRETS: dict[str, dict[str, str]] = {
    "two-lines": {
        "token": TWO_LINES,
        "headers": f"authorization={TWO_LINES}",
        "proxy": f"http://u:{MARK}@proxy:1",
    },
    "keys": {"AWS_ACCESS_KEY_ID": f"{MARK}-id", "AWS_SECRET_ACCESS_KEY": f"{MARK}-key\n"},
    "two-line-id": {"AWS_ACCESS_KEY_ID": TWO_LINES, "AWS_SECRET_ACCESS_KEY": f"{MARK}-key"},
    "two-line-key": {"AWS_ACCESS_KEY_ID": f"{MARK}-id", "AWS_SECRET_ACCESS_KEY": TWO_LINES},
    "two-line-session": {
        "AWS_ACCESS_KEY_ID": f"{MARK}-id",
        "AWS_SECRET_ACCESS_KEY": f"{MARK}-key",
        "AWS_SESSION_TOKEN": TWO_LINES,
    },
}


@dataclass(frozen=True)
class Refused:
    """A service whose Secret has a value that no header can carry. variable: what the condition must name; `it` for a
    file."""

    spec: Object
    variable: str
    secret: str = "two-lines"
    key: str = "token"


REFUSED = {
    "hub": Refused(
        hub_spec(samples.GATED, hub={"tokenSecretRef": secret("two-lines", "token")}),
        "EMBEDSERVE_MODEL__TOKEN",
    ),
    "hub-cached": Refused(
        hub_spec(samples.GATED, hub={"tokenSecretRef": secret("two-lines", "token")}, **OWN_CLAIM),
        "EMBEDSERVE_MODEL__TOKEN",
    ),
    "archive": Refused(archive("token"), "EMBEDSERVE_MODEL__TOKEN"),
    "s3-id": Refused(bucket("two-line-id"), "AWS_ACCESS_KEY_ID", "two-line-id", "AWS_ACCESS_KEY_ID"),
    "s3-key": Refused(
        {**bucket("two-line-key"), **OWN_CLAIM},
        "AWS_SECRET_ACCESS_KEY",
        "two-line-key",
        "AWS_SECRET_ACCESS_KEY",
    ),
    "s3-session": Refused(
        bucket("two-line-session"), "AWS_SESSION_TOKEN", "two-line-session", "AWS_SESSION_TOKEN"
    ),
    "api-key": Refused(
        # Keys are separated by blanks, so that a line break is none in one: a control character is.
        hub_spec(auth={"secretRef": secret("control", "keys")}),
        "it",
        "control",
        "keys",
    ),
}


@pytest.fixture(scope="module")
def secrets(kubectl: Kubectl, namespace: str) -> None:
    token = hub_token(kubectl)
    content = {
        **SECRETS,
        "control": {"keys": f"{MARK}-good,{MARK}-\x07bad"},
        "with-newline": {"token": f"{token}\n", "keys": f"{MARK}-api\r\n"},
    }
    for name, data in content.items():
        metadata = {"name": name, "namespace": namespace}
        manifest = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data}
        kubectl.apply(json.dumps(manifest))


@pytest.fixture(scope="module")
def refused(kubectl: Kubectl, client: ClientPod, namespace: str, secrets: None) -> dict[str, Service]:
    services = {name: Service(kubectl, client, namespace, name) for name in REFUSED}
    for name, service in services.items():
        service.apply(REFUSED[name].spec)
    return services


@pytest.fixture(scope="module")
def broken(kubectl: Kubectl, client: ClientPod, namespace: str, secrets: None) -> Sequence[Service]:
    """Well-formed secrets whose servers cannot be had, and variables that libraries read."""
    specs = {
        "unreachable": {**bucket("keys")},
        "unreachable-archive": {
            "model": {
                "source": {
                    "http": {
                        "url": f"http://{NOWHERE}/model.tar",
                        "sha256": "0" * 64,
                        "tokenSecretRef": secret("keys", "AWS_ACCESS_KEY_ID"),
                    }
                }
            }
        },
        "variables": hub_spec(
            pod={
                "env": [
                    variable("OTEL_EXPORTER_OTLP_HEADERS", "headers"),
                    variable("HF_TOKEN", "token"),
                    variable("HTTPS_PROXY", "proxy"),
                    {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": f"http://{NOWHERE}"},
                ]
            }
        ),
    }
    services = [Service(kubectl, client, namespace, name) for name in specs]
    for service in services:
        service.apply(specs[service.name])
    return services


@pytest.mark.parametrize("name", REFUSED)
def test_a_value_that_no_header_can_carry_is_refused_with_secret_and_key(
    refused: dict[str, Service], name: str
) -> None:
    case = REFUSED[name]
    message = refused[name].wait_condition("Stalled", "True", "ConfigInvalid")["message"]
    assert f"{case.variable} is key {case.key} of Secret {case.secret}" in message
    assert "cannot be sent in an HTTP header" in message


@pytest.mark.parametrize("name", [name for name, case in REFUSED.items() if "cache" in case.spec])
def test_a_job_is_not_tried_again_with_it(refused: dict[str, Service], name: str) -> None:
    refused[name].wait_condition("Stalled", "True", "ConfigInvalid")
    (job,) = refused[name].children("jobs")
    wait_until(
        "the Job is given up",
        lambda: condition(refused[name].child("jobs"), "Failed") is not None,
        timeout_s=TIMEOUT_S,
    )
    assert refused[name].child_named("job", job["metadata"]["name"])["status"]["failed"] == 1


def test_white_space_at_the_end_of_a_secret_does_no_harm(
    kubectl: Kubectl, client: ClientPod, namespace: str, secrets: None
) -> None:
    service = Service(kubectl, client, namespace, "newline")
    service.apply(hub_spec(samples.GATED, hub={"tokenSecretRef": secret("with-newline", "token")}))
    service.wait_serving()
    assert len(service.embed("a token with a newline")) == 1


def test_nothing_that_the_cluster_keeps_has_a_secret(
    cluster: Cluster, kubectl: Kubectl, namespace: str, refused: dict[str, Service], broken: Sequence[Service]
) -> None:
    for service in refused.values():
        service.wait_condition("Stalled", "True", "ConfigInvalid")
    for service in broken:
        if service.name == "variables":
            service.wait_serving()
        else:
            service.wait_condition("Ready", "False", "SourceUnavailable")
    kinds = kubectl("api-resources", "--verbs=list", "--namespaced", "--output=name").split()
    contents = {
        kind: kubectl("get", kind, "--all-namespaces", "--output=json") for kind in kinds if kind != "secrets"
    }
    assert "EMBEDSERVE_MODEL__TOKEN is key token" in contents["events.events.k8s.io"]
    ours = (namespace, OPERATOR_NAMESPACE)
    logs = [file for file in POD_LOGS.rglob("*.log*") if file.parts[4].startswith(ours)]
    assert any("fetch" in file.parts for file in logs), "the kubelet's logs of every run of every container"
    contents.update({str(file): file.read_text() for file in logs})
    assert not [where for where, content in contents.items() if MARK in content]
