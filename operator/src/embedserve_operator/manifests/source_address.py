"""Reads where the source of a model is reached over the network."""

from __future__ import annotations

from urllib.parse import urlsplit

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.settings import RenderSettings

DEFAULT_PORTS = {"https": 443, "http": 80}
"""The ports of addresses that name none, by scheme."""
_SERVICE_PART = 2
"""Place of the part `svc` in the name of a Service."""


def find_source_port(spec: EmbeddingServiceSpec, settings: RenderSettings) -> int:
    """Return the port of a remote source, as its address has it."""
    url = _find_source_url(spec, settings)
    if url is None:
        return DEFAULT_PORTS["https"]
    address = urlsplit(url)
    return address.port or DEFAULT_PORTS[address.scheme]


def find_source_namespace(spec: EmbeddingServiceSpec, settings: RenderSettings, namespace: str) -> str | None:
    """Return the namespace of the Service that a remote source is: its host is NAME, or NAME.NAMESPACE.svc with or
    without the domain of the cluster. None for other hosts; `namespace` is the namespace of the resource.
    """
    host = urlsplit(_find_source_url(spec, settings) or "").hostname or ""
    parts = host.split(".")
    if len(parts) == 1:
        return None if not host or ":" in host else namespace
    return parts[1] if len(parts) > _SERVICE_PART and parts[_SERVICE_PART] == "svc" else None


def _find_source_url(spec: EmbeddingServiceSpec, settings: RenderSettings) -> str | None:
    source = spec.model.source
    if source.http is not None:
        return source.http.url
    if source.s3 is not None:
        return source.s3.endpoint
    return (source.hugging_face.endpoint if source.hugging_face is not None else None) or settings.hf_endpoint
