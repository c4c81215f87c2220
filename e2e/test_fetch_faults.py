"""Fetches on the cluster in trouble: killed, racing, refused. What is served is right, or nothing is."""

from __future__ import annotations

import os
import random
import secrets
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.kubectl import Kubectl
from e2e.cluster.lifecycle import Cluster
from e2e.cluster.polling import wait_until
from e2e.cluster.process_table import list_commands
from e2e.conftest import MakeService
from e2e.hub import samples
from e2e.hub.faults import FaultKind
from e2e.node_hub import NodeHub
from e2e.services import TIMEOUT_S, Object, Service
from e2e.volumes import NodeVolume, bytes_in, writable_folder
from embedserve_runtime.store.checking import find_damage

REPOSITORY = "lab/minilm"
MINILM_SPACE = "vs2-d4f43f9e189b33de563b"
WEIGHTS = "model.safetensors"
SIZE = 90_868_376
KILLS = 30
MAX_BYTES_BETWEEN = 1_000_000
"""Bytes from the start of one that is killed to its end."""
HARD_KILLS = 3
"""The number of those that are hard; after each the Job waits twice as long before its next try."""


@pytest.fixture
def hub(cluster: Cluster, tmp_path: Path) -> Iterator[NodeHub]:
    shutil.copytree(samples.model_folder(), tmp_path / "repositories" / REPOSITORY / "main")
    with NodeHub(tmp_path / "repositories", tmp_path / "log") as running:
        yield running


@pytest.fixture
def volume(cluster: Cluster, kubectl: Kubectl, namespace: str) -> Iterator[NodeVolume]:
    """An empty claim whose files this machine sees."""
    name = f"store-{secrets.token_hex(3)}"
    folder = writable_folder(cluster.layout.volumes / namespace / name)
    node_volume = NodeVolume(kubectl, namespace, name, folder)
    node_volume.make("ReadWriteMany")
    yield node_volume
    node_volume.remove()


def spec(hub: NodeHub, volume: NodeVolume, **more: Any) -> Object:
    source = {"huggingFace": {"repo": REPOSITORY, "endpoint": hub.url}}
    return {"model": {"source": source, **more}, "cache": {"claimName": volume.claim}}


def jobs(kubectl: Kubectl, volume: NodeVolume) -> list[str]:
    """Names of those that work on a volume."""
    received = (kubectl.get("jobs", "--namespace", volume.namespace) or {}).get("items", [])
    names = [str(job["metadata"]["name"]) for job in received]
    return [name for name in names if name.startswith(f"{volume.claim}-fetch-")]


def fetching_processes() -> list[int]:
    """Return the processes of the pods that fetch: `embedserve fetch` with the configuration file of a container."""
    marks = {b"fetch", b"/etc/embedserve/runtime.yaml"}
    return [number for number, words in list_commands() if marks <= {*words}]


def kill_processes() -> None:
    """SIGKILL to what fetches, which has to be there; the Job counts a failure."""
    process_ids: list[int] = []

    def is_there() -> bool:
        process_ids[:] = fetching_processes()
        return bool(process_ids)

    wait_until("a pod fetches", is_there, timeout_s=TIMEOUT_S, every_s=0.05)
    for number in process_ids:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def kill_jobs(kubectl: Kubectl, volume: NodeVolume) -> None:
    """Away with the Job and all that is of it, without a moment of grace."""
    for job in jobs(kubectl, volume):
        words = ("--namespace", volume.namespace, "--ignore-not-found", "--wait=false")
        kubectl("delete", "job", job, *words)
        kubectl("delete", "pods", "--selector", f"job-name={job}", "--grace-period=0", "--force", *words)


def wait_for_bytes(volume: NodeVolume, enough: int, embsvc: Service) -> None:
    """Until that much is written, or all."""
    wait_until(
        "the Job has written some more",
        lambda: bytes_in(volume.folder) >= enough or is_served(embsvc),
        timeout_s=TIMEOUT_S,
        every_s=0.05,
    )


def answered_whole(hub: NodeHub) -> int:
    """Bytes of the weights in answers that nobody broke off: those of a killed process do not count."""
    return hub.sent(WEIGHTS)


def is_served(embsvc: Service) -> bool:
    return bool(embsvc.get().get("status", {}).get("fetch", {}).get("state") == "Succeeded")


