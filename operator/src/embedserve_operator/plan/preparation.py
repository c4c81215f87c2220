"""What has to happen to the volume of models before pods can serve from it: a claim, a fetch, a conversion."""

from __future__ import annotations

from dataclasses import dataclass, replace

from embedserve_operator.api.status import ConversionStatus, FetchStatus
from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.plan.cache import converts, insists, outputs_refusal, used_claim
from embedserve_operator.plan.exporting import converting, export_refusal, is_exported
from embedserve_operator.plan.jobs import Step, conversion_status, fetch_status, model_report, step
from embedserve_operator.plan.revision import declared, revision_of
from embedserve_operator.settings import RenderSettings
from embedserve_operator.specs.configmap import config_file
from embedserve_operator.specs.job import job, job_name
from embedserve_operator.specs.network_policy import fetch_policy
from embedserve_operator.specs.placement import image_of
from embedserve_operator.specs.runtime_config import convert_yaml, fetch_yaml
from embedserve_operator.specs.volume import ModelVolume, claim
from embedserve_operator.wire import Manifest
from embedserve_operator.world import Failure, JobFacts, JobTask, ModelReport, World

NOT_STORED = "ModelNotStored"
"""The runtime's word for a volume that does not hold the model, or not all of it."""


@dataclass(frozen=True, slots=True)
class Preparation:
    """The volume of models on its way."""

    ready: bool = True
    """Pods can serve from it."""
    children: tuple[Manifest, ...] = ()
    start: tuple[Manifest, ...] = ()
    """Jobs that do not exist yet."""
    remove: tuple[JobFacts, ...] = ()
    failure: Failure | None = None
    words: str = ""
    """What is going on; empty when nothing is."""
    fetch: FetchStatus | None = None
    conversion: ConversionStatus | None = None
    clears: bool = False
    """No pod of ours may mount the volume before the next step: it takes one pod only."""

    @property
    def serves(self) -> bool:
        """The pods may be there."""
        return self.ready and not self.clears

    @property
    def report(self) -> ModelReport | None:
        """What the Jobs found out about the model that the spec asks for."""
        return model_report(self.fetch, self.conversion)


READY = Preparation()


def prepare(
    world: World, spec: EmbeddingServiceSpec, settings: RenderSettings, volume: ModelVolume | None
) -> Preparation:
    """How far the volume is, and what to do next."""
    if volume is None:
        return READY
    children = _standing(world, spec, settings, volume)
    there = used_claim(world)
    if volume.is_filled or spec.suspend:
        before = world.resource.status
        return Preparation(children=children, fetch=before.fetch, conversion=before.conversion)
    if world.claims is not None and there is None:
        return _without_claim(children, volume)
    place = there.uid if there is not None else volume.claim
    fetching = _fetch_step(world, spec, settings, volume, place)
    fetch = fetch_status(
        fetching.step, world.job(fetching.step.name), world.resource.status.fetch, world.resource
    )
    steps = [fetching]
    conversion = None
    report = model_report(fetch)
    refused = None
    if converts(spec, settings):
        refused = outputs_refusal(spec, report) or export_refusal(spec, settings, report)
    # Where nothing of the cluster is known, all that will be made is shown.
    is_known = world.claims is not None
    if converts(spec, settings) and refused is None and (fetch.state == "Succeeded" or not is_known):
        by = converting(spec, settings, report)
        steps.append(_convert_step(world, spec, by, volume, (place, fetch)))
        made = steps[-1].step
        conversion = conversion_status(
            made,
            world.job(made.name),
            world.resource.status.conversion,
            world.resource,
            spec,
            exported=is_exported(report),
        )
    insisted = insists(spec) or is_exported(report)
    found = _put_together(world, steps, children, insisted=insisted)
    if refused is not None:
        found = replace(found, ready=False, failure=refused)
    return _one_at_a_time(
        replace(found, ready=found.ready or not is_known, fetch=fetch, conversion=conversion),
        world,
        spec,
        volume,
    )


@dataclass(frozen=True, slots=True)
class _Planned:
    step: Step
    config: Manifest


def _standing(
    world: World, spec: EmbeddingServiceSpec, settings: RenderSettings, volume: ModelVolume
) -> tuple[Manifest, ...]:
    """What is there as long as the cache is."""
    found = []
    if spec.cache is not None and spec.cache.volume is not None:
        found.append(claim(world.resource, spec.cache.volume, volume))
    policy = None if volume.is_filled else fetch_policy(world.resource, spec, settings)
    return (*found, *([policy] if policy is not None else []))


def _without_claim(children: tuple[Manifest, ...], volume: ModelVolume) -> Preparation:
    if volume.is_own:
        return Preparation(ready=False, children=children, words=f"claim {volume.claim} is being made")
    words = f"there is no PersistentVolumeClaim {volume.claim}: make it, or correct spec.cache.claimName"
    return Preparation(
        ready=False, children=children, failure=Failure("VolumeClaimMissing", words, heals=True)
    )


