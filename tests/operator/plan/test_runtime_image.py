"""A service that names the image of its pods gets it from where the platform takes images, and from nowhere else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.operator.builders import SETTINGS, Cluster, hub_spec, resource


@pytest.mark.parametrize(
    ("image", "allowed", "is_taken"),
    [
        pytest.param("embedserve-runtime:old-cpu", (), True, id="another version of the operator's"),
        pytest.param("embedserve-runtime@sha256:0123", (), True, id="by its digest"),
        pytest.param("mine.example/embedserve-runtime:1", (), False, id="another registry's"),
        pytest.param("embedserve-runtime/mine:1", (), False, id="a repository below"),
        pytest.param("mine.example:5000/a/b:1", ("mine.example:5000/a/b",), True, id="one that is allowed"),
        pytest.param("mine.example/a/b:1@sha256:01", ("mine.example/a/b",), True, id="tag and digest"),
        pytest.param("mine.example/a/c:1", ("mine.example/a/b",), False, id="one beside it"),
        pytest.param("mine.example/a/c:1", ("*",), True, id="where all are allowed"),
    ],
)
def test_an_image_is_taken_from_repositories_of_the_platform(
    image: str, allowed: tuple[str, ...], is_taken: bool
) -> None:
    settings = replace(SETTINGS, allowed_images=allowed)
    cluster = Cluster(resource(hub_spec(runtimeImage=image)), settings=settings)
    stalled = cluster.conditions().get("Stalled")
    assert (stalled is None) == is_taken
    if stalled is not None:
        assert stalled.reason == "ImageNotAllowed"
        assert "runtime.allowedImages" in stalled.message
