"""Builds what a service mesh has to know about the pods: which ports its sidecar leaves alone, and which
pods get no sidecar.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.manifests.runtime_config import MANAGEMENT_PORT
from embedserve_operator.manifests.source_address import find_source_port
from embedserve_operator.settings import Mesh, RenderSettings


class _PortAnnotations(NamedTuple):
    """The annotations by which a sidecar leaves ports alone."""

    inbound: str
    outbound: str


_PORT_ANNOTATIONS: Mapping[Mesh, _PortAnnotations] = MappingProxyType(
    {
        "istio": _PortAnnotations(
            "traffic.sidecar.istio.io/excludeInboundPorts", "traffic.sidecar.istio.io/excludeOutboundPorts"
        ),
        "linkerd": _PortAnnotations(
            "config.linkerd.io/skip-inbound-ports", "config.linkerd.io/skip-outbound-ports"
        ),
    }
)
NO_SIDECAR_LABELS: Mapping[str, str] = MappingProxyType({"sidecar.istio.io/inject": "false"})
"""The labels of pods into which Istio puts no sidecar, whatever their namespace says."""
NO_SIDECAR_ANNOTATIONS: Mapping[str, str] = MappingProxyType({"linkerd.io/inject": "disabled"})
"""The annotations of pods into which Linkerd puts no sidecar, whatever their namespace says."""


def build_mesh_annotations(spec: EmbeddingServiceSpec, settings: RenderSettings) -> dict[str, str]:
    """Return the annotations of serving pods.

    The operator and whoever reads metrics come to the management port without the certificate of the mesh. A container
    that fetches before the start runs before the sidecar does.
    """
    if settings.mesh is None:
        return {}
    names = _PORT_ANNOTATIONS[settings.mesh]
    annotations = {names.inbound: str(MANAGEMENT_PORT)}
    if spec.model.source.is_remote and spec.cache is None:
        annotations[names.outbound] = str(find_source_port(spec, settings))
    return annotations
