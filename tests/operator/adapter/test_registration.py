"""When the metrics API is registered, renewed and withdrawn."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest

from embedserve_operator.adapter.registration import (
    API_SERVICE,
    NoChange,
    Registration,
    RegistrationMemory,
    RegistrationState,
    Withdrawal,
    decide_registration,
    find_providers,
    read_bundle,
)
from embedserve_operator.kube.views.cluster import APIService
from embedserve_operator.settings import AdapterReference, RegistrationSettings

PLACE = AdapterReference("system", "embedserve-metrics-adapter")
SETTINGS = RegistrationSettings(PLACE, grace=30, retry_limit=100)
READY = RegistrationState(is_ready=True, bundle="PEM", owner_uid="owner", registered=None, foreign=())


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


def registered(**differences: Any) -> APIService:
    return APIService.parse(api_service(**differences))


def test_it_is_registered_once_a_replica_is_ready_and_goes_with_the_release() -> None:
    decision, _ = decide_registration(READY, RegistrationMemory(), SETTINGS, 0)
    assert isinstance(decision, Registration)
    assert read_bundle(APIService.parse(decision.manifest)) == "PEM"
    assert decision.manifest["metadata"]["ownerReferences"][0]["uid"] == "owner"
    assert decision.manifest["spec"]["service"] == {"namespace": "system", "name": PLACE.name, "port": 443}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        pytest.param(replace(READY, is_ready=False), "no replica", id="nobody is ready"),
        pytest.param(replace(READY, bundle=""), "no replica", id="no certificate is published"),
        pytest.param(replace(READY, owner_uid=""), "ClusterRole", id="nothing that it would go with"),
        pytest.param(
            replace(READY, foreign=("Service m/p",)), "served by Service m/p", id="it is somebody else's"
        ),
    ],
)
def test_otherwise_it_is_not_and_why_is_said(state: RegistrationState, words: str) -> None:
    decision, _ = decide_registration(state, RegistrationMemory(), SETTINGS, 0)
    assert isinstance(decision, NoChange)
    assert words in decision.reason


def test_what_works_is_left_alone_and_new_certificates_are_put_in() -> None:
    state = replace(READY, registered=registered())
    assert decide_registration(state, RegistrationMemory(), SETTINGS, 0) == (NoChange(), RegistrationMemory())
    renewed, _ = decide_registration(replace(state, bundle="PEM NEW"), RegistrationMemory(), SETTINGS, 0)
    assert isinstance(renewed, Registration)
    owned, _ = decide_registration(replace(state, owner_uid="another"), RegistrationMemory(), SETTINGS, 0)
    assert isinstance(owned, Registration)


def test_it_is_withdrawn_only_after_nobody_has_been_ready_for_the_time_of_grace() -> None:
    down = replace(READY, is_ready=False, registered=registered())
    decision, memory = decide_registration(down, RegistrationMemory(), SETTINGS, 100)
    assert isinstance(decision, NoChange)
    decision, memory = decide_registration(down, memory, SETTINGS, 129)
    assert isinstance(decision, NoChange)
    back, forgotten = decide_registration(replace(down, is_ready=True), memory, SETTINGS, 129.5)
    assert (back, forgotten) == (NoChange(), RegistrationMemory())
    decision, memory = decide_registration(down, memory, SETTINGS, 130)
    assert isinstance(decision, Withdrawal)
    again, _ = decide_registration(READY, memory, SETTINGS, 131)
    assert isinstance(again, Registration), "back as soon as one is ready"


def test_an_adapter_that_is_ready_but_cannot_be_reached_is_tried_again_ever_more_rarely() -> None:
    memory, now, pauses = RegistrationMemory(), 0.0, []
    unreachable = replace(READY, registered=registered(available="False"))
    for _ in range(4):
        _, memory = decide_registration(unreachable, memory, SETTINGS, now)
        now += 30
        decision, memory = decide_registration(unreachable, memory, SETTINGS, now)
        assert isinstance(decision, Withdrawal)
        assert "no route" in decision.reason
        waited = now
        while not isinstance(decision, Registration):
            decision, memory = decide_registration(READY, memory, SETTINGS, now)
            now += 1
        pauses.append(now - 1 - waited)
    assert pauses == [30, 60, 100, 100]


def test_ours_goes_at_once_when_somebody_else_registers_any_version() -> None:
    state = replace(READY, registered=registered(), foreign=("Service m/p",))
    assert decide_registration(state, RegistrationMemory(), SETTINGS, 0)[0] == Withdrawal(
        "custom.metrics.k8s.io is served by Service m/p"
    )


def test_others_are_told_from_us_by_where_their_api_service_leads() -> None:
    foreign = api_service(service=("monitoring", "prometheus-adapter"))
    foreign["metadata"]["name"] = "v1beta1.custom.metrics.k8s.io"
    unrelated = {"metadata": {"name": "v1beta1.metrics.k8s.io"}, "spec": {"group": "metrics.k8s.io"}}
    api_services = [api_service(), foreign, unrelated]
    want = ("Service monitoring/prometheus-adapter (APIService v1beta1.custom.metrics.k8s.io)",)
    assert find_providers(map(APIService.parse, api_services), PLACE) == want
    assert len(find_providers(map(APIService.parse, api_services), None)) == 2
