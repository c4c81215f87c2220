"""The CustomResourceDefinition, made from the types."""

from __future__ import annotations

from typing import Any

import yaml

from embedserve_operator.api.schema import spec_schema, status_schema
from embedserve_operator.api.status import EmbeddingServiceStatus
from embedserve_operator.api.types import GROUP, KIND, NAME_RULE, PLURAL, VERSION, EmbeddingServiceSpec

NAME = f"{PLURAL}.{GROUP}"


def _column(name: str, path: str, kind: str = "string", *, wide: bool = False) -> dict[str, Any]:
    column: dict[str, Any] = {"name": name, "type": kind, "jsonPath": path}
    if wide:
        column["priority"] = 1
    return column


_COLUMNS = [
    _column("Ready", '.status.conditions[?(@.type=="Ready")].status'),
    _column("Model", ".status.model.source"),
    _column("Class", ".spec.hardware.class"),
    _column("Replicas", ".status.readyReplicas", "integer"),
    _column("Space", ".status.vectorSpace.id"),
    _column("URL", ".status.endpoint.url"),
    _column("Nodes", ".status.hardware.matchingNodes", "integer", wide=True),
    _column("Reason", '.status.conditions[?(@.type=="Ready")].reason', wide=True),
    _column("Age", ".metadata.creationTimestamp", "date"),
]


def custom_resource_definition() -> dict[str, Any]:
    """The definition as an object."""
    root = {
        "description": "EmbeddingService asks for one embedding model to be served on this cluster.",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec_schema(EmbeddingServiceSpec),
            "status": status_schema(EmbeddingServiceStatus),
        },
        "x-kubernetes-validations": [NAME_RULE.as_json()],
    }
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": _COLUMNS,
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "schema": {"openAPIV3Schema": root},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["embsvc"],
                "categories": ["all"],
            },
            "versions": [version],
        },
    }


def as_yaml() -> str:
    """The definition as a file's content."""
    return yaml.safe_dump(custom_resource_definition(), sort_keys=False, width=110, allow_unicode=True)


def as_chart_template() -> str:
    """The same definition as a template of the chart, which may leave it out or keep it on uninstall."""
    body = as_yaml()
    head, marker, tail = body.partition(f"  name: {NAME}\n")
    if not marker or "{{" in body:
        raise ValueError("the definition does not have the shape that the chart's template expects")
    keep = "  {{- if .Values.crds.keep }}\n  annotations:\n    helm.sh/resource-policy: keep\n  {{- end }}\n"
    return f"{{{{- if .Values.crds.enabled }}}}\n{head}{marker}{keep}{tail}{{{{- end }}}}\n"
