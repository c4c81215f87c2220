"""Volumes of every access mode: who may share one does, who may not is kept together or refused, nobody waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.kubectl import Kubectl
from e2e.cluster.kwok import fake_nodes
from e2e.cluster.layout import NODE_NAME
from e2e.cluster.lifecycle import Cluster
from e2e.conftest import MakeService
from e2e.services import Object, Service, hub_spec, is_serving
from e2e.volumes import NodeVolume, writable_folder
from tests.support.mounts import memory_volume, remount

MakeVolume = Callable[..., NodeVolume]
FAKE = ("fake-a", "fake-b")


@pytest.fixture(scope="module")
def folder(cluster: Cluster, namespace: str) -> Path:
    """Return the folder in which the module's volumes lie; goes with the cluster at the latest."""
    return writable_folder(cluster.layout.volumes / namespace)


@pytest.fixture(scope="module")
def volume(kubectl: Kubectl, namespace: str, folder: Path) -> Iterator[MakeVolume]:
    volumes: list[NodeVolume] = []

    def make(name: str, *modes: str, of: Path | None = None) -> NodeVolume:
        node_volume = NodeVolume(kubectl, namespace, name, of or writable_folder(folder / name))
        node_volume.make(*modes)
        volumes.append(node_volume)
        return node_volume

    yield make
    for node_volume in volumes:
        node_volume.remove()


def on(claim: str, **more: Any) -> Object:
    return hub_spec(cache={"claimName": claim, **more.pop("cache", {})}, **more)


def nodes_of(embsvc: Service) -> list[str]:
    return [pod["spec"].get("nodeName", "") for pod in embsvc.pods()]


def with_ready(embsvc: Service, count: int) -> Object:
    return embsvc.wait_for(
        f"{count} pods are ready",
        lambda resource: is_serving(resource) and resource["status"].get("readyReplicas") == count,
    )


@pytest.fixture
def more_nodes(cluster: Cluster) -> Iterator[None]:
    """Two roomy nodes that exist only as objects; what is placed there counts as running."""
    room = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "110"}
    nodes = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "labels": {
                    "kubernetes.io/arch": "amd64",
                    "kubernetes.io/os": "linux",
                    "kubernetes.io/hostname": name,
                },
            },
            "status": {"allocatable": room, "capacity": room},
        }
        for name in FAKE
    ]
    with fake_nodes(cluster, nodes):
        yield


def test_a_volume_for_many_nodes_is_filled_once_and_read_by_all_who_mount_it(
    service: MakeService, volume: MakeVolume, request: pytest.FixtureRequest
) -> None:
    many = volume("many", "ReadWriteMany")
    writer = service("writer")
    writer.apply(on(many.claim, replicas=2))
    written = with_ready(writer, 2)["status"]
    assert writer.children("poddisruptionbudgets")

    volume("filled", "ReadOnlyMany", of=many.folder)
    reader = service("reader")
    reader.apply(on("filled", cache={"readOnly": True}, hub={"revision": "other"}))
    assert "at other" in reader.wait_condition("Reconciling", "True", "ModelNotStored")["message"]
    reader.apply(on("filled", replicas=2, cache={"readOnly": True}))
    read = with_ready(reader, 2)["status"]
    assert "fetch" not in read, "nothing is fetched into a filled volume"
    assert read["model"]["digest"] == written["model"]["digest"]
    assert read["vectorSpace"]["id"] == written["vectorSpace"]["id"]
    assert reader.embed("the same") == writer.embed("the same")
    reader.delete()

    request.getfixturevalue("more_nodes")
    writer.apply(on(many.claim, replicas=4))
    with_ready(writer, 4)
    assert set(FAKE) & set(nodes_of(writer)), "with room elsewhere they go there"
    writer.delete()


