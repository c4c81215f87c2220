"""The Jobs that fill a volume of models: one fetches, one converts.

They run where the service's pods may run: of some volumes the first pod decides for ever where they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.nodes import ClusterFacts
from embedserve_operator.settings import RenderSettings
from embedserve_operator.specs.containers import task_container
from embedserve_operator.specs.deployment import accounts, pod_volumes, security_context
from embedserve_operator.specs.metadata import TASK_LABEL, TEMPLATE_HASH, labels, metadata
from embedserve_operator.specs.placement import placement
from embedserve_operator.specs.volume import ModelVolume, together, volume_labels
from embedserve_operator.wire import Manifest, short_hash
from embedserve_operator.world import JobTask, Resource

BACKOFF_LIMITS: Mapping[JobTask, int] = {"fetch": 8, "convert": 2}
"""Further tries after the first; the pauses between them grow from 10 s to 6 min. A source may be away for half an
hour; a conversion that has failed twice will fail again."""
KEPT_SECONDS = 3600
"""A Job that has ended stays for so long, with its log. What came of it is in the status."""
WRONG_SETTINGS = 78
"""Exit code of the runtime's commands when their settings are wrong (EX_CONFIG of sysexits.h)."""
_LONGEST_CLAIM = 40


def job_name(resource: Resource, volume: ModelVolume, task: JobTask, inputs: object) -> str:
    """Name of the Job that works on some inputs.

    On a claim that several services use it begins with the claim's name, and so is the same for all of them.
    """
    owner = resource.key.name if volume.is_own else volume.claim[:_LONGEST_CLAIM].strip("-.")
    return f"{owner}-{task}-{short_hash(inputs)}"


def job(
    resource: Resource,
    spec: EmbeddingServiceSpec,
    settings: RenderSettings,
    cluster: ClusterFacts,
    *,
    task: JobTask,
    name: str,
    revision: str,
    config: str,
    volume: ModelVolume,
) -> Manifest:
    """A Job. It is created and never changed: another pod template is another Job of the same name."""
    own = {TASK_LABEL: task, **volume_labels(volume)}
    pods = _pods(
        resource, spec, settings, cluster, task=task, revision=revision, config=config, volume=volume
    )
    meta = metadata(resource, name)
    meta["labels"] = {**meta["labels"], **own}
    # For whom it is, is no part of what was tried: services that share a claim want the same Job.
    nobody = replace(resource, key=resource.key._replace(name=""))
    content = config.removeprefix(resource.key.name)
    tried = _pods(
        nobody, spec, settings, cluster, task=task, revision=revision, config=content, volume=volume
    )
    meta["annotations"] = {TEMPLATE_HASH: short_hash([tried, spec.pod.annotations or {}])}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta,
        "spec": {
            "backoffLimit": BACKOFF_LIMITS[task],
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            # A drained node is no failure; wrong settings fail at every try.
            "podFailurePolicy": {
                "rules": [
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                    {
                        "action": "FailJob",
                        "onExitCodes": {"containerName": task, "operator": "In", "values": [WRONG_SETTINGS]},
                    },
                ]
            },
            "template": {
                "metadata": {
                    "labels": {**(spec.pod.labels or {}), **labels(resource), **own},
                    "annotations": dict(spec.pod.annotations or {}),
                },
                "spec": pods,
            },
        },
    }


def job_template(manifest: Manifest) -> str:
    """The hash that `job` put in."""
    return str(manifest["metadata"]["annotations"][TEMPLATE_HASH])


def _pods(
    resource: Resource,
    spec: EmbeddingServiceSpec,
    settings: RenderSettings,
    cluster: ClusterFacts,
    *,
    task: JobTask,
    revision: str,
    config: str,
    volume: ModelVolume,
) -> Manifest:
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **_place(spec, settings, cluster, volume),
        **accounts(spec),
        "securityContext": security_context(volume),
        "containers": [task_container(resource, spec, settings, task=task, revision=revision)],
        "volumes": pod_volumes(spec, config, volume),
    }


def _place(
    spec: EmbeddingServiceSpec, settings: RenderSettings, cluster: ClusterFacts, volume: ModelVolume
) -> Manifest:
    """Where the service's pods may run. A Job uses no accelerator, so it gets no runtime that would show it all."""
    fields = placement(spec, settings, cluster, {})
    del fields["topologySpreadConstraints"]
    if spec.pod.runtime_class_name is None:
        fields.pop("runtimeClassName", None)
    return {**fields, "affinity": together(fields["affinity"], volume)}
