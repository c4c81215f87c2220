"""`render` and `explain`: the plan for resources in a file, and why, without a cluster."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml
from pydantic import ValidationError

from embedserve_operator.api.base import problems_in_words
from embedserve_operator.api.types import API_VERSION, KIND, NAME_RULE, EmbeddingServiceSpec
from embedserve_operator.errors import ManifestError
from embedserve_operator.explain import explain
from embedserve_operator.kinds import OPTIONAL_KINDS, definition_of
from embedserve_operator.nodes import UNKNOWN_CLUSTER, ClusterFacts
from embedserve_operator.observe import observe, read_node
from embedserve_operator.plan import make_plan
from embedserve_operator.plan.refusals import refusal
from embedserve_operator.settings import RenderSettings
from embedserve_operator.wire import Manifest, mappings, text
from embedserve_operator.world import World

_UNKNOWN_UID = "00000000-0000-0000-0000-000000000000"
_NUMBER_ELSEWHERE = re.compile(r"[0-9]+([eE][0-9]+)?")
"""A hash such as 09855860 or 7851e932 is text for YAML 1.1 and a number for the YAML that kubectl reads."""


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as it is, not as one line with escapes."""

    def represent_text(self, value: str) -> yaml.ScalarNode:
        style = "|" if "\n" in value else None
        if _NUMBER_ELSEWHERE.fullmatch(value):
            style = "'"
        return self.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


def render(content: str, settings: RenderSettings, cluster: ClusterFacts = UNKNOWN_CLUSTER) -> str:
    """YAML of the children of every EmbeddingService in a file; other objects in it are passed over."""
    children: list[Manifest] = []
    for world in worlds(content, settings, cluster):
        plan = make_plan(world, settings)
        children += [*plan.children, *plan.start]
    return as_yaml(children)


def explained(content: str, settings: RenderSettings, cluster: ClusterFacts) -> str:
    """Why the plan of every EmbeddingService in a file is as it is."""
    found = worlds(content, settings, cluster)
    return "\n".join(explain(world, make_plan(world, settings), settings) for world in found)


def worlds(content: str, settings: RenderSettings, cluster: ClusterFacts) -> list[World]:
    """Every EmbeddingService in a file, as in a cluster that has nothing else of it."""
    resources = [found for found in _documents(content) if found.get("kind") == KIND]
    if not resources:
        raise ManifestError(f"there is no {KIND} in the file")
    return [_world(resource, settings, cluster) for resource in resources]


def read_cluster(content: str) -> ClusterFacts:
    """Facts from a file with nodes, RuntimeClasses and definitions, as `kubectl get ... -o yaml` prints them."""
    objects = [item for found in _documents(content) for item in (mappings(found, "items") or [found])]
    nodes = [read_node(found) for found in objects if found.get("kind") == "Node"]
    if not nodes:
        raise ManifestError("there is no Node in the file")
    names = {text(found, "metadata", "name") for found in objects}
    return ClusterFacts(
        nodes=tuple(nodes),
        runtime_classes=frozenset(
            text(found, "metadata", "name") for found in objects if found.get("kind") == "RuntimeClass"
        ),
        optional_kinds=frozenset(kind for kind in OPTIONAL_KINDS if definition_of(kind) in names),
    )


def _documents(content: str) -> list[Mapping[str, Any]]:
    try:
        return [found for found in yaml.safe_load_all(content) if isinstance(found, Mapping)]
    except yaml.YAMLError as error:
        raise ManifestError(f"not YAML: {error}") from error


def as_yaml(manifests: Iterable[Manifest]) -> str:
    """Manifests as a file's content; files inside them stay readable."""
    return yaml.dump_all(
        manifests, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True, explicit_start=True
    )


def _world(resource: Mapping[str, Any], settings: RenderSettings, cluster: ClusterFacts) -> World:
    name = text(resource, "metadata", "name")
    _check(resource, name, settings)
    as_stored = {
        **resource,
        "metadata": {
            "name": name,
            "namespace": text(resource, "metadata", "namespace") or "default",
            "uid": _UNKNOWN_UID,
            "generation": 1,
        },
    }
    return observe(as_stored, (), (), cluster)


def _check(resource: Mapping[str, Any], name: str, settings: RenderSettings) -> None:
    """Refuse what the API server or the operator would refuse, with the same words."""
    faults = []
    if resource.get("apiVersion") != API_VERSION:
        faults.append(f"apiVersion must be {API_VERSION}")
    if not NAME_RULE.check(name):
        faults.append(NAME_RULE.message)
    try:
        spec = EmbeddingServiceSpec.model_validate(resource.get("spec"))
        refused = refusal(spec, settings)
        faults += [refused.message] if refused is not None else []
    except ValidationError as error:
        faults.append(problems_in_words(error))
    if faults:
        raise ManifestError(f"{KIND} {name}: {'; '.join(faults)}")
