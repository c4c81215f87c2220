"""Volumes that many nodes can mount: filled once by one service, read by others, and pods go where there is room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.kubectl import Kubectl
from e2e.cluster.kwok import fake_nodes
from e2e.cluster.lifecycle import Cluster
from e2e.conftest import MakeService
from e2e.services import Object, Service, hub_spec, is_serving
from e2e.volumes import NodeVolume, writable_folder

MakeVolume = Callable[..., NodeVolume]
FAKE = ("fake-a", "fake-b")


@pytest.fixture(scope="module")
def folder(cluster: Cluster, namespace: str) -> Path:
    """Where the module's volumes lie; goes with the cluster at the latest."""
    return writable_folder(cluster.layout.volumes / namespace)


@pytest.fixture(scope="module")
def volume(kubectl: Kubectl, namespace: str, folder: Path) -> Iterator[MakeVolume]:
    made: list[NodeVolume] = []

    def make(name: str, *modes: str, of: Path | None = None) -> NodeVolume:
        found = NodeVolume(kubectl, namespace, name, of or writable_folder(folder / name))
        found.make(*modes)
        made.append(found)
        return found

    yield make
    for one in made:
        one.remove()


def on(claim: str, **more: Any) -> Object:
    return hub_spec(cache={"claimName": claim, **more.pop("cache", {})}, **more)


def nodes_of(found: Service) -> list[str]:
    return [pod["spec"].get("nodeName", "") for pod in found.pods()]


def with_ready(found: Service, count: int) -> Object:
    return found.wait_for(
        f"{count} pods are ready", lambda one: is_serving(one) and one["status"].get("readyReplicas") == count
    )


@pytest.fixture
def more_nodes(cluster: Cluster) -> Iterator[None]:
    """Two roomy nodes that exist only as objects; what is placed there counts as running."""
    room = {"cpu": "64", "memory": "256Gi", "pods": "110"}
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
