"""Builds the ConfigMap with the runtime's configuration file.

Its name contains the hash of its content: a changed file is a new object, and running pods keep theirs.
"""

from __future__ import annotations

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.kube.objects import Manifest, compute_short_hash
from embedserve_operator.manifests.metadata import add_fingerprint, build_metadata
from embedserve_operator.manifests.runtime_config import build_runtime_yaml
from embedserve_operator.settings import RenderSettings
from embedserve_operator.state.resource import Resource

FILE_NAME = "runtime.yaml"
KEYS_FILE_NAME = "operator-keys.json"
"""The file of the operator's public keys, which the runtime looks for beside its configuration file."""


def build_config_map(resource: Resource, spec: EmbeddingServiceSpec, settings: RenderSettings) -> Manifest:
    """Return the ConfigMap of the pods' configuration."""
    content = build_runtime_yaml(resource, spec, settings)
    return build_file_config_map(resource, content, settings.operator_keys)


def build_file_config_map(resource: Resource, content: str, operator_keys: str = "") -> Manifest:
    """Return the ConfigMap of a configuration file, with the keys of the operator, if there are any.

    The keys are not part of the name: running pods get others within a minute or two, without a restart.
    """
    data = {FILE_NAME: content}
    keys = {KEYS_FILE_NAME: operator_keys} if operator_keys else {}
    return add_fingerprint(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": build_metadata(resource, f"{resource.key.name}-{compute_short_hash(data)}"),
            "data": {**data, **keys},
        }
    )
