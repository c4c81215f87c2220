"""What one case of rendering is made of: a spec, another one to compare it with, and what is different."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from embedserve_operator.api.cloud_labels import CLOUD_LABELS
from embedserve_operator.commands.render import render_file
from tests.operator.builders import SETTINGS, hub_spec, resource
from tests.support.differences import find_value_differences

GOLDEN = Path(__file__).parents[1] / "golden"
"""Folders with a resource and the children that it gets, as reviewed files."""
GOLDEN_SPECS: Mapping[str, Mapping[str, Any]] = {
    file.parent.name: yaml.safe_load(file.read_text(encoding="utf-8"))["spec"]
    for file in sorted(GOLDEN.glob("*/resource.yaml"))
}
HOPPER = hub_spec(hardware={"class": "hopper"})
AUTOSCALED = hub_spec(autoscaling={"minReplicas": 2, "maxReplicas": 8})
CONVERTED = GOLDEN_SPECS["cache-converted"]

DEPLOYMENT = "Deployment docs"
POD = f"{DEPLOYMENT}.spec.template.spec"
RUNTIME = f"{POD}.containers[runtime]"
FETCH = f"{POD}.initContainers[fetch]"
FETCH_JOB_POD = "Job fetch.spec.template.spec"
CONVERT_JOB_POD = "Job convert.spec.template.spec"
_NODE_TERMS = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
NODE_TERMS = f"{POD}.{_NODE_TERMS}"
FETCH_JOB_NODE_TERMS = f"{FETCH_JOB_POD}.{_NODE_TERMS}"
CONFIG = "ConfigMap of Deployment docs.data.runtime.yaml"
FETCH_CONFIG = "ConfigMap of Job fetch.data.runtime.yaml"
CONVERT_CONFIG = "ConfigMap of Job convert.data.runtime.yaml"
POLICY = "NetworkPolicy docs.spec"
SERVICE = "Service docs.spec"
BUDGET = {
    "spec": {
        "maxUnavailable": 1,
        "selector": {"matchLabels": {"embedserve.dev/service": "docs", "embedserve.dev/revision": "HASH"}},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
}


def build_class_terms(name: str, major: str, *minors: str, architectures: Iterable[str]) -> list[Any]:
    """The node terms of a class with accelerators: by compute capability, and by each label of a cloud."""
    always = [("kubernetes.io/os", ["linux"]), ("kubernetes.io/arch", [*architectures])]
    by_capability = [("nvidia.com/gpu.compute.major", [major]), ("nvidia.com/gpu.compute.minor", [*minors])]
    by_label = [[(key, [*values])] for key, values in CLOUD_LABELS.get(name, {}).items()]
    return [
        {
            "matchExpressions": [
                {"key": key, "operator": "In", "values": values} for key, values in (*always, *more)
            ]
        }
        for more in (by_capability, *by_label)
    ]


HOPPER_TERMS = build_class_terms("hopper", "9", "0", architectures=("amd64", "arm64"))
ANY_NODE_TERMS = [{"matchExpressions": HOPPER_TERMS[0]["matchExpressions"][:2]}]
"""Nodes of the two architectures, with or without an accelerator."""


def compare_with_hopper(
    name: str, major: str, *minors: str, architectures: Iterable[str] = ("amd64", "arm64")
) -> dict[str, Any]:
    """Return what is different in the node terms of a class from those of class hopper."""
    terms = build_class_terms(name, major, *minors, architectures=architectures)
    return find_value_differences(HOPPER_TERMS, terms, NODE_TERMS)


@dataclass(frozen=True)
class Case:
    """A spec, with the differences of its children from those of another one, whose children are a golden file or
    another case."""

    says: str
    spec: Mapping[str, Any]
    changes: Mapping[str, Any]
    """New values by their paths, as `find_differences` gives them."""
    base: Mapping[str, Any] = field(default_factory=lambda: GOLDEN_SPECS["minimal"])


def render(spec: Mapping[str, Any]) -> str:
    """The children of a service with that spec, as a file."""
    return render_file(yaml.safe_dump(resource(spec)), SETTINGS)
