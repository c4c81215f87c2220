"""A model inside of an image: mounted by nodes that can do it, and said to be the trouble of those that cannot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.buildah import ImageBuild
from e2e.cluster.image_node import NAME, image_node, load
from e2e.cluster.images import PREFIX, load_project_images
from e2e.cluster.layout import NODE_NAME
from e2e.cluster.lifecycle import Cluster
from e2e.conftest import MakeService
from e2e.hub import samples
from e2e.services import Object

pytestmark = pytest.mark.soak

REFERENCE = f"{PREFIX}embedserve-model:minilm"
MINILM_SPACE = "vs2-d4f43f9e189b33de563b"


@pytest.fixture(scope="module")
def node(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A node that mounts images, and has one with the real model."""
    folder = tmp_path_factory.mktemp("image")
    _, runtime = load_project_images(cluster.images)
    with image_node(cluster, [runtime.content_reference]):
        load(cluster, model_image(cluster, folder))
        yield


def model_image(cluster: Cluster, folder: Path) -> Path:
    """An archive of an image that holds the model's folder and nothing else."""
    containerfile, archive = folder / "Containerfile", folder / "image.tar"
    containerfile.write_text("FROM scratch\nCOPY . /encoders/minilm\n")
    buildah = cluster.images.buildah
    buildah.build(ImageBuild(REFERENCE, containerfile, samples.model_folder(), ()))
    buildah.save(REFERENCE, archive)
    return archive


def of_image(node: str, *, reference: str = REFERENCE) -> Object:
    image = {"reference": reference, "path": "encoders/minilm"}
    pod = {"nodeSelector": {"kubernetes.io/hostname": node}}
    return {"model": {"source": {"image": image}}, "pod": pod}


def test_a_model_in_an_image_is_served(service: MakeService, node: None) -> None:
    embsvc = service("image")
    embsvc.apply(of_image(NAME))
    status = embsvc.wait_serving()["status"]
    assert status["vectorSpace"]["id"] == MINILM_SPACE
    assert status["model"]["source"] == f"{REFERENCE}:/encoders/minilm"
    assert [pod["spec"]["nodeName"] for pod in embsvc.pods()] == [NAME]
    assert len(embsvc.embed("from an image")[0]) == 384
    embsvc.delete()


def test_an_image_that_cannot_be_had_is_named(service: MakeService, node: None) -> None:
    embsvc = service("none")
    embsvc.apply(of_image(NAME, reference="registry.example/none:1"))
    message = embsvc.wait_condition("Reconciling", "True", "ImagePullBackOff")["message"]
    assert "registry.example/none:1" in message
    embsvc.delete()


def test_a_node_that_cannot_mount_images_is_named(service: MakeService, node: None) -> None:
    embsvc = service("old-node")
    embsvc.apply(of_image(NODE_NAME))
    message = embsvc.wait_condition("Reconciling", "True", "ImageVolumesMissing")["message"]
    assert f"node {NODE_NAME}" in message
    assert "feature gate ImageVolume" in message
    embsvc.delete()
