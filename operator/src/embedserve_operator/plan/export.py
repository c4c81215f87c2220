"""Handles models that belong to no family: they are converted by an export with torch, which the
image for CPUs does not contain.
"""

from __future__ import annotations

from dataclasses import replace

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.manifests.placement import find_architectures, find_hardware_class
from embedserve_operator.settings import EXPORTER, RenderSettings
from embedserve_operator.state.failures import Failure
from embedserve_operator.state.models import ModelReport


def needs_export(report: ModelReport | None) -> bool:
    """Return whether the fetched model can be served only after it was exported."""
    return report is not None and report.needs_export


def find_export_refusal(
    spec: EmbeddingServiceSpec, settings: RenderSettings, report: ModelReport | None
) -> Failure | None:
    """Return why the model cannot be exported here; None when it can be, or need not be."""
    if report is None or not needs_export(report):
        return None
    exporter, hardware = settings.images.get(EXPORTER), find_hardware_class(spec, settings)
    if exporter is None:
        return Failure(
            "ExporterMissing",
            f"{report.source} belongs to no family that the runtime knows: it must be exported by torch, which is in "
            "the CUDA image (no GPU is needed), and none is configured; set runtime.cudaImage in the "
            "chart's values, or run `embedserve convert` with that image on the claim and set spec.cache.readOnly",
            is_transient=False,
        )
    if not find_architectures(hardware, exporter):
        return Failure(
            "ImageLacksArchitecture",
            f"{report.source} is exported by the image {exporter.reference}, which has only "
            f"{' and '.join(exporter.architectures)}, where spec.hardware.class {spec.hardware.class_} runs; choose "
            "another class",
            is_transient=False,
        )
    return None


def choose_conversion_settings(
    spec: EmbeddingServiceSpec, settings: RenderSettings, report: ModelReport | None
) -> RenderSettings:
    """Return the settings of the conversion: those of the image that will serve, except for an export."""
    if not needs_export(report):
        return settings
    exporter = replace(settings.images[EXPORTER], is_exporter=True)
    return replace(settings, images={**settings.images, find_hardware_class(spec, settings).image: exporter})
