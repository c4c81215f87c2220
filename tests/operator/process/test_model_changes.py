"""Changes of the model from beginning to end, by the operator's own code over HTTP: it may die after any write, and
the API server may refuse any; whoever asks by the service's name gets vectors of one space, and always some."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embedserve_operator.api.times import format_moment
from embedserve_operator.kube.kinds import RESOURCE
from tests.operator.builders import NOW, hub_spec
from tests.operator.simulation import BROKEN, KEY, Killed, Operator, Simulation, simulated, space_named

A, B, C = ("acme/a", "acme/b", "acme/c")
MIRROR = "acme/a-mirror"
SPACE = {repo: space_named(repo) for repo in (A, B, C, MIRROR)}
DAY = 24 * 3600


def spec(repo: str, rollout: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return hub_spec(repo, replicas=2, rollout=rollout or {}, **more)


@pytest.fixture
async def running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Simulation, Operator]]:
    async with simulated(tmp_path, monkeypatch) as pair:
        yield pair


async def through(running: tuple[Simulation, Operator], *specs: dict[str, Any]) -> Simulation:
    """After the user applied one manifest after the other, each when the one before was served."""
    simulation, operator = running
    for spec_of_step in specs:
        simulation.user_applies(spec_of_step)
        await operator.run()
    return simulation


def deployments(simulation: Simulation) -> int:
    return len(simulation.of_kind("Deployment"))


def services(simulation: Simulation) -> set[str]:
    return {service["metadata"]["name"] for service in simulation.of_kind("Service")}


def own_name(repo: str) -> str:
    return f"docs-{SPACE[repo].removeprefix('vs2-')[:8]}"


def status_of(simulation: Simulation) -> dict[str, Any]:
    status: dict[str, Any] = simulation.objects[RESOURCE, "docs"]["status"]
    return status


def types(simulation: Simulation) -> set[str]:
    return {condition["type"] for condition in status_of(simulation)["conditions"]}


RunningOperator = tuple[Simulation, Operator]


async def test_a_first_model_is_served_at_the_name_of_its_space_too(running: RunningOperator) -> None:
    simulation = await through(running, spec(A))
    assert simulation.answers() == {SPACE[A]}
    assert services(simulation) == {"docs", own_name(A)}
    space = status_of(simulation)["vectorSpace"]
    assert (space["id"], space["since"], space["dimensions"]) == (SPACE[A], format_moment(NOW), 384)
    assert space["url"] == f"http://{own_name(A)}.search.svc"
    assert {
        pod["metadata"]["labels"]["embedserve.dev/vector-space"] for pod in simulation.of_kind("Pod")
    } == {SPACE[A]}


async def test_a_new_model_takes_the_name_and_the_old_one_stays_at_its_own_for_a_day(
    running: RunningOperator,
) -> None:
    simulation = await through(running, spec(A), spec(B))
    assert simulation.answers() == {SPACE[B]}
    assert services(simulation) == {"docs", own_name(A), own_name(B)}
    assert {simulation.find_answered_space(pod) for pod in simulation.selected(own_name(A))} == {SPACE[B]}, (
        "old pods pass on what still comes by the name"
    )
    (previous,) = status_of(simulation)["vectorSpace"]["previous"]
    assert (previous["id"], previous["replacedAt"]) == (SPACE[A], format_moment(NOW))
    assert previous["keptUntil"] == format_moment(NOW + DAY)
    assert types(simulation) == {"Ready"}
    simulation.now += DAY
    await through(running)
    await running[1].run()
    assert deployments(simulation) == 1
    assert services(simulation) == {"docs", own_name(B)}
    (previous,) = status_of(simulation)["vectorSpace"]["previous"]
    assert previous["id"] == SPACE[A], "the history outlives the pods"
    assert "keptUntil" not in previous


async def test_the_way_back_is_one_write_of_the_service(running: RunningOperator) -> None:
    simulation = await through(running, spec(A), spec(B))
    pods = {pod["metadata"]["uid"] for pod in simulation.of_kind("Pod")}
    simulation.user_applies(spec(A))
    await running[1].run(settles=False)
    assert simulation.answers() == {SPACE[A]}
    assert {pod["metadata"]["uid"] for pod in simulation.of_kind("Pod")} == pods, "no pod was made or ended"
    assert [previous["id"] for previous in status_of(simulation)["vectorSpace"]["previous"]] == [SPACE[B]]


async def test_the_same_space_under_another_address_takes_over_and_nothing_is_kept(
    running: RunningOperator,
) -> None:
    simulation = await through(running, spec(A), spec(MIRROR))
    assert simulation.answers() == {SPACE[A]}
    assert deployments(simulation) == 1
    assert services(simulation) == {"docs", own_name(A)}
    assert status_of(simulation)["vectorSpace"]["previous"] == []


async def test_nothing_is_kept_when_nothing_is_asked_to_be(running: RunningOperator) -> None:
    simulation = await through(running, spec(A), spec(B, {"keepPrevious": "0s"}))
    assert (simulation.answers(), deployments(simulation)) == ({SPACE[B]}, 1)


async def test_a_held_space_waits_at_its_own_name_until_it_is_let_go(running: RunningOperator) -> None:
    simulation = await through(running, spec(A), spec(B, {"hold": True}))
    assert simulation.answers() == {SPACE[A]}
    assert len(simulation.selected(own_name(B))) == 2
    ready = simulation.condition("Ready")
    assert ready is not None
    assert (ready["status"], ready["reason"]) == ("True", "Held")
    assert f"http://{own_name(B)}.search.svc" in ready["message"]
    assert types(simulation) == {"Ready"}, "that is what the manifest asks for"
    rollout = status_of(simulation)["rollout"]
    assert (rollout["state"], rollout["vectorSpace"]) == ("Held", SPACE[B])
    await through(running, spec(B))
    assert simulation.answers() == {SPACE[B]}
    assert "rollout" not in status_of(simulation)


async def test_a_refused_change_changes_nothing_and_says_both_spaces(running: RunningOperator) -> None:
    simulation = await through(running, spec(A), spec(B, {"onNewVectorSpace": "Refuse"}))
    assert (simulation.answers(), deployments(simulation)) == ({SPACE[A]}, 1)
    stalled = simulation.condition("Stalled")
    assert stalled is not None
    assert stalled["reason"] == "VectorSpaceChange"
    assert SPACE[A] in stalled["message"]
    assert SPACE[B] in stalled["message"]
    await through(running, spec(MIRROR, {"onNewVectorSpace": "Refuse"}))
    assert types(simulation) == {"Ready"}, "the same vectors from elsewhere are no change"


async def test_in_place_gives_the_old_model_up_first(running: RunningOperator) -> None:
    simulation, operator = running
    simulation.room = 2
    await through(running, spec(A), spec(B))
    reconciling = simulation.condition("Reconciling")
    assert simulation.answers() == {SPACE[A]}
    assert reconciling is not None
    await through((simulation, operator), spec(B, {"onNewVectorSpace": "InPlace"}))
    assert (simulation.answers(), deployments(simulation)) == ({SPACE[B]}, 1)


async def test_a_model_that_does_not_pass_the_self_check_does_not_take_over(running: RunningOperator) -> None:
    simulation = running[0]
    simulation.unsound = frozenset({B})
    await through(running, spec(A), spec(B))
    assert simulation.answers() == {SPACE[A]}
    reconciling = simulation.condition("Reconciling")
    assert reconciling is not None
    assert reconciling["reason"] == "SelfCheckFailed"
    assert "different texts gave the same vector" in reconciling["message"]


async def test_a_broken_model_takes_nothing_away(running: RunningOperator) -> None:
    simulation = await through(running, spec(A), spec(B), spec(BROKEN))
    assert simulation.answers() == {SPACE[B]}
    assert types(simulation) == {"Ready", "Stalled"}
    ready = simulation.condition("Ready")
    assert ready is not None
    assert ready["status"] == "True"
    assert services(simulation) >= {own_name(A), own_name(B)}, "the way back is still there"
    await through(running, spec(A))
    assert simulation.answers() == {SPACE[A]}


async def test_three_former_spaces_are_kept_at_most(running: RunningOperator) -> None:
    repos = [f"acme/m{number}" for number in range(6)]
    simulation = await through(running, *map(spec, repos))
    retained = [
        previous for previous in status_of(simulation)["vectorSpace"]["previous"] if "keptUntil" in previous
    ]
    assert [previous["id"] for previous in retained] == [space_named(repo) for repo in repos[4:1:-1]]
    assert deployments(simulation) == 4


# -- at every step of the way


class Client:
    """Asks by the service's name after every write; once there were vectors, there always are.

    problems: what a client would have called a failure; an assertion inside of the server would be lost there.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.problems: list[str] = []
        self._simulation = simulation
        self._was_answered = False
        simulation.after_write = self.ask

    def ask(self) -> None:
        simulation = self._simulation
        answers = simulation.answers()
        is_suspended = simulation.objects[RESOURCE, "docs"]["spec"].get("suspend", False)
        if is_suspended:
            self._was_answered = False
        elif answers and None not in answers:
            self._was_answered = True
        elif self._was_answered:
            who = "passed on to nobody" if answers else "nobody answers"
            self.problems.append(f"{who} after write {simulation.writes}")


