"""What a spec's own revision consists of: its configuration, its Deployment, and how far its model is."""

from __future__ import annotations

from dataclasses import dataclass

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.plan.cache import model_volume
from embedserve_operator.plan.preparation import Preparation, prepare
from embedserve_operator.plan.revision import revision_of
from embedserve_operator.plan.rollout import Wanted
from embedserve_operator.plan.scaling import replicas_now
from embedserve_operator.plan.sizes import made_for_size
from embedserve_operator.plan.spaces import space_of
from embedserve_operator.settings import RenderSettings
from embedserve_operator.specs.configmap import config_map
from embedserve_operator.specs.deployment import deployment, template_hash
from embedserve_operator.specs.metadata import fingerprint_of
from embedserve_operator.specs.volume import ModelVolume
from embedserve_operator.wire import Manifest
from embedserve_operator.world import Fetched, World


@dataclass(frozen=True, slots=True)
class Made:
    """A revision as its spec wants it."""

    config: Manifest
    pods: Manifest
    """Its Deployment."""
    wanted: Wanted
    volume: ModelVolume | None
    prepared: Preparation

    @property
    def fetched(self) -> Fetched | None:
        """What a Job has found out about the model, if it has."""
        report = self.prepared.report
        return None if report is None else Fetched(self.wanted.revision, report)


def made_of(world: World, spec: EmbeddingServiceSpec, settings: RenderSettings) -> Made:
    """What the revision that a spec declares consists of."""
    volume = model_volume(world, spec)
    prepared = prepare(world, spec, settings, volume)
    report = prepared.report
    revision = revision_of(spec)
    config = config_map(world.resource, spec, settings)

    def pods_for(model_bytes: int | None) -> Manifest:
        return deployment(
            world.resource,
            spec,
            settings,
            world.cluster,
            revision=revision,
            config=config["metadata"]["name"],
            space=space_of(world, revision) or (report.vector_space if report is not None else None),
            volume=volume,
            report=report,
            model_bytes=model_bytes,
        )

    pods = made_for_size(world, revision, report, pods_for)
    # What is not prepared cannot be complete.
    fingerprint = fingerprint_of(pods) if prepared.ready else ""
    wanted = Wanted(revision, fingerprint, template_hash(pods), replicas_now(world, spec, revision))
    return Made(config, pods, wanted, volume, prepared)
