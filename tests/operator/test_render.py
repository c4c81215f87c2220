"""Manifests in, children out: the whole way without a cluster, compared with reviewed files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from embedserve_operator.commands.render import explain_file, read_cluster, render_file
from embedserve_operator.errors import ManifestError
from tests.operator.builders import SETTINGS, hub_spec, resource
from tests.operator.expected import assert_golden

HERE = Path(__file__).parent
MANIFESTS = sorted((HERE / "manifests").glob("*.yaml"))
EXAMPLES = sorted((HERE.parents[1] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_manifest_gives_exactly_the_reviewed_children(manifest: Path) -> None:
    children = render_file(manifest.read_text(encoding="utf-8"), SETTINGS)
    assert_golden(HERE / "golden" / manifest.name, children)


@pytest.mark.parametrize(
    "name",
    [
        "class-hopper",
        "class-blackwell-rtx",
        "accelerators-mig",
        "autoscaled",
        "service-monitor",
        "cache-converted",
    ],
)
def test_explain_says_exactly_the_reviewed_words(name: str) -> None:
    manifest = (HERE / "manifests" / f"{name}.yaml").read_text(encoding="utf-8")
    cluster = read_cluster((HERE / "nodes.yaml").read_text(encoding="utf-8"))
    assert_golden(HERE / "golden" / "explain" / f"{name}.txt", explain_file(manifest, SETTINGS, cluster))


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_rendered_text_is_text_for_every_reader_of_yaml(manifest: Path) -> None:
    """kubectl reads YAML 1.2: there 7851e932 and 09855860 are numbers."""
    for line in render_file(manifest.read_text(encoding="utf-8"), SETTINGS).splitlines():
        assert not re.search(r"embedserve.dev/\S+: [0-9]+([eE][0-9]+)?$", line)


@pytest.mark.parametrize("manifest", [*MANIFESTS, *EXAMPLES], ids=lambda path: path.stem)
def test_rendering_twice_gives_the_same_bytes(manifest: Path) -> None:
    content = manifest.read_text(encoding="utf-8")
    assert render_file(content, SETTINGS) == render_file(content, SETTINGS)


def test_marks_by_which_tools_track_the_resource_are_not_on_its_children() -> None:
    """Argo CD and Flux take what carries their marks for something that they have applied, and prune it."""
    plain = resource(hub_spec())
    marked = {
        "labels": {"app.kubernetes.io/instance": "apps", "kustomize.toolkit.fluxcd.io/name": "apps"},
        "annotations": {"argocd.argoproj.io/tracking-id": "apps:embedserve.dev/EmbeddingService:search/docs"},
    }
    tracked = {**plain, "metadata": {**plain["metadata"], **marked}}
    assert render_file(yaml.safe_dump(tracked), SETTINGS) == render_file(yaml.safe_dump(plain), SETTINGS)


@pytest.mark.parametrize(
    ("content", "want"),
    [
        pytest.param("a: [", "not YAML", id="broken YAML"),
        pytest.param("kind: Pod", "there is no EmbeddingService", id="another kind"),
        pytest.param("", "there is no EmbeddingService", id="an empty file"),
    ],
)
def test_a_file_without_a_resource_is_refused(content: str, want: str) -> None:
    with pytest.raises(ManifestError, match=want):
        render_file(content, SETTINGS)


def test_every_fault_of_a_manifest_is_named_with_its_path() -> None:
    spec = hub_spec(batching={"maxBatchTokens": -1}, replicas=-2, unknown=1, hardware={"class": "TPU"})
    with pytest.raises(ManifestError) as caught:
        render_file(yaml.safe_dump(resource(spec, name="Wrong_Name")), SETTINGS)
    message = str(caught.value)
    for want in (
        "metadata.name must have at most 45 characters",
        "spec.batching.maxBatchTokens: must be between 1 and 10000000; leave it out",
        "spec.replicas: must be between 0 and 1000",
        "spec.unknown: Extra inputs are not permitted",
        "spec.hardware.class: must start with a letter",
    ):
        assert want in message
