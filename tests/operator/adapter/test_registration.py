"""When the metrics API is registered, renewed and withdrawn."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest

from embedserve_operator.adapter.registration import (
    API_SERVICE,
    Keep,
    Memory,
    Register,
    Situation,
    Withdraw,
    bundle_in,
    decide,
    providers,
)
from embedserve_operator.settings import AdapterPlace, RegistrationSettings

PLACE = AdapterPlace("system", "embedserve-metrics-adapter")
SETTINGS = RegistrationSettings(PLACE, grace=30, retry_limit=100)
READY = Situation(ready=True, bundle="PEM", owner_uid="owner", registered=None, foreign=())


def api_service(
    *,
    bundle: str = "PEM",
    available: str = "True",
    service: tuple[str, str] = ("system", PLACE.name),
    **meta: Any,
) -> dict[str, Any]:
    return {
        "metadata": {"name": API_SERVICE, "uid": "u", "ownerReferences": [{"uid": "owner"}], **meta},
        "spec": {
            "group": "custom.metrics.k8s.io",
            "version": "v1beta2",
            "service": {"namespace": service[0], "name": service[1]},
            "caBundle": base64.b64encode(bundle.encode()).decode(),
        },
        "status": {"conditions": [{"type": "Available", "status": available, "message": "no route"}]},
    }


def test_it_is_registered_once_a_replica_is_ready_and_goes_with_the_release() -> None:
    decision, _ = decide(READY, Memory(), SETTINGS, 0)
    assert isinstance(decision, Register)
    assert bundle_in(decision.manifest) == "PEM"
    assert decision.manifest["metadata"]["ownerReferences"][0]["uid"] == "owner"
    assert decision.manifest["spec"]["service"] == {"namespace": "system", "name": PLACE.name, "port": 443}


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        pytest.param(replace(READY, ready=False), "no replica", id="nobody is ready"),
        pytest.param(replace(READY, bundle=""), "no replica", id="no certificate is published"),
        pytest.param(replace(READY, owner_uid=""), "ClusterRole", id="nothing that it would go with"),
        pytest.param(
            replace(READY, foreign=("Service m/p",)), "served by Service m/p", id="it is somebody else's"
        ),
    ],
)
def test_otherwise_it_is_not_and_why_is_said(seen: Situation, words: str) -> None:
    decision, _ = decide(seen, Memory(), SETTINGS, 0)
    assert isinstance(decision, Keep)
    assert words in decision.words


def test_what_works_is_left_alone_and_new_certificates_are_put_in() -> None:
    seen = replace(READY, registered=api_service())
    assert decide(seen, Memory(), SETTINGS, 0) == (Keep(), Memory())
    renewed, _ = decide(replace(seen, bundle="PEM NEW"), Memory(), SETTINGS, 0)
    assert isinstance(renewed, Register)
    owned, _ = decide(replace(seen, owner_uid="another"), Memory(), SETTINGS, 0)
    assert isinstance(owned, Register)


def test_it_is_withdrawn_only_after_nobody_has_been_ready_for_the_time_of_grace() -> None:
    down = replace(READY, ready=False, registered=api_service())
    decision, memory = decide(down, Memory(), SETTINGS, 100)
    assert isinstance(decision, Keep)
    decision, memory = decide(down, memory, SETTINGS, 129)
    assert isinstance(decision, Keep)
    back, forgotten = decide(replace(down, ready=True), memory, SETTINGS, 129.5)
    assert (back, forgotten) == (Keep(), Memory())
    decision, memory = decide(down, memory, SETTINGS, 130)
    assert isinstance(decision, Withdraw)
    again, _ = decide(READY, memory, SETTINGS, 131)
    assert isinstance(again, Register), "back as soon as one is ready"


def test_an_adapter_that_is_ready_but_cannot_be_reached_is_tried_again_ever_more_rarely() -> None:
    memory, now, pauses = Memory(), 0.0, []
    unreachable = replace(READY, registered=api_service(available="False"))
    for _ in range(4):
        _, memory = decide(unreachable, memory, SETTINGS, now)
        now += 30
        decision, memory = decide(unreachable, memory, SETTINGS, now)
        assert isinstance(decision, Withdraw)
        assert "no route" in decision.words
        waited = now
        while not isinstance(decision, Register):
            decision, memory = decide(READY, memory, SETTINGS, now)
            now += 1
        pauses.append(now - 1 - waited)
    assert pauses == [30, 60, 100, 100]


def test_ours_goes_at_once_when_somebody_else_registers_any_version() -> None:
    seen = replace(READY, registered=api_service(), foreign=("Service m/p",))
    assert decide(seen, Memory(), SETTINGS, 0)[0] == Withdraw(
        "custom.metrics.k8s.io is served by Service m/p"
    )


def test_others_are_told_from_us_by_where_their_api_service_leads() -> None:
    other = api_service(service=("monitoring", "prometheus-adapter"))
    other["metadata"]["name"] = "v1beta1.custom.metrics.k8s.io"
    unrelated = {"metadata": {"name": "v1beta1.metrics.k8s.io"}, "spec": {"group": "metrics.k8s.io"}}
    found = [api_service(), other, unrelated]
    want = ("Service monitoring/prometheus-adapter (APIService v1beta1.custom.metrics.k8s.io)",)
    assert providers(found, PLACE) == want
    assert len(providers(found, None)) == 2