async def to_the_end(running: RunningOperator) -> None:
    """Operators, one after the other, until one finds nothing more to do."""
    simulation, operator = running
    while True:
        try:
            await operator.run()
        except Killed:
            simulation.dies_after = None
            continue
        return


def dies(simulation: Simulation, write: int) -> None:
    simulation.dies_after = write


def is_refused(simulation: Simulation, write: int) -> None:
    simulation.fails_at = frozenset({write})


Trouble = Callable[[Simulation, int], None]


async def change_with(
    running: RunningOperator, steps: Sequence[dict[str, Any]], trouble: Trouble, at: int
) -> bool:
    """The manifests one after the other, each but the first in the middle of the way to the one before, with trouble
    at that write. Whether the change needs so many writes."""
    simulation, operator = running
    simulation.objects.clear()
    simulation.announced_spaces.clear()
    simulation.writes, simulation.dies_after, simulation.fails_at = 0, None, frozenset()
    client = Client(simulation)
    await through(running, spec(A))
    before = simulation.writes
    trouble(simulation, before + at)
    *earlier, last = steps
    for step in earlier:
        simulation.user_applies(step)
        with suppress(Killed, AssertionError):
            await operator.run(max_passes=2)
    simulation.user_applies(last)
    await to_the_end(running)
    assert client.problems == []
    return simulation.writes >= before + at


