"""Another model under the same name: the old one serves until the new one does."""

from __future__ import annotations

import pytest

from e2e.cluster.polling import wait_until
from e2e.conftest import MakeService
from e2e.services import PATIENCE_S, Service, hub_spec

MEAN = hub_spec(servedModelName="change")
CLS = hub_spec(servedModelName="change", model={"pooling": "cls"})
BROKEN = hub_spec("acme/missing", servedModelName="change")
TEXT = "The same words, another space."


@pytest.fixture
def change(service: MakeService) -> Service:
    """The service of this module, with the model's own pooling."""
    found = service("change")
    found.apply(MEAN)
    found.wait_serving()
    return found


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
    wait_until(
        "the attempt is cleared away", lambda: len(change.children("deployments")) == 1, timeout_s=PATIENCE_S
    )


def test_a_new_vector_space_takes_over_in_one_piece(change: Service) -> None:
    before = change.get()["status"]["vectorSpace"]["id"]
    (old,) = change.embed(TEXT)
    change.apply(CLS)
    status = change.wait_serving()["status"]
    assert status["vectorSpace"]["id"] != before
    (new,) = change.embed(TEXT)
    assert new != pytest.approx(old, abs=1e-2)
    wait_until(
        "the old Deployment is gone", lambda: len(change.children("deployments")) == 1, timeout_s=PATIENCE_S
    )
    change.apply(MEAN)
    assert change.wait_serving()["status"]["vectorSpace"]["id"] == before, "the same model, the same space"
    assert change.embed(TEXT)[0] == pytest.approx(old, abs=1e-5)
