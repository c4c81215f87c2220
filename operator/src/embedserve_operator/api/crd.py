"""Builds the CustomResourceDefinition from the types."""

from __future__ import annotations

from typing import Any

import yaml

from embedserve_operator.api.schema import build_spec_schema, build_status_schema
from embedserve_operator.api.status import EmbeddingServiceStatus
from embedserve_operator.api.types import GROUP, KIND, NAME_RULE, PLURAL, VERSION, EmbeddingServiceSpec

NAME = f"{PLURAL}.{GROUP}"


def _build_column(name: str, path: str, kind: str = "string", *, wide: bool = False) -> dict[str, Any]:
    column: dict[str, Any] = {"name": name, "type": kind, "jsonPath": path}
    if wide:
        column["priority"] = 1
    return column


_COLUMNS = [
    _build_column("Ready", '.status.conditions[?(@.type=="Ready")].status'),
    _build_column("Model", ".status.model.source"),
    _build_column("Class", ".spec.hardware.class"),
    _build_column("Replicas", ".status.readyReplicas", "integer"),
    _build_column("Space", ".status.vectorSpace.id"),
    _build_column("URL", ".status.endpoint.url"),
    _build_column("Nodes", ".status.hardware.matchingNodes", "integer", wide=True),
    _build_column("Reason", '.status.conditions[?(@.type=="Ready")].reason', wide=True),
    _build_column("Age", ".metadata.creationTimestamp", "date"),
]


def build_crd() -> dict[str, Any]:
    """Return the definition as an object."""
    root = {
        "description": "EmbeddingService asks for one embedding model to be served on this cluster.",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": build_spec_schema(EmbeddingServiceSpec),
            "status": build_status_schema(EmbeddingServiceStatus),
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


class _PlainDumper(yaml.SafeDumper):
    """Writes a value anew wherever it appears: kubectl would have to follow references to earlier ones."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def format_yaml() -> str:
    """Return the definition as the content of a file."""
    return yaml.dump(build_crd(), Dumper=_PlainDumper, sort_keys=False, width=110, allow_unicode=True)


def format_chart_template() -> str:
    """Return the definition as a template of the chart, which may leave it out or keep it on uninstall."""
    body = format_yaml()
    head, marker, tail = body.partition(f"  name: {NAME}\n")
    if not marker or "{{" in body:
        raise ValueError("the definition does not have the shape that the chart's template expects")
    policy = (
        "  {{- if .Values.crds.keep }}\n  annotations:\n    helm.sh/resource-policy: keep\n  {{- end }}\n"
    )
    return f"{{{{- if .Values.crds.enabled }}}}\n{head}{marker}{policy}{tail}{{{{- end }}}}\n"