def _fetch_step(
    world: World, spec: EmbeddingServiceSpec, settings: RenderSettings, volume: ModelVolume, place: str
) -> _Planned:
    """The fetch. What shapes the vectors is among its inputs, since it reports their identity."""
    inputs = {"claim": place, "model": declared(spec)}
    content = fetch_yaml(spec, settings, converts=converts(spec, settings))
    stale_since = _lost_at(world, revision_of(spec))
    return _planned(
        world,
        spec,
        settings,
        volume,
        task="fetch",
        inputs=inputs,
        content=content,
        stale_since=stale_since,
    )


def _lost_at(world: World, revision: str) -> str:
    """When somebody last looked for the model on the volume and it was not whole; empty when nobody did."""
    failures = [
        *(pod.failure for pod in world.pods_of(revision)),
        *(job.failure for job in world.jobs if job.task == "convert" and job.owner == world.resource.uid),
    ]
    return max((one.at for one in failures if one is not None and one.reason == NOT_STORED), default="")


def _convert_step(
    world: World,
    spec: EmbeddingServiceSpec,
    settings: RenderSettings,
    volume: ModelVolume,
    fetched: tuple[str, FetchStatus],
) -> _Planned:
    """The conversion, on the class of nodes that will serve, by the image of the settings. What was fetched anew is
    converted anew. fetched: onto which claim, and what came of it."""
    place, fetch = fetched
    inputs = {
        "claim": place,
        "fetched": fetch.digest or fetch.revision,
        "model": declared(spec),
        "onnx": spec.onnx.as_wire() if spec.onnx is not None else {},
        "class": spec.hardware.class_,
        "image": image_of(spec, settings).reference,
    }
    content = convert_yaml(spec, settings)
    return _planned(
        world,
        spec,
        settings,
        volume,
        task="convert",
        inputs=inputs,
        content=content,
        stale_since=fetch.finished_at or "",
    )


def _planned(
    world: World,
    spec: EmbeddingServiceSpec,
    settings: RenderSettings,
    volume: ModelVolume,
    *,
    task: JobTask,
    inputs: object,
    content: str,
    stale_since: str,
) -> _Planned:
    config = config_file(world.resource, content)
    status = world.resource.status
    manifest = job(
        world.resource,
        spec,
        settings,
        world.cluster,
        task=task,
        name=job_name(world.resource, volume, task, inputs),
        revision=revision_of(spec),
        config=config["metadata"]["name"],
        volume=volume,
    )
    before = status.fetch if task == "fetch" else status.conversion
    found = step(
        manifest,
        task,
        world.job(manifest["metadata"]["name"]),
        before,
        world.resource,
        stale_since=stale_since,
    )
    return _Planned(found, config)


def _put_together(
    world: World, planned: list[_Planned], children: tuple[Manifest, ...], *, insisted: bool
) -> Preparation:
    """insisted: nothing is served without the conversion."""
    steps = [one.step for one in planned]
    open_steps = [one for one in planned if not _is_over(one.step, insisted=insisted)]
    under_way = open_steps[0].step if open_steps else None
    return Preparation(
        ready=not open_steps,
        children=(*children, *(one.config for one in open_steps)),
        start=tuple(found.manifest for found in steps if found.start),
        remove=(
            *(found.remove for found in steps if found.remove is not None),
            *_unwanted(world, tuple(found.name for found in steps)),
        ),
        failure=under_way.failure if under_way is not None else None,
        words=under_way.words if under_way is not None else "",
    )


def _is_over(found: Step, *, insisted: bool) -> bool:
    """Whether pods need not wait for it: a model that could not be converted is served as it is."""
    if found.state == "Succeeded":
        return True
    is_vain = found.failure is not None and not found.failure.heals
    return found.task == "convert" and is_vain and not insisted


def _unwanted(world: World, wanted: tuple[str, ...]) -> tuple[JobFacts, ...]:
    """Jobs of this resource that still run for what is asked for no longer. What they have fetched is kept."""
    return tuple(
        found
        for found in world.jobs
        if found.owner == world.resource.uid and found.state == "Running" and found.name not in wanted
    )


def _one_at_a_time(
    found: Preparation, world: World, spec: EmbeddingServiceSpec, volume: ModelVolume
) -> Preparation:
    """On a volume for one pod, what serves goes before a Job or another revision comes."""
    if not volume.one_pod:
        return found
    others = any(one.revision != revision_of(spec) for one in world.deployments)
    clears = not found.ready or others
    occupied = bool(world.deployments) or bool(world.pods)
    return replace(found, clears=clears, start=() if clears and occupied else found.start)
