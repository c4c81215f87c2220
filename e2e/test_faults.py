"""The API server fails in one way after the other: no crash, no lost change, no storm. `pytest -s` prints figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from e2e.cluster.kubectl import Kubectl
from e2e.cluster.lifecycle import Cluster
from e2e.cluster.polling import wait_until
from e2e.conftest import MakeService
from e2e.fault_proxy import SLOW_S, Fault, FaultProxy, Request
from e2e.outside import Operator, proxied_operator
from e2e.services import TIMEOUT_S, Service, hub_spec

AWAY_S = 60
BYSTANDERS = 8
"""Services that nobody changes."""
QUIET_S = 5
"""The seconds without a write after which what follows a service's creation, its children seen and their state told,
has come to its end.
"""


@pytest.fixture(scope="module")
def operator(
    cluster: Cluster,
    no_operator: None,
    namespace: str,
    kubectl: Kubectl,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Operator]:
    folder = tmp_path_factory.mktemp("outside")
    with proxied_operator(cluster.layout, namespace, folder, restarts=True) as outside_operator:
        yield outside_operator
    crashes = [line for line in outside_operator.read_log().splitlines() if "/embedserve_operator/" in line]
    assert crashes == [], "no error of ours comes as far as a traceback"


@pytest.fixture
def changing(operator: Operator, service: MakeService) -> Iterator[Service]:
    """A service that is acted on, beside others."""
    embsvc = service("changing")
    bystanders = [service(f"bystander-{number}") for number in range(BYSTANDERS)]
    for started in (embsvc, *bystanders):
        started.apply(spec("before"))
        started.wait_condition("Ready", "True", "Suspended")
    wait_until(
        "nothing more is written",
        lambda: not writes(operator, time.monotonic() - QUIET_S),
        timeout_s=TIMEOUT_S,
    )
    operator.ends.clear()
    yield embsvc
    operator.proxy.fault = "None"


def spec(mark: str) -> dict[str, Any]:
    return hub_spec(suspend=True, service={"annotations": {"mark": mark}})


def wait_acted_on(service: Service, mark: str) -> None:
    def is_so() -> bool:
        received = service.kubectl.get("service", service.name, "--namespace", service.namespace)
        return received is not None and received["metadata"]["annotations"].get("mark") == mark

    wait_until(f"the mark is {mark}", is_so, timeout_s=TIMEOUT_S)


def writes(operator: Operator, since: float) -> list[str]:
    return [
        f"{request.method} {request.path} {request.status}{describe_event(request)}"
        for request in operator.proxy.passed
        if request.at > since and request.is_write and not request.is_of_lease
    ]


def describe_event(request: Request) -> str:
    """An event's path does not name the object that the event is about."""
    if not request.path.partition("?")[0].endswith("/events") or not isinstance(request.content, dict):
        return ""
    event = request.content
    return f" about {event['involvedObject']['name']}: {event['reason']}: {event['message']}"


def writes_about_others(operator: Operator, since: float) -> list[str]:
    return [write for write in writes(operator, since) if "changing" not in write]


@pytest.mark.parametrize("fault", ["Refusing", "Silent"])
def test_an_api_server_that_is_away_for_a_minute_costs_no_change(
    operator: Operator, changing: Service, fault: Fault
) -> None:
    proxy = operator.proxy
    began, came = time.monotonic(), proxy.came
    proxy.fault = fault
    if fault == "Refusing":
        proxy.cut_watches()
    changing.apply(spec(fault))
    wait_until("a minute has passed", lambda: time.monotonic() - began > AWAY_S, timeout_s=AWAY_S + 30)
    tried, back = proxy.came - came, time.monotonic()
    proxy.fault = "None"
    wait_acted_on(changing, fault)
    print(
        f"\n{fault} for {AWAY_S} s: {tried} requests meanwhile, the process ended {len(operator.ends)} times, "
        f"the change was acted on {time.monotonic() - back:.1f} s after the return"
    )
    assert [code for _, code in operator.ends] in ([], [1]), "at most one orderly end, as the Lease was lost"
    assert tried < 10 * AWAY_S
    assert writes_about_others(operator, began) == []


@pytest.mark.parametrize("fault", ["Throttling", "Failing", "Slow"])
def test_an_api_server_that_answers_badly_is_got_along_with(
    operator: Operator, changing: Service, fault: Fault
) -> None:
    proxy = operator.proxy
    began, came = time.monotonic(), proxy.came
    proxy.fault = fault
    changing.apply(spec(fault))
    wait_acted_on(changing, fault)
    print(f"\n{fault}: acted on after {time.monotonic() - began:.1f} s, {proxy.came - came} requests")
    assert writes_about_others(operator, began) == []
    proxy.fault = "None"
    changing.wait_condition("Ready", "True", "Suspended")


def test_a_leader_whose_api_server_takes_three_seconds_for_each_answer_stays_the_leader(
    operator: Operator, changing: Service
) -> None:
    began = time.monotonic()
    operator.proxy.fault = "Slow"
    for mark in ("slow-1", "slow-2"):
        changing.apply(spec(mark))
        wait_acted_on(changing, mark)
    wait_until("a minute has passed", lambda: time.monotonic() - began > AWAY_S, timeout_s=AWAY_S + 30)
    renewals = [
        request
        for request in operator.proxy.passed
        if request.at > began and request.is_of_lease and request.is_write
    ]
    print(f"\n{len(renewals)} renewals of the Lease within {AWAY_S} s, {SLOW_S} s an answer")
    assert operator.ends == []
    assert {request.status for request in renewals} == {200}


@pytest.mark.parametrize("ends", [FaultProxy.cut_watches, FaultProxy.tell_gone], ids=["cut", "410 Gone"])
def test_what_happens_while_no_watch_is_open_is_found(
    operator: Operator, changing: Service, kubectl: Kubectl, ends: Callable[[FaultProxy], None]
) -> None:
    """A change and a deletion, both while nothing is told."""
    proxy, name = operator.proxy, f"gap-{ends.__name__}"
    proxy.fault = "Refusing"
    ends(proxy)
    changing.apply(spec(name))
    kubectl("delete", "networkpolicy", "changing", "--namespace", changing.namespace)
    proxy.fault = "None"
    wait_acted_on(changing, name)
    wait_until(
        "the policy is there again", lambda: bool(changing.children("networkpolicies")), timeout_s=TIMEOUT_S
    )
    assert operator.ends == []


def test_after_a_watch_that_ends_with_another_error_a_new_process_goes_on(
    operator: Operator, changing: Service
) -> None:
    began = time.monotonic()
    operator.proxy.tell_error(500)
    operator.wait_ended()
    changing.apply(spec("error"))
    wait_acted_on(changing, "error")
    assert [code for _, code in operator.ends] == [1], "one orderly end"
    assert writes_about_others(operator, began) == []
