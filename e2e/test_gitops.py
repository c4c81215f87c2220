"""Model changes by commits: nobody who asks notices but by the vectors, which are of one space at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.polling import wait_until
from e2e.conftest import MakeService
from e2e.git import GitOps, by_flux, pull_and_apply
from e2e.services import TIMEOUT_S, Service, condition, hub_spec
from e2e.spaces import CLIENTS, Watch, vector_at, watching

MEAN = hub_spec(servedModelName="gitops", replicas=2)
CLS = hub_spec(servedModelName="gitops", replicas=2, model={"pooling": "cls"})
TEXT = "The same words, another space."


@pytest.fixture(params=["a plain loop", pytest.param("Flux", marks=pytest.mark.soak)])
def gitops(request: pytest.FixtureRequest, service: MakeService, tmp_path: Path) -> Iterator[GitOps]:
    """A service that was made by a commit, and serves. Each way has its own: both hold the fields that they apply."""
    with ExitStack() as stack:
        embsvc = service("by-flux" if request.param == "Flux" else "by-loop")
        if request.param == "Flux":
            request.getfixturevalue("flux_controllers")
            repository = GitOps.init(embsvc, tmp_path)
            stack.enter_context(by_flux(embsvc.kubectl, tmp_path))
        else:
            repository = GitOps.init(embsvc, tmp_path, lambda: pull_and_apply(embsvc.kubectl, tmp_path))
        repository.commit(MEAN, "Serve MiniLM")
        repository.service.wait_serving()
        repository.service.embed("the way is open")
        yield repository


def check(watch: Watch, spaces: list[str], references: dict[str, list[float]]) -> None:
    """No failure; every client passed through the spaces in this order; every answer has its space's vector."""
    assert watch.failed == []
    for client in range(CLIENTS):
        assert watch.spaces_of(client) == spaces
    for answer in watch.seen:
        assert answer.vector == pytest.approx(references[answer.space], abs=1e-5)


def overlap(watch: Watch, old: str, new: str) -> float:
    """Seconds from the first answer of the new space to the last request that still got the old one."""
    first = min(answer.until for answer in watch.seen if answer.space == new)
    last = max(answer.at for answer in watch.seen if answer.space == old)
    return last - first


def by_name(service: Service) -> str:
    """The space of an answer by the service's name."""
    return vector_at(service, service.get()["status"]["endpoint"]["url"], TEXT)[0]


def test_clients_get_one_space_and_then_the_other_and_a_revert_brings_the_first_back(gitops: GitOps) -> None:
    service = gitops.service
    old, at_old = vector_at(service, service.get()["status"]["vectorSpace"]["url"], TEXT)
    with watching(service, TEXT) as there:
        gitops.commit(CLS, "Pool by the first token")
        status = service.wait_serving()["status"]
        new, at_new = vector_at(service, status["vectorSpace"]["url"], TEXT)
        wait_until("the name leads to it", lambda: by_name(service) == new, timeout_s=TIMEOUT_S)
    check(there, [old, new], {old: at_old, new: at_new})
    print(f"{there.answers} answers, the spaces overlap by {overlap(there, old, new):.3f} s")
    (previous,) = status["vectorSpace"]["previous"]
    assert previous["id"] == old
    still, at_still = vector_at(service, previous["url"], TEXT)
    assert still == old, "still at its own name"
    assert at_still == pytest.approx(at_old, abs=1e-5)
    pods = {pod["metadata"]["uid"] for pod in service.pods()}
    with watching(service, TEXT) as back:
        gitops.revert()
        service.wait_serving()
        wait_until("the name leads back", lambda: by_name(service) == old, timeout_s=TIMEOUT_S)
    check(back, [new, old], {old: at_old, new: at_new})
    print(f"{back.answers} answers, the spaces overlap by {overlap(back, new, old):.3f} s")
    assert {pod["metadata"]["uid"] for pod in service.pods()} == pods, "no pod was made or ended"


BAD = [
    pytest.param(
        hub_spec("acme/missing", replicas=2),
        "Stalled",
        "ModelNotFound",
        id="a repository that does not exist",
    ),
    pytest.param(
        {**CLS, "resources": {"requests": {"memory": "4Ti"}}},
        "Reconciling",
        "NoRoomForBoth",
        id="more memory than the node has",
    ),
    pytest.param(
        hub_spec(replicas=2, model={"pooling": "cls", "outputs": ["dense", "sparse"]}),
        "Stalled",
        None,
        id="a pooling that does not make the outputs",
    ),
    pytest.param(
        hub_spec(replicas=2, model={"task": "rerank"}), "Stalled", None, id="a task that the model cannot do"
    ),
]


@pytest.mark.parametrize(("bad", "kind", "reason"), BAD)
def test_a_bad_commit_takes_nothing_away(
    gitops: GitOps, bad: dict[str, Any], kind: str, reason: str | None
) -> None:
    service = gitops.service
    old, at_old = vector_at(service, service.get()["status"]["endpoint"]["url"], TEXT)
    with watching(service, TEXT) as there:
        gitops.commit(bad, "A bad idea")
        resource = service.wait_for(
            f"it is {kind}",
            lambda resource: (c := condition(resource, kind)) is not None and reason in (None, c["reason"]),
        )
        ready = condition(resource, "Ready")
        assert ready is not None
        assert (ready["status"], ready["reason"]) == ("True", "PreviousRevisionServing")
        gitops.revert()
        service.wait_serving()
    check(there, [old], {old: at_old})
