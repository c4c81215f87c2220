"""Models of no family: their conversion is an export by torch, which the image for CPUs does not have."""

from __future__ import annotations

from dataclasses import replace

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.settings import EXPORTER, RenderSettings
from embedserve_operator.specs.placement import architectures, hardware_of
from embedserve_operator.world import Failure, ModelReport


def is_exported(report: ModelReport | None) -> bool:
    """Whether the model that was fetched can be served once it was exported, and not before."""
    return report is not None and report.foreign


def export_refusal(
    spec: EmbeddingServiceSpec, settings: RenderSettings, report: ModelReport | None
) -> Failure | None:
    """Why the model cannot be exported here; None when it can, or need not."""
    if report is None or not is_exported(report):
        return None
    exporter, hardware = settings.images.get(EXPORTER), hardware_of(spec, settings)
    if exporter is None:
        return Failure(
            "ExporterMissing",
            f"{report.source} is of no family that the runtime knows: its conversion is an export by torch, which is "
            "in the image for CUDA (no GPU is needed), and the operator knows none; set runtime.cudaImage in the "
            "chart's values, or run `embedserve convert` with that image on the claim and set spec.cache.readOnly",
            heals=False,
        )
    if not architectures(hardware, exporter):
        return Failure(
            "ImageLacksArchitecture",
            f"{report.source} is exported by the image {exporter.reference}, which has only "
            f"{' and '.join(exporter.architectures)}, where spec.hardware.class {spec.hardware.class_} runs; take "
            "another class",
            heals=False,
        )
    return None


def converting(
    spec: EmbeddingServiceSpec, settings: RenderSettings, report: ModelReport | None
) -> RenderSettings:
    """Settings of the conversion: by the image that will serve, but for an export."""
    if not is_exported(report):
        return settings
    images = {**settings.images, hardware_of(spec, settings).image: settings.images[EXPORTER]}
    return replace(settings, images=images)