CHANGES = [
    pytest.param([spec(B)], B, id="another model"),
    pytest.param([spec(MIRROR)], A, id="the same vectors"),
    pytest.param([spec(B, {"keepPrevious": "0s"})], B, id="nothing kept"),
    pytest.param([spec(B, {"onNewVectorSpace": "Refuse"})], A, id="refused"),
    pytest.param([spec(B, {"hold": True})], A, id="held"),
    pytest.param([spec(B, {"hold": True}), spec(B)], B, id="held, and let go"),
    pytest.param([spec(B), spec(C)], C, id="a second model in the middle of the first"),
    pytest.param([spec(B), spec(A)], A, id="taken back in the middle"),
    pytest.param([spec(B), spec(B, suspend=True), spec(B)], B, id="suspended in the middle"),
    pytest.param([spec(BROKEN), spec(A)], A, id="a model that cannot be had, taken back"),
]


@pytest.mark.thorough
@pytest.mark.parametrize("trouble", [dies, is_refused])
@pytest.mark.parametrize(("steps", "want"), CHANGES)
async def test_an_operator_that_dies_after_any_write_and_an_api_that_refuses_any_leave_nothing_unfinished(
    running: RunningOperator, steps: list[dict[str, Any]], want: str, trouble: Trouble
) -> None:
    at = 1
    while await change_with(running, steps, trouble, at):
        assert running[0].answers() == {SPACE[want]}
        assert not {"Reconciling"} & types(running[0])
        at += 1
    assert at > 5, "the change is more than a few writes"


STEPS = st.one_of(
    st.sampled_from([A, B, C, MIRROR, BROKEN]).map(lambda repo: ("model", repo)),
    st.sampled_from([{}, {"hold": True}, {"onNewVectorSpace": "Refuse"}, {"keepPrevious": "1h"}]).map(
        lambda rollout: ("rollout", rollout)
    ),
    st.sampled_from([("suspend", True), ("suspend", False), ("replicas", 1), ("replicas", 3)]),
    st.integers(1, DAY * 2).map(lambda seconds: ("time", seconds)),
    st.integers(1, 12).map(lambda writes: ("death", writes)),
    st.integers(1, 12).map(lambda writes: ("refusal", writes)),
)


@pytest.mark.thorough
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(steps=st.lists(STEPS, min_size=1, max_size=6))
async def test_whatever_is_changed_in_whatever_order_the_end_is_what_the_last_manifest_asks_for(
    tmp_path: Path, steps: list[tuple[str, Any]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        async with simulated(tmp_path, patch) as running:
            simulation, operator = running
            client = Client(simulation)
            desired: dict[str, Any] = spec(A)
            await through(running, desired)
            for what, value in steps:
                match what:
                    case "model":
                        desired = {**desired, "model": hub_spec(value)["model"]}
                    case "time":
                        simulation.now += value
                    case "death":
                        simulation.dies_after = simulation.writes + value
                        continue
                    case "refusal":
                        simulation.fails_at = frozenset({simulation.writes + value})
                        continue
                    case field:
                        desired = {**desired, field: value}
                simulation.user_applies(desired)
                # A part of the way only, so that the next change comes in the middle of this one.
                with suppress(Killed, AssertionError):
                    await operator.run(max_passes=3)
            simulation.fails_at = frozenset()
            await to_the_end(running)
            assert client.problems == []
            check(simulation, desired)


def check(simulation: Simulation, desired: dict[str, Any]) -> None:
    repo = desired["model"]["source"]["huggingFace"]["repo"]
    is_waiting = desired["rollout"].get("hold") or desired["rollout"].get("onNewVectorSpace") == "Refuse"
    if desired.get("suspend"):
        return
    answers = simulation.answers()
    assert len(answers) == 1, "one space, and some answer"
    assert None not in answers
    if repo != BROKEN and not is_waiting:
        assert answers == {SPACE[repo]}
        assert len(simulation.selected("docs")) == desired["replicas"]
        assert types(simulation) == {"Ready"}
    assert status_of(simulation)["vectorSpace"]["id"] in answers
    assert KEY.name in services(simulation)
