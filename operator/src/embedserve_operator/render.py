"""`render`: the plan for resources in a file, printed, without a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import yaml
from pydantic import ValidationError

from embedserve_operator.api.types import API_VERSION, KIND, NAME_RULE, EmbeddingServiceSpec
from embedserve_operator.errors import ManifestError
from embedserve_operator.observe import observe, problems_in_words
from embedserve_operator.plan import make_plan
from embedserve_operator.settings import RenderSettings
from embedserve_operator.wire import Manifest, text

_UNKNOWN_UID = "00000000-0000-0000-0000-000000000000"


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as it is, not as one line with escapes."""

    def represent_text(self, value: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _Dumper.represent_text)


def render(content: str, settings: RenderSettings) -> str:
    """YAML of the children of every EmbeddingService in a file; other objects in it are passed over."""
    try:
        documents = [found for found in yaml.safe_load_all(content) if found is not None]
    except yaml.YAMLError as error:
        raise ManifestError(f"not YAML: {error}") from error
    resources = [found for found in documents if isinstance(found, Mapping) and found.get("kind") == KIND]
    if not resources:
        raise ManifestError(f"there is no {KIND} in the file")
    children: list[Manifest] = []
    for resource in resources:
        children += render_one(resource, settings)
    return as_yaml(children)


def as_yaml(manifests: Iterable[Manifest]) -> str:
    """Manifests as a file's content; files inside them stay readable."""
    return yaml.dump_all(
        manifests, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True, explicit_start=True
    )


def render_one(resource: Mapping[str, Any], settings: RenderSettings) -> tuple[Manifest, ...]:
    """The children of one resource, as in an empty cluster."""
    name = text(resource, "metadata", "name")
    _check(resource, name)
    as_stored = {
        **resource,
        "metadata": {
            "name": name,
            "namespace": text(resource, "metadata", "namespace") or "default",
            "uid": _UNKNOWN_UID,
            "generation": 1,
        },
    }
    return make_plan(observe(as_stored, (), ()), settings).children


def _check(resource: Mapping[str, Any], name: str) -> None:
    """Refuse what the API server would refuse, with the same words."""
    faults = []
    if resource.get("apiVersion") != API_VERSION:
        faults.append(f"apiVersion must be {API_VERSION}")
    if not NAME_RULE.check(name):
        faults.append(NAME_RULE.message)
    try:
        EmbeddingServiceSpec.model_validate(resource.get("spec"))
    except ValidationError as error:
        faults.append(problems_in_words(error))
    if faults:
        raise ManifestError(f"{KIND} {name}: {'; '.join(faults)}")
