"""Implements `render` and `explain` for the resources in a file: their plan, and the reasons for
it, without a cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml
from pydantic import ValidationError

from embedserve_operator.api.base import describe_problems
from embedserve_operator.api.types import API_VERSION, KIND, NAME_RULE, EmbeddingServiceSpec
from embedserve_operator.commands.explain import explain
from embedserve_operator.errors import ManifestError
from embedserve_operator.kube.kinds import NODE, OPTIONAL_KINDS, RUNTIME_CLASS, build_crd_name
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.kube.views.cluster import Node
from embedserve_operator.kube.views.objects import Object, ObjectList
from embedserve_operator.kube.views.resource import EmbeddingServiceObject
from embedserve_operator.observe.nodes import read_node
from embedserve_operator.observe.state import ReceivedObjects, observe
from embedserve_operator.plan import make_plan
from embedserve_operator.plan.refusals import find_refusal
from embedserve_operator.settings import RenderSettings
from embedserve_operator.state.nodes import UNKNOWN_CLUSTER, ClusterState
from embedserve_operator.state.observed import ObservedState

_UNKNOWN_UID = "00000000-0000-0000-0000-000000000000"
_NUMBER_ELSEWHERE = re.compile(r"[0-9]+([eE][0-9]+)?")
"""A pattern of hashes such as 09855860 or 7851e932, which are text for YAML 1.1 and numbers for the YAML that
kubectl reads.
"""


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as it is, not as one line with escapes."""

    def represent_text(self, value: str) -> yaml.ScalarNode:
        style = "|" if "\n" in value else None
        if _NUMBER_ELSEWHERE.fullmatch(value):
            style = "'"
        return self.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


def render_file(content: str, settings: RenderSettings, cluster: ClusterState = UNKNOWN_CLUSTER) -> str:
    """Return YAML of the children of every EmbeddingService in a file. Other objects in it are skipped."""
    children: list[Manifest] = []
    for observed in observe_file(content, settings, cluster):
        plan = make_plan(observed, settings)
        children += [*plan.children, *plan.jobs_to_create]
    return format_yaml(children)


def explain_file(content: str, settings: RenderSettings, cluster: ClusterState) -> str:
    """Return why the plan of every EmbeddingService in a file is as it is."""
    states = observe_file(content, settings, cluster)
    return "\n".join(explain(observed, make_plan(observed, settings), settings) for observed in states)


def observe_file(content: str, settings: RenderSettings, cluster: ClusterState) -> list[ObservedState]:
    """Return the observed state of every EmbeddingService in a file, as in a cluster that has no other objects
    of it.
    """
    resources = [document for document in _parse_documents(content) if document.get("kind") == KIND]
    if not resources:
        raise ManifestError(f"there is no {KIND} in the file")
    return [_observe_resource(resource, settings, cluster) for resource in resources]


def read_cluster(content: str) -> ClusterState:
    """Return the state of the cluster from a file with nodes, RuntimeClasses and definitions, as `kubectl get
    ... -o yaml` prints them.
    """
    objects = [
        item
        for document in _parse_documents(content)
        for item in (ObjectList.parse(document).items or (document,))
    ]
    nodes = [read_node(Node.parse(item)) for item in objects if item.get("kind") == NODE]
    if not nodes:
        raise ManifestError("there is no Node in the file")
    refs = {Object.parse(item).ref for item in objects}
    names = {ref.name for ref in refs}
    return ClusterState(
        nodes=tuple(nodes),
        runtime_classes=frozenset(ref.name for ref in refs if ref.kind == RUNTIME_CLASS),
        optional_kinds=frozenset(kind for kind in OPTIONAL_KINDS if build_crd_name(kind) in names),
    )


def _parse_documents(content: str) -> list[Mapping[str, Any]]:
    try:
        return [document for document in yaml.safe_load_all(content) if isinstance(document, Mapping)]
    except yaml.YAMLError as error:
        raise ManifestError(f"not YAML: {error}") from error


def format_yaml(manifests: Iterable[Manifest]) -> str:
    """Return manifests as the content of a file; files inside them stay readable."""
    return yaml.dump_all(
        manifests, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True, explicit_start=True
    )


def _observe_resource(
    resource: Mapping[str, Any], settings: RenderSettings, cluster: ClusterState
) -> ObservedState:
    metadata = Object.parse(resource).metadata
    _validate(resource, metadata.name, settings)
    as_stored = {
        **resource,
        "metadata": {
            "name": metadata.name,
            "namespace": metadata.namespace or "default",
            "uid": _UNKNOWN_UID,
            "generation": 1,
        },
    }
    return observe(ReceivedObjects(EmbeddingServiceObject.parse(as_stored)), cluster)


def _validate(resource: Mapping[str, Any], name: str, settings: RenderSettings) -> None:
    """Refuse what the API server or the operator would refuse, with the same message."""
    faults = []
    if resource.get("apiVersion") != API_VERSION:
        faults.append(f"apiVersion must be {API_VERSION}")
    if not NAME_RULE.check(name):
        faults.append(NAME_RULE.message)
    try:
        spec = EmbeddingServiceSpec.model_validate(resource.get("spec"))
        refusal = find_refusal(spec, settings)
        faults += [refusal.message] if refusal is not None else []
    except ValidationError as error:
        faults.append(describe_problems(error))
    if faults:
        raise ManifestError(f"{KIND} {name}: {'; '.join(faults)}")