def test_pods_on_a_volume_for_one_node_stay_on_it_whatever_room_others_have(
    service: MakeService, volume: MakeVolume, request: pytest.FixtureRequest
) -> None:
    once = volume("once", "ReadWriteOnce")
    embsvc = service("once")
    embsvc.apply(on(once.claim))
    with_ready(embsvc, 1)
    request.getfixturevalue("more_nodes")
    embsvc.apply(on(once.claim, replicas=3))
    with_ready(embsvc, 3)
    assert set(nodes_of(embsvc)) == {NODE_NAME}, "its Job's pod and those that serve"
    assert not embsvc.children("poddisruptionbudgets"), "an evicted pod has nowhere else to go"
    embsvc.delete()


@pytest.mark.parametrize(
    ("mode", "reason", "advice"),
    [
        pytest.param(
            "ReadWriteOncePod", "VolumeForOnePod", "ReadWriteOnce (all pods on one node)", id="one pod"
        ),
        pytest.param("ReadOnlyMany", "VolumeNotWritable", "spec.cache.readOnly", id="read-only"),
    ],
)
def test_what_a_volume_cannot_do_is_refused_with_advice(
    service: MakeService, volume: MakeVolume, mode: str, reason: str, advice: str
) -> None:
    name = reason.lower()
    volume(name, mode)
    embsvc = service(name)
    embsvc.apply(on(name, replicas=2))
    assert advice in embsvc.wait_condition("Stalled", "True", reason)["message"]
    assert embsvc.children("deployments") == []
    embsvc.delete()


def test_one_pod_on_a_volume_for_one_pod_is_replaced_and_not_rolled(
    service: MakeService, volume: MakeVolume
) -> None:
    alone = volume("alone", "ReadWriteOncePod")
    embsvc = service("alone")
    embsvc.apply(on(alone.claim))
    before = with_ready(embsvc, 1)["status"]["fetch"]["job"]
    embsvc.apply(on(alone.claim, model={"refresh": "again"}))
    embsvc.wait_for(
        "serves what was fetched again",
        lambda resource: (
            is_serving(resource)
            and resource["status"]["fetch"]["state"] == "Succeeded"
            and resource["status"]["fetch"]["job"] != before
        ),
    )
    assert len(embsvc.embed("after the change")) == 1
    embsvc.delete()


@pytest.fixture
def small(folder: Path, volume: MakeVolume) -> Iterator[Path]:
    """A volume `small` of 60 MB."""
    with memory_volume(writable_folder(folder / "small"), "size=60m,mode=777") as path:
        volume("small", "ReadWriteOnce")
        yield path


def test_a_volume_that_is_full_is_named_and_the_fetch_goes_on_once_there_is_room(
    service: MakeService, small: Path
) -> None:
    embsvc = service("small")
    embsvc.apply(on("small"))
    message = embsvc.wait_condition("Reconciling", "True", "VolumeFull")["message"]
    assert "MB free; enlarge the volume" in message
    remount(small, "size=300m")
    embsvc.wait_serving()
    assert len(embsvc.embed("there is room now")) == 1
    embsvc.delete()


@pytest.fixture
def read_only(folder: Path, volume: MakeVolume) -> Iterator[str]:
    """A volume whose file system is mounted read-only, which its access mode does not tell."""
    with memory_volume(writable_folder(folder / "frozen"), "ro,mode=777") as path:
        volume("frozen", "ReadWriteOnce", of=path)
        yield "frozen"


@pytest.fixture
def foreign(folder: Path, volume: MakeVolume) -> str:
    """A volume that belongs to root, of a driver that gives it to no group."""
    path = folder / "foreign"
    path.mkdir(mode=0o755)
    volume("foreign", "ReadWriteOnce", of=path)
    return "foreign"


def test_a_volume_that_cannot_be_written_is_named(service: MakeService, read_only: str, foreign: str) -> None:
    cases = {
        read_only: ("VolumeReadOnly", "is mounted read-only"),
        foreign: ("VolumePermissionDenied", "belongs to 0:0 with mode 755; set securityContext.fsGroup"),
    }
    for claim in cases:
        service(claim).apply(on(claim))
    for claim, (reason, words) in cases.items():
        assert words in service(claim).wait_condition("Stalled", "True", reason)["message"]
        service(claim).delete()
