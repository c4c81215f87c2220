"""Manifests in, children out: the whole way without a cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.commands.render import format_yaml, render_file
from embedserve_operator.errors import ManifestError
from embedserve_operator.kube.kinds import API_KINDS
from tests.operator.builders import OTHER_REPO, SETTINGS, Cluster, hub_spec, resource
from tests.operator.expected import assert_golden
from tests.operator.rendering.case import GOLDEN, GOLDEN_SPECS, Case, render
from tests.operator.rendering.cases import CASES, SPECS
from tests.support.differences import find_differences

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))
REMEMBERED = [
    f"Deployment docs.metadata.annotations.embedserve.dev/{name}" for name in ("declaration", "settings")
]


@pytest.mark.parametrize("name", GOLDEN_SPECS)
def test_a_resource_gets_exactly_the_reviewed_children(name: str) -> None:
    content = (GOLDEN / name / "resource.yaml").read_text(encoding="utf-8")
    assert_golden(GOLDEN / name / "children.yaml", render_file(content, SETTINGS))


def test_a_model_change_has_exactly_the_reviewed_children() -> None:
    """The new model is complete and takes over the Service of the resource; the old one keeps that of its space."""
    served = Cluster(resource(hub_spec())).applied().rolled_out().applied().published()
    report = {"source": OTHER_REPO, "vectorSpace": "vs1-fedcba9876543210fedc", "dimensions": 384}
    changed = served.changed(hub_spec(OTHER_REPO)).applied().rolled_out(report=report)
    assert_golden(GOLDEN / "model-change" / "children.yaml", format_yaml(changed.plan().children))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.says)
def test_a_setting_changes_what_is_said_of_it_and_nothing_else(case: Case) -> None:
    changes = find_differences(_rendered(case.base), _rendered(case.spec))
    for path in REMEMBERED:
        changes.pop(path, None)
    assert changes == case.changes


def test_what_a_case_is_compared_with_is_reviewed_itself() -> None:
    assert all(case.base in SPECS.values() for case in CASES)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_every_child_belongs_to_the_resource_and_says_what_it_was_applied_from(
    spec: Mapping[str, Any],
) -> None:
    for child in _children(spec):
        metadata = child["metadata"]
        assert child["apiVersion"] == API_KINDS[child["kind"]].api_version
        assert metadata["namespace"] == "search"
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "embedserve-operator"
        assert metadata["labels"]["embedserve.dev/service"] == "docs"
        if child["kind"] == "Job":
            assert re.fullmatch("[0-9a-f]{8}", metadata["annotations"]["embedserve.dev/template"])
        else:
            assert re.fullmatch("[0-9a-f]{8}", metadata["annotations"]["embedserve.dev/fingerprint"])
        if child["kind"] != "PersistentVolumeClaim":
            (owner,) = metadata["ownerReferences"]
            assert (owner["kind"], owner["name"], owner["controller"]) == ("EmbeddingService", "docs", True)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_deployment_declares_the_fields_of_the_spec_that_make_its_vectors(spec: Mapping[str, Any]) -> None:
    (deployment,) = [child for child in _children(spec) if child["kind"] == "Deployment"]
    declared = json.loads(deployment["metadata"]["annotations"]["embedserve.dev/declaration"])
    wire = EmbeddingServiceSpec.model_validate(spec).as_wire()
    assert declared == {key: wire[key] for key in ("model", "promptName", "prompts") if key in wire}


@pytest.mark.parametrize(
    "name", [name for name, hardware in SETTINGS.classes.items() if hardware.tolerations]
)
def test_every_pod_of_a_class_with_tolerations_has_them_beside_those_of_the_user(name: str) -> None:
    own = {"key": "spot", "operator": "Exists"}
    cache = {"volume": {"size": "1Gi"}}
    spec = hub_spec(hardware={"class": name}, cache=cache, pod={"tolerations": [own]})
    pods = [
        child["spec"]["template"]["spec"]
        for child in _children(spec)
        if child["kind"] in ("Deployment", "Job")
    ]
    assert len(pods) == 2, "those that serve, and those that fetch"
    for pod in pods:
        assert pod["tolerations"] == [
            *(toleration.as_wire() for toleration in SETTINGS.classes[name].tolerations),
            own,
        ]


def test_each_resource_in_a_file_gets_its_children_and_other_objects_are_skipped() -> None:
    services = [resource(hub_spec(), name="first"), resource(hub_spec(OTHER_REPO), name="second")]
    alone = [render_file(yaml.safe_dump(service), SETTINGS) for service in services]
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "search"}}
    assert render_file(yaml.safe_dump_all([namespace, *services]), SETTINGS) == "".join(alone)


def test_a_resource_without_a_namespace_is_rendered_for_the_default_one() -> None:
    content = (GOLDEN / "minimal" / "resource.yaml").read_text(encoding="utf-8")
    assert "namespace" not in yaml.safe_load(content)["metadata"]
    children = yaml.safe_load_all(render_file(content, SETTINGS))
    assert {child["metadata"]["namespace"] for child in children} == {"default"}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_rendered_text_is_text_for_every_reader_of_yaml(spec: Mapping[str, Any]) -> None:
    """kubectl reads YAML 1.2: there 7851e932 and 09855860 are numbers."""
    for line in _rendered(spec).splitlines():
        assert not re.search(r"embedserve.dev/\S+: [0-9]+([eE][0-9]+)?$", line)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_rendering_twice_gives_the_same_bytes(spec: Mapping[str, Any]) -> None:
    assert render(spec) == _rendered(spec)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_rendered(example: Path) -> None:
    assert render_file(example.read_text(encoding="utf-8"), SETTINGS)


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


def _rendered(spec: Mapping[str, Any]) -> str:
    return _render_json(json.dumps(spec))


@cache
def _render_json(spec: str) -> str:
    """Each spec is rendered once for all tests."""
    return render(json.loads(spec))


def _children(spec: Mapping[str, Any]) -> list[Any]:
    return list(yaml.load_all(_rendered(spec), Loader=yaml.CSafeLoader))


@pytest.mark.parametrize(
    ("endpoint", "namespace"),
    [
        ("http://hub", "search"),
        ("http://hub.models.svc", "models"),
        ("https://hub.models.svc.cluster.local:8443/mirror", "models"),
        ("https://hub.example", None),
        ("https://hub.models", None),
        ("http://10.0.0.5:8080", None),
        ("http://[2001:db8::5]:8080", None),
    ],
)
def test_pods_behind_a_service_are_reached_on_whatever_port_they_listen(
    endpoint: str, namespace: str | None
) -> None:
    spec = hub_spec()
    spec["model"]["source"]["huggingFace"]["endpoint"] = endpoint
    (policy,) = [
        child for child in Cluster(resource(spec)).plan().children if child["kind"] == "NetworkPolicy"
    ]
    selector = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    assert policy["spec"]["egress"][3:] == ([] if namespace is None else [{"to": [selector]}])


def test_dns_is_reached_before_and_behind_its_service() -> None:
    (policy,) = [child for child in Cluster().plan().children if child["kind"] == "NetworkPolicy"]
    assert {(port["protocol"], port["port"]) for port in policy["spec"]["egress"][0]["ports"]} == {
        ("UDP", 53),
        ("TCP", 53),
        ("UDP", 5353),
        ("TCP", 5353),
    }
