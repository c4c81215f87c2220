"""Turns the JSON Schema that pydantic writes into the structural schema that a CRD needs.

The API server refuses `$ref`, `anyOf [T, null]`, `const`, `additionalProperties: false` beside properties
and unions of types; each is rewritten here, and anything else that it would refuse is an error of this
program.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

_NOISE = frozenset({"title", "$defs"})
_NOT_STRUCTURAL = frozenset(
    {"$ref", "const", "discriminator", "prefixItems", "patternProperties", "exclusiveMinimum", "uniqueItems"}
)


def build_structural_schema(model: type[BaseModel]) -> Schema:
    """Return the structural schema of a model."""
    raw = model.model_json_schema(by_alias=True, mode="validation")
    return _rewrite(raw, raw.get("$defs", {}))


def _rewrite(node: Schema, definitions: dict[str, Schema]) -> Schema:
    node = _without_reference(node, definitions)
    node = _without_union(node, definitions)
    inexpressible = _NOT_STRUCTURAL & node.keys()
    if inexpressible:
        raise ValueError(f"not expressible in a CRD: {sorted(inexpressible)} in {node}")
    out: Schema = {}
    for key, value in node.items():
        if key in _NOISE or (key == "default" and value is None):
            continue
        if key == "additionalProperties" and isinstance(value, bool):
            continue
        out[key] = _drop_nulls(value) if key == "default" else value
    if "properties" in out:
        out["properties"] = {name: _rewrite(child, definitions) for name, child in out["properties"].items()}
    if isinstance(out.get("additionalProperties"), dict):
        out["additionalProperties"] = _rewrite(out["additionalProperties"], definitions)
    if isinstance(out.get("items"), dict):
        out["items"] = _rewrite(out["items"], definitions)
    if "description" in out:
        out["description"] = " ".join(out["description"].split())
    return out


def _drop_nulls(default: Any) -> Any:
    """Return a default without its nulls, since null is not a value of the types that a CRD knows."""
    if isinstance(default, dict):
        return {key: _drop_nulls(value) for key, value in default.items() if value is not None}
    return default


def _without_reference(node: Schema, definitions: dict[str, Schema]) -> Schema:
    """Return the node with what it refers to; the description at the place of use wins over the type's own."""
    if "$ref" not in node:
        return node
    target = definitions[node["$ref"].rsplit("/", 1)[-1]]
    return _without_reference({**target, **{k: v for k, v in node.items() if k != "$ref"}}, definitions)


def _without_union(node: Schema, definitions: dict[str, Schema]) -> Schema:
    if "anyOf" not in node:
        return node
    rest = {key: value for key, value in node.items() if key != "anyOf"}
    branches = [branch for branch in node["anyOf"] if branch.get("type") != "null"]
    if len(branches) == 1:
        return _without_union(_without_reference({**branches[0], **rest}, definitions), definitions)
    if {branch.get("type") for branch in branches} == {"integer", "string"}:
        return {
            **rest,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "maxLength": max(branch.get("maxLength", 0) for branch in branches),
        }
    raise ValueError(f"a union that a CRD cannot express: {node}")


def build_spec_schema(model: type[BaseModel]) -> Schema:
    """Return the schema of the spec."""
    return build_structural_schema(model)


def build_status_schema(model: type[BaseModel]) -> Schema:
    """Return the schema of the status: conditions are a map keyed by type, and before the first pass nothing
    is current.
    """
    schema = build_structural_schema(model)
    schema["properties"]["conditions"] |= {
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    }
    schema["properties"]["conditions"].pop("default", None)
    # kstatus takes a resource without status for current; the default makes "not looked at yet" visible.
    schema["default"] = {"observedGeneration": -1}
    return schema