def test_a_fetch_that_is_killed_goes_on_where_it_was(
    service: MakeService, hub: NodeHub, volume: NodeVolume
) -> None:
    hub.misbehave(FaultKind.SLOW, path=f"*/resolve/*/{WEIGHTS}", amount=5_000_000)
    embsvc = service("killed")
    embsvc.apply(spec(hub, volume))
    wait_for_bytes(volume, SIZE // 2, embsvc)
    kill_processes()
    hub.behave()
    assert embsvc.wait_serving()["status"]["vectorSpace"]["id"] == MINILM_SPACE
    assert list(find_damage(volume.folder)) == []
    assert answered_whole(hub) < 0.75 * SIZE, "what the killed one had is not fetched again"
    embsvc.delete()


@pytest.mark.soak
def test_a_job_that_is_killed_again_and_again_leaves_one_good_model(
    service: MakeService, kubectl: Kubectl, hub: NodeHub, volume: NodeVolume
) -> None:
    points = random.Random(8)
    hub.misbehave(FaultKind.SLOW, path=f"*/resolve/*/{WEIGHTS}", amount=300_000)
    embsvc = service("killed-often")
    embsvc.apply(spec(hub, volume))
    for number in range(KILLS):
        wait_for_bytes(volume, bytes_in(volume.folder) + points.randrange(1, MAX_BYTES_BETWEEN), embsvc)
        if number % (KILLS // HARD_KILLS) == 1:
            kill_processes()
        else:
            kill_jobs(kubectl, volume)
        assert not is_served(embsvc), "it was killed before its end"
        assert list(find_damage(volume.folder)) == [], "what is there is whole"
    hub.behave()
    status = embsvc.wait_serving()["status"]
    assert status["vectorSpace"]["id"] == MINILM_SPACE
    assert len(embsvc.embed("whole")) == 1
    assert list(find_damage(volume.folder)) == []
    assert answered_whole(hub) < 0.95 * SIZE, "what killed Jobs had is not fetched again"
    embsvc.delete()


def test_of_two_jobs_that_race_one_fetches(
    service: MakeService, kubectl: Kubectl, hub: NodeHub, volume: NodeVolume
) -> None:
    hub.misbehave(FaultKind.SLOW, path=f"*/resolve/*/{WEIGHTS}", amount=6_000_000)
    mean, first = service("mean"), service("first-token")
    mean.apply(spec(hub, volume))
    first.apply(spec(hub, volume, pooling="cls"))
    spaces = {embsvc.wait_serving()["status"]["vectorSpace"]["id"] for embsvc in (mean, first)}
    assert len(spaces) == 2
    assert len(jobs(kubectl, volume)) == 2
    assert hub.sent(WEIGHTS) == SIZE
    assert list(find_damage(volume.folder)) == []
    for embsvc in (mean, first):
        embsvc.delete()


def test_a_storm_of_refusals_is_waited_for(service: MakeService, hub: NodeHub, volume: NodeVolume) -> None:
    hub.misbehave(FaultKind.RATE_LIMIT, path="*", amount=1, times=12)
    embsvc = service("storm")
    embsvc.apply(spec(hub, volume))
    assert embsvc.wait_serving()["status"]["vectorSpace"]["id"] == MINILM_SPACE
    refused = sum(request["status"] == 429 for request in hub.requests())
    assert refused == 12
    assert hub.sent(WEIGHTS) == SIZE
    embsvc.delete()


def test_bytes_that_are_wrong_once_are_fetched_again_and_always_are_named(
    service: MakeService, hub: NodeHub, volume: NodeVolume
) -> None:
    embsvc = service("wrong")
    hub.misbehave(FaultKind.CORRUPT, path=f"*/resolve/*/{WEIGHTS}", amount=1000)
    embsvc.apply(spec(hub, volume))
    assert WEIGHTS in embsvc.wait_condition("Stalled", "True", "HashMismatch")["message"]
    assert list(find_damage(volume.folder)) == []
    hub.behave()
    hub.misbehave(FaultKind.BROKEN, path=f"*/resolve/*/{WEIGHTS}", amount=5_000_000, times=6)
    hub.misbehave(FaultKind.CORRUPT, path=f"*/resolve/*/{WEIGHTS}", amount=1000, times=1)
    assert embsvc.wait_serving()["status"]["vectorSpace"]["id"] == MINILM_SPACE
    embsvc.delete()


def test_a_model_that_is_damaged_on_the_volume_is_fetched_again_and_not_served(
    service: MakeService, kubectl: Kubectl, namespace: str, hub: NodeHub, volume: NodeVolume
) -> None:
    embsvc = service("damaged")
    embsvc.apply(spec(hub, volume))
    embsvc.wait_serving()
    before = {pod["metadata"]["name"] for pod in embsvc.pods()}
    for path in [path for path in volume.folder.rglob("*") if path.is_file() and path.stat().st_size == SIZE]:
        shorter = path.with_suffix(".shorter")
        shorter.write_bytes(path.read_bytes()[:-1])
        shorter.replace(path)
    kubectl("delete", "pods", "--namespace", namespace, "--selector", embsvc.selector, "--wait=false")
    served = embsvc.wait_serving_by_others(before)
    assert served["status"]["vectorSpace"]["id"] == MINILM_SPACE
    assert hub.sent(WEIGHTS) == 2 * SIZE
    assert list(find_damage(volume.folder)) == []
    embsvc.delete()
