"""A manifest that chooses the server gets no Secret sent there, unless the platform team allows the server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.operator.builders import SETTINGS, Cluster, hub_spec, resource

SECRET = {"name": "any-secret-of-the-namespace", "key": "password"}
SHA256 = "0123456789abcdef" * 4


def hub(endpoint: str | None = None, *, secret: bool = True, **more: Any) -> dict[str, Any]:
    source = {
        "repo": "a/b",
        **({} if endpoint is None else {"endpoint": endpoint}),
        **({"tokenSecretRef": SECRET} if secret else {}),
    }
    return {"model": {"source": {"huggingFace": source}}, **more}


def archive(url: str) -> dict[str, Any]:
    return {"model": {"source": {"http": {"url": url, "sha256": SHA256, "tokenSecretRef": SECRET}}}}


def bucket(endpoint: str | None) -> dict[str, Any]:
    source = {"uri": "s3://models/minilm", "secretRef": {"name": "keys"}}
    return {"model": {"source": {"s3": {**source, **({} if endpoint is None else {"endpoint": endpoint})}}}}


def environment(**variables: Any) -> dict[str, Any]:
    env = [
        {"name": name, **({"value": value} if isinstance(value, str) else {"valueFrom": value})}
        for name, value in variables.items()
    ]
    return hub_spec(pod={"env": env})


FROM_SECRET = {"secretKeyRef": SECRET}


def refusal(spec: dict[str, Any], *allowed: str) -> str | None:
    """Return what the operator says against a manifest."""
    settings = replace(SETTINGS, allowed_endpoints=allowed)
    cluster = Cluster(resource(spec), settings=settings)
    stalled = cluster.conditions().get("Stalled")
    if stalled is None:
        assert cluster.plan().children
        return None
    assert stalled.reason == "EndpointNotAllowed"
    assert cluster.plan().children == ()
    return stalled.message


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        pytest.param(
            hub("https://mine.example"), "huggingFace.endpoint: https://mine.example", id="a mirror"
        ),
        pytest.param(
            archive("https://mine.example/m.tar"), "http.url: https://mine.example", id="an archive"
        ),
        pytest.param(bucket("https://mine.example"), "s3.endpoint: https://mine.example", id="a bucket"),
        pytest.param(
            environment(HF_ENDPOINT="https://mine.example", HF_TOKEN=FROM_SECRET),
            "HF_ENDPOINT",
            id="variables",
        ),
        pytest.param(
            environment(AWS_ENDPOINT_URL_S3=FROM_SECRET),
            "AWS_ENDPOINT_URL_S3",
            id="a server that nobody sees",
        ),
    ],
)
def test_no_secret_goes_to_a_server_of_the_author_s_choice(spec: dict[str, Any], named: str) -> None:
    message = refusal(spec)
    assert message is not None
    assert named in message
    assert "allowedEndpoints" in message


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(hub(), id="the platform's hub"),
        pytest.param(hub("https://mine.example", secret=False), id="a mirror without a Secret"),
        pytest.param(bucket(None), id="AWS"),
        pytest.param(environment(HF_ENDPOINT="https://mine.example"), id="a variable without a Secret"),
        pytest.param(environment(HF_TOKEN=FROM_SECRET), id="a Secret for the platform's hub"),
    ],
)
def test_what_sends_no_secret_to_a_chosen_server_is_taken(spec: dict[str, Any]) -> None:
    assert refusal(spec) is None


@pytest.mark.parametrize(
    ("endpoint", "allowed", "is_taken"),
    [
        ("https://hub.example", "https://hub.example", True),
        ("https://hub.example/mirror", "https://hub.example", True),
        ("https://hub.example:443", "https://hub.example", True),
        ("https://hub.example", "*", True),
        ("https://a.hub.example", "https://*.hub.example", True),
        ("https://hub.example", "https://*.hub.example", False),
        ("https://evil-hub.example", "https://*.hub.example", False),
        ("http://hub.example", "https://hub.example", False),
        ("https://hub.example:8443", "https://hub.example", False),
        ("https://hub.example.evil.example", "https://hub.example", False),
        ("https://evil.example/https://hub.example", "https://hub.example", False),
    ],
)
def test_an_allowed_server_is_one_of_that_scheme_host_and_port(
    endpoint: str, allowed: str, is_taken: bool
) -> None:
    assert (refusal(hub(endpoint), "https://other.example", allowed) is None) is is_taken


def test_what_serves_goes_on_serving() -> None:
    serving = Cluster().applied().rolled_out().published()
    changed = replace(
        serving.changed(hub("https://mine.example")), settings=replace(SETTINGS, allowed_endpoints=())
    )
    assert changed.conditions()["Ready"].status == "True"
    assert changed.plan().prune == ()
