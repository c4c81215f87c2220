"""Wrong manifests: refused by the API server itself, with words that say what to do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.cluster.kubectl import Kubectl
from e2e.services import hub_spec
from tests.operator.bad_specs import BAD, GOOD, Bad

NAME = "metadata.name must have at most 45 characters, start with a letter"


def refuse(kubectl: Kubectl, name: str, spec: dict[str, Any]) -> str:
    """Return what the API server says to a manifest that it must refuse."""
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


@pytest.mark.parametrize("bad", BAD.values(), ids=list(BAD))
def test_a_wrong_spec_is_refused_with_words_that_help(kubectl: Kubectl, bad: Bad) -> None:
    assert bad.message in refuse(kubectl, "bad", bad.spec)


@pytest.mark.parametrize("name", ["a" * 46, "1-begins-with-a-digit", "has.a.dot"])
def test_a_name_that_children_could_not_carry_is_refused(kubectl: Kubectl, name: str) -> None:
    assert NAME in refuse(kubectl, name, hub_spec("a/b"))


@pytest.mark.parametrize("spec", GOOD.values(), ids=list(GOOD))
def test_a_right_spec_is_taken(kubectl: Kubectl, spec: dict[str, Any]) -> None:
    manifest = {
        "apiVersion": "embedserve.dev/v1alpha1",
        "kind": "EmbeddingService",
        "metadata": {"name": "a" * 45, "namespace": "default"},
        "spec": spec,
    }
    output = kubectl("apply", "--dry-run=server", "--filename", "-", stdin=json.dumps(manifest))
    assert "created (server dry run)" in output


def test_explain_tells_what_a_field_is_for(kubectl: Kubectl) -> None:
    output = " ".join(kubectl("explain", "embsvc.spec.model.source.huggingFace").split())
    assert "Commit, tag or branch. A commit keeps the vectors the same for ever" in output
    assert "Only the pods read it, the operator never does" in output
