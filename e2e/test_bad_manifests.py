"""Wrong manifests: refused by the API server itself, with words that say what to do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.cluster.kubectl import Kubectl
from e2e.services import hub_spec

SOURCE = {"huggingFace": {"repo": "a/b"}}
VOLUME = {"volume": {"claimName": "models"}}
ONE_SOURCE = "give exactly one source: one of huggingFace, volume and image"
REPO = "repo must be OWNER/NAME as on the Hub, for example sentence-transformers/all-MiniLM-L6-v2"
NAME = "metadata.name must have at most 45 characters, start with a letter"
QUANTITY = "must be a Kubernetes quantity of zero or more, such as 500m, 2 or 4Gi"


def hub(**fields: Any) -> dict[str, Any]:
    return {"model": {"source": {"huggingFace": {"repo": "a/b", **fields}}}}


def volume(**fields: Any) -> dict[str, Any]:
    return {"model": {"source": {"volume": {"claimName": "models", **fields}}}}


def limits(**fields: Any) -> dict[str, Any]:
    return hub_spec("a/b", resources={"limits": fields})


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no source": ({"model": {"source": {}}}, ONE_SOURCE),
    "two sources": ({"model": {"source": {**SOURCE, **VOLUME}}}, ONE_SOURCE),
    "no model": ({}, "spec.model: Required value"),
    "no repo": ({"model": {"source": {"huggingFace": {}}}}, "huggingFace.repo: Required value"),
    "a URL as repo": (hub(repo="https://hub.example/a/b"), REPO),
    "a repo without owner": (hub(repo="minilm"), REPO),
    "a revision with a space": (hub(revision="my branch"), "revision must be a commit, a tag or a branch"),
    "a token by value": (hub(token="hf_x"), 'unknown field "spec.model.source.huggingFace.token"'),
    "a secret without key": (hub(tokenSecretRef={"name": "s"}), "tokenSecretRef.key: Required value"),
    "a secret's name with capitals": (
        hub(tokenSecretRef={"name": "Secret", "key": "k"}),
        "must be the name of an object in the same namespace",
    ),
    "an absolute path": (volume(path="/etc"), "path must be relative to the volume's root"),
    "a path that leaves the volume": (volume(path="a/../../b"), "must not contain '..'"),
    "a negative budget": (
        hub_spec("a/b", batching={"maxBatchTokens": -1}),
        "must be between 1 and 10000000; leave it out to let the runtime measure the best value",
    ),
    "a budget of zero": (hub_spec("a/b", batching={"maxBatchTokens": 0}), "leave it out to let the runtime"),
    "a queue of zero": (hub_spec("a/b", batching={"maxQueueInputs": 0}), "must be between 1 and"),
    "a timeout of a day": (
        hub_spec("a/b", batching={"requestTimeoutSeconds": 86400}),
        "must be between 1 and 3600",
    ),
    "a budget in words": (hub_spec("a/b", batching={"maxBatchTokens": "many"}), "must be of type integer"),
    "an unknown pooling": (hub_spec("a/b", model={"pooling": "median"}), 'supported values: "auto", "cls"'),
    "no dimensions": (hub_spec("a/b", model={"dimensions": 0}), "leave it out to keep all dimensions"),
    "no length": (hub_spec("a/b", model={"maxLength": -8}), "leave it out to take the model's own limit"),
    "a class in capitals": (hub_spec("a/b", hardware={"class": "GPU"}), "must start with a letter"),
    "a negative number of replicas": (hub_spec("a/b", replicas=-1), "must be between 0 and 1000"),
    "a misspelt field": (hub_spec("a/b", batchin={}), 'unknown field "spec.batchin"'),
    "a field in the wrong place": (hub_spec("a/b", pooling="cls"), 'unknown field "spec.pooling"'),
    "a negative limit": (limits(cpu=-1), QUANTITY),
    "a negative quantity": (limits(memory="-4Gi"), QUANTITY),
    "a limit in words": (limits(memory="lots"), QUANTITY),
    "an empty served name": (hub_spec("a/b", servedModelName=""), "should be at least 1 chars long"),
}


def refuse(kubectl: Kubectl, name: str, spec: dict[str, Any]) -> str:
    """What the API server says to a manifest that it must refuse."""
    manifest = {
        "apiVersion": "embedserve.dev/v1alpha1",
        "kind": "EmbeddingService",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }
    # The plain way of a user: kubectl apply, which asks for strict validation of fields.
    with pytest.raises(Exception, match="exit code 1") as caught:
        kubectl("apply", "--dry-run=server", "--filename", "-", stdin=json.dumps(manifest))
    return str(caught.value)


@pytest.mark.parametrize(("spec", "want"), BAD.values(), ids=list(BAD))
def test_a_wrong_spec_is_refused_with_words_that_help(
    kubectl: Kubectl, spec: dict[str, Any], want: str
) -> None:
    assert want in refuse(kubectl, "bad", spec)


@pytest.mark.parametrize("name", ["a" * 46, "1-begins-with-a-digit", "has.a.dot"])
def test_a_name_that_children_could_not_carry_is_refused(kubectl: Kubectl, name: str) -> None:
    assert NAME in refuse(kubectl, name, hub_spec("a/b"))


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(hub_spec("a/b"), id="the least"),
        pytest.param(volume(path="encoders/minilm"), id="a volume"),
        pytest.param(limits(cpu=2, memory="4Gi"), id="limits"),
        pytest.param(hub_spec("a/b", replicas=0), id="no replicas"),
    ],
)
def test_a_right_spec_is_taken(kubectl: Kubectl, spec: dict[str, Any]) -> None:
    manifest = {
        "apiVersion": "embedserve.dev/v1alpha1",
        "kind": "EmbeddingService",
        "metadata": {"name": "a" * 45, "namespace": "default"},
        "spec": spec,
    }
    said = kubectl("apply", "--dry-run=server", "--filename", "-", stdin=json.dumps(manifest))
    assert "created (server dry run)" in said


def test_explain_tells_what_a_field_is_for(kubectl: Kubectl) -> None:
    said = " ".join(kubectl("explain", "embsvc.spec.model.source.huggingFace").split())
    assert "Commit, tag or branch. A commit keeps the vectors the same for ever" in said
    assert "Only the pods read it, the operator never does" in said
