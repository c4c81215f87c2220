"""Another model under the same name: broken, held back, refused. What clients see of one: test_gitops."""

from __future__ import annotations

import pytest

from e2e.cluster.polling import wait_until
from e2e.conftest import MakeService
from e2e.services import TIMEOUT_S, Service, condition, hub_spec
from e2e.spaces import vector_at

MEAN = hub_spec(servedModelName="change", replicas=2)
CLS = hub_spec(servedModelName="change", replicas=2, model={"pooling": "cls"})
BROKEN = hub_spec("acme/missing", servedModelName="change", replicas=2)
TEXT = "The same words, another space."


@pytest.fixture
def change(service: MakeService) -> Service:
    """The service of this module, with the model's own pooling."""
    embsvc = service("change")
    embsvc.apply(MEAN)
    embsvc.wait_serving()
    embsvc.embed("the way is open")
    return embsvc


def space_of(service: Service) -> str:
    return str(service.get()["status"]["vectorSpace"]["id"])


def _by_name(service: Service) -> str:
    return vector_at(service, service.get()["status"]["endpoint"]["url"], TEXT)[0]


def test_a_broken_new_model_takes_nothing_away(change: Service) -> None:
    before = change.get()["status"]
    (vector,) = change.embed(TEXT)
    change.apply(BROKEN)
    stalled = change.wait_condition("Stalled", "True", "ModelNotFound")
    assert "acme/missing" in stalled["message"]
    ready = change.wait_condition("Ready", "True", "PreviousRevisionServing")
    assert "acme/missing" in ready["message"]
    after = change.get()["status"]
    assert (after["vectorSpace"], after["model"]) == (before["vectorSpace"], before["model"])
    assert change.embed(TEXT)[0] == pytest.approx(vector, abs=1e-5)
    change.apply(MEAN)
    change.wait_serving()
    # The other space of the test before may be kept, the attempt is not.
    kept_revisions = {previous["revision"] for previous in before["vectorSpace"]["previous"]} | {
        before["vectorSpace"]["revision"]
    }
    wait_until(
        "the attempt is cleared away", lambda: _revisions(change) <= kept_revisions, timeout_s=TIMEOUT_S
    )


def _revisions(service: Service) -> set[str]:
    return {
        child["metadata"]["labels"]["embedserve.dev/revision"] for child in service.children("deployments")
    }


def test_a_held_space_is_reachable_at_its_own_name_only_and_takes_over_when_it_is_let_go(
    change: Service,
) -> None:
    old = space_of(change)
    held_spec = {**CLS, "rollout": {"hold": True}}
    change.apply(held_spec)
    resource = change.wait_for(
        "the new space is held",
        lambda resource: (c := condition(resource, "Ready")) is not None and c["reason"] == "Held",
    )
    rollout = resource["status"]["rollout"]
    assert vector_at(change, rollout["url"], TEXT)[0] == rollout["vectorSpace"] != old
    assert _by_name(change) == old
    change.apply({**CLS, "rollout": {"hold": False, "keepPrevious": "0s"}})
    assert change.wait_serving()["status"]["vectorSpace"]["id"] == rollout["vectorSpace"]
    wait_until("nothing is kept", lambda: len(change.children("deployments")) == 1, timeout_s=TIMEOUT_S)


def test_a_held_space_does_not_take_the_name_of_a_service_that_is_suspended_and_resumed(
    change: Service,
) -> None:
    old = space_of(change)
    held_spec = {**CLS, "rollout": {"hold": True}}
    change.apply(held_spec)
    change.wait_condition("Ready", "True", "Held")
    change.apply({**held_spec, "suspend": True})
    change.wait_condition("Ready", "True", "Suspended")
    wait_until("no pod runs any more", lambda: not change.children("pods"), timeout_s=TIMEOUT_S)
    change.apply({**held_spec, "replicas": 1})
    change.wait_condition("Ready", "True", "Held")
    assert _by_name(change) == old
    wait_until(
        "both have the number of pods that was asked for last",
        lambda: [child["status"].get("readyReplicas") for child in change.children("deployments")] == [1, 1],
        timeout_s=TIMEOUT_S,
    )


def test_a_lost_status_takes_away_nothing_that_is_kept(change: Service) -> None:
    change.apply(CLS)
    change.wait_serving()
    before = _revisions(change)
    assert len(before) == 2, "the space of before is kept"
    words = ("patch", "embeddingservice", change.name, "--namespace", change.namespace)
    change.kubectl(
        *words, "--subresource=status", "--type=merge", "--patch", '{"status": {"vectorSpace": null}}'
    )
    change.wait_for(
        "the status tells of what is kept again",
        lambda resource: bool((resource["status"].get("vectorSpace") or {}).get("previous")),
    )
    assert _revisions(change) == before


def test_a_change_of_the_vectors_is_refused_where_that_is_asked_for(change: Service) -> None:
    old = space_of(change)
    change.apply({**CLS, "rollout": {"onNewVectorSpace": "Refuse"}})
    stalled = change.wait_condition("Stalled", "True", "VectorSpaceChange")
    assert old in stalled["message"]
    assert _by_name(change) == old
