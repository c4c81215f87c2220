"""The ConfigMap with the runtime's configuration file. Its name carries the hash of its content: a changed
file is a new object, pods that still run keep theirs."""

from __future__ import annotations

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.settings import RenderSettings
from embedserve_operator.specs.metadata import fingerprinted, metadata
from embedserve_operator.specs.runtime_config import runtime_yaml
from embedserve_operator.wire import Manifest, short_hash
from embedserve_operator.world import Resource

FILE_NAME = "runtime.yaml"


def config_map(resource: Resource, spec: EmbeddingServiceSpec, settings: RenderSettings) -> Manifest:
    """The ConfigMap of the pods' configuration."""
    return config_file(resource, runtime_yaml(resource, spec, settings))


def config_file(resource: Resource, content: str) -> Manifest:
    """The ConfigMap of a configuration file."""
    data = {FILE_NAME: content}
    return fingerprinted(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata(resource, f"{resource.key.name}-{short_hash(data)}"),
            "data": data,
        }
    )
