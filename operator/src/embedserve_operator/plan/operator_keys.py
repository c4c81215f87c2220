"""Brings the operator's public keys to pods that keep an earlier configuration file."""

from __future__ import annotations

from collections.abc import Iterable

from embedserve_operator.kube.objects import Manifest
from embedserve_operator.kube.views.objects import ConfigMap
from embedserve_operator.manifests.configmap import FILE_NAME, build_file_config_map
from embedserve_operator.manifests.metadata import read_ref
from embedserve_operator.settings import RenderSettings
from embedserve_operator.state.observed import ObservedState


def build_mounted_config_maps(
    observed: ObservedState, settings: RenderSettings, built: Iterable[Manifest]
) -> tuple[Manifest, ...]:
    """Return the ConfigMaps that pods of other revisions and templates mount, as they are but for the keys.

    `built` are the children that are built anyway.
    """
    if not settings.operator_keys:
        return ()
    built_refs = {read_ref(manifest) for manifest in built}
    mounted = {pod.config_map for pod in observed.pods} | {
        deployment.config_map for deployment in observed.deployments
    }
    mounted_config_maps = (
        build_file_config_map(observed.resource, child.view.data[FILE_NAME], settings.operator_keys)
        for child in observed.children
        if isinstance(child.view, ConfigMap) and child.ref.name in mounted and FILE_NAME in child.view.data
    )
    # One that an earlier operator has named otherwise is left as it is.
    existing = {child.ref for child in observed.children}
    return tuple(manifest for manifest in mounted_config_maps if read_ref(manifest) in existing - built_refs)
