"""Builds the Jobs that fill a volume of models: one fetches, the other converts. Where there is no volume, a Job plans
what the pods need.

They run where the pods of the service may run, since the first pod that uses some volumes decides forever
where they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.kube.objects import Manifest, compute_short_hash
from embedserve_operator.manifests.containers import build_task_container
from embedserve_operator.manifests.deployment import build_accounts, build_pod_volumes, build_security_context
from embedserve_operator.manifests.mesh import NO_SIDECAR_ANNOTATIONS, NO_SIDECAR_LABELS
from embedserve_operator.manifests.metadata import TASK_LABEL, TEMPLATE_HASH, build_labels, build_metadata
from embedserve_operator.manifests.placement import build_placement
from embedserve_operator.manifests.pod_inputs import PodInputs
from embedserve_operator.manifests.volume import ModelVolume, add_colocation, build_volume_labels
from embedserve_operator.state.jobs import JobTask
from embedserve_operator.state.resource import Resource

BACKOFF_LIMITS: Mapping[JobTask, int] = {"plan": 1, "fetch": 8, "convert": 2}
"""The number of further attempts after the first; the pauses between them grow from 10 s to 6 min.

A source may be away for half an hour; a conversion that has failed twice will fail again. Pods start without a plan
that could not be made.
"""
_PLAN_DEADLINE_SECONDS = 300
"""The seconds after which pods start without a plan, for example where its pod finds no node."""
RETENTION_SECONDS = 3600
"""The seconds that a Job which has ended stays, with its log. Its result is kept in the status."""
INVALID_SETTINGS_EXIT_CODE = 78
"""The exit code of the runtime's commands when their settings are wrong (EX_CONFIG of sysexits.h)."""
_MAX_CLAIM_LENGTH = 40


def build_job_name(resource: Resource, volume: ModelVolume | None, task: JobTask, inputs: object) -> str:
    """Return the name of the Job that works on some inputs.

    On a claim that several services use, it begins with the name of the claim, and so is the same for all
    of them.
    """
    owner = resource.key.name
    if volume is not None and not volume.is_own:
        owner = volume.claim[:_MAX_CLAIM_LENGTH].strip("-.")
    return f"{owner}-{task}-{compute_short_hash(inputs)}"


def build_job(pods: PodInputs, task: JobTask, name: str) -> Manifest:
    """Return a Job. It is created and never changed: another pod template is another Job of the same name."""
    resource, spec = pods.resource, pods.spec
    task_labels = {TASK_LABEL: task, **build_volume_labels(pods.volume)}
    meta = build_metadata(resource, name)
    meta["labels"] = {**meta["labels"], **task_labels}
    # The hash leaves out which service the Job is for, since services that share a claim want the same Job.
    shared = replace(
        pods,
        resource=replace(resource, key=resource.key._replace(name="")),
        config=pods.config.removeprefix(resource.key.name),
    )
    labels, annotations = _build_pod_labels(pods, task), _build_pod_annotations(spec)
    meta["annotations"] = {TEMPLATE_HASH: compute_short_hash([_build_pod_spec(shared, task), annotations])}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta,
        "spec": {
            "backoffLimit": BACKOFF_LIMITS[task],
            **({"activeDeadlineSeconds": _PLAN_DEADLINE_SECONDS} if task == "plan" else {}),
            "ttlSecondsAfterFinished": RETENTION_SECONDS,
            # A drained node is not a failure; wrong settings fail at every attempt.
            "podFailurePolicy": {
                "rules": [
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                    {
                        "action": "FailJob",
                        "onExitCodes": {
                            "containerName": task,
                            "operator": "In",
                            "values": [INVALID_SETTINGS_EXIT_CODE],
                        },
                    },
                ]
            },
            "template": {
                "metadata": {"labels": labels, "annotations": annotations},
                "spec": _build_pod_spec(pods, task),
            },
        },
    }


def _build_pod_labels(pods: PodInputs, task: JobTask) -> dict[str, str]:
    """Return the labels of the pods of a Job."""
    return {
        **(pods.spec.pod.labels or {}),
        **NO_SIDECAR_LABELS,
        **(pods.spec.jobs.labels or {}),
        **build_labels(pods.resource),
        TASK_LABEL: task,
        **build_volume_labels(pods.volume),
    }


def _build_pod_annotations(spec: EmbeddingServiceSpec) -> dict[str, str]:
    """Return the annotations of the pods of a Job.

    A sidecar that runs on when the task has ended would keep the Job from ending, so that there is none unless the user
    asks for it.
    """
    return {**(spec.pod.annotations or {}), **NO_SIDECAR_ANNOTATIONS, **(spec.jobs.annotations or {})}


def read_job_template_hash(manifest: Manifest) -> str:
    """Return the hash that `build_job` put in."""
    return str(manifest["metadata"]["annotations"][TEMPLATE_HASH])


def _build_pod_spec(pods: PodInputs, task: JobTask) -> Manifest:
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **_build_placement(pods),
        **build_accounts(pods.spec),
        "securityContext": build_security_context(pods.settings, pods.volume),
        "containers": [build_task_container(pods, task)],
        "volumes": build_pod_volumes(pods, task),
    }


def _build_placement(pods: PodInputs) -> Manifest:
    """Return where the service's pods may run.

    A Job uses no accelerator, so the hardware class gives it no RuntimeClass that would give it all of them.
    """
    fields = build_placement(pods.spec, pods.settings, {})
    del fields["topologySpreadConstraints"]
    return {**fields, "affinity": add_colocation(fields["affinity"], pods.volume)}
