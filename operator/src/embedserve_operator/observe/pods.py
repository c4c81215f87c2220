"""This module reads a pod: its progress, why it does not serve, and what it reported about its model.

Pods speak through the termination messages of their containers (JSON, written by the runtime): `fetch`
reports the model when it succeeds, and any container reports a reason and a message when it fails.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from embedserve_operator.api.times import parse_moment
from embedserve_operator.kube.objects import Received, dig, mappings, number, strings, text
from embedserve_operator.manifests.containers import CONFIG_VOLUME, FETCH, RUNTIME
from embedserve_operator.manifests.memory import compute_memory, format_mib
from embedserve_operator.manifests.metadata import FETCHED, REVISION_LABEL, SPACE_LABEL, TEMPLATE_HASH
from embedserve_operator.state.failures import Failure
from embedserve_operator.state.models import ModelReport
from embedserve_operator.state.pods import FetchingPod, PodPhase, PodState

_REASON = re.compile(r"^[A-Z][A-Za-z0-9]{0,63}$")
_MAX_MESSAGE_LENGTH = 2000
_IMAGE_REASONS = {
    "ErrImagePull": True,
    "ImagePullBackOff": True,
    "ImageInspectError": True,
    "RegistryUnavailable": True,
    "ErrImageNeverPull": False,
    "InvalidImageName": False,
}
"""The kubelet's reasons for image problems, each with whether waiting can solve it."""
_MISSING_SECRET = re.compile(r'^secret "[^"]+" not found')
_MISSING_KEY = re.compile(r"^couldn't find key \S+ in Secret")
_VOLUME_REASONS = (
    (re.compile(r'persistentvolumeclaim "[^"]+" not found'), "VolumeClaimMissing"),
    (re.compile(r"unbound immediate PersistentVolumeClaims"), "VolumeClaimUnbound"),
)
"""Patterns of messages of the kubelet and the scheduler that name what is missing."""
_INSUFFICIENT = re.compile(r"Insufficient ([a-z0-9./-]*[a-z0-9])")
"""A pattern of the scheduler's message about a resource that nodes have too little of."""
_MIB = 2**20
_NOT_STARTED = "PodNotStarted"
_NO_IMAGES = "ImageVolumesMissing"
_MAX_START_SECONDS = 120
"""The time in which a node gets a pod's volumes and network ready, including a disk of a cloud."""
_NO_HOST_PATH = re.compile(r'(mkdir|stat) "?"?: no such file or directory')
"""A pattern of what a container runtime without image volumes says: it finds no source for the mount."""
_IMAGE_ADVICE = (
    ". The model is in an image, which only a kubelet with the feature ImageVolume mounts: switch it on, take other "
    "nodes by spec.pod.nodeSelector, or the model from another source"
)
_CREATION_REASONS = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})


def read_pod(pod: Received) -> PodState:
    """Return the state of a pod."""
    phase = _read_phase(pod)
    return PodState(
        name=text(pod, "metadata", "name"),
        revision=text(pod, "metadata", "labels", REVISION_LABEL),
        template_hash=text(pod, "metadata", "annotations", TEMPLATE_HASH),
        config_map=read_mounted_config_map(dig(pod, "spec")),
        phase=phase,
        failure=None if phase in ("Ready", "Ending") else find_failure(pod),
        report=parse_model_report(read_result(pod, FETCH)) or read_annotated_report(pod),
        uid=text(pod, "metadata", "uid"),
        address=text(pod, "status", "podIP"),
        run_id=_read_run_id(pod),
        space_label=text(pod, "metadata", "labels", SPACE_LABEL),
        fetching_pod=read_fetching_pod(pod) if phase == "Fetching" else None,
    )


def read_fetching_pod(pod: Received) -> FetchingPod | None:
    """Return the pod as one that is fetching, for itself or for a Job; None when it is not, or has no address
    yet.
    """
    address = text(pod, "status", "podIP")
    groups = ("containerStatuses", "initContainerStatuses")
    if not address or not any(_is_running(pod, group, FETCH) for group in groups):
        return None
    return FetchingPod(name=text(pod, "metadata", "name"), address=address, run_id=_read_run_id(pod))


def read_annotated_report(pod: Any) -> ModelReport | None:
    """Return what the Job that filled the cache reported, from the annotation of a pod or of a pod template."""
    said = text(pod, "metadata", "annotations", FETCHED)
    return parse_model_report({"model": _parse_json(said)}) if said else None


def _read_run_id(pod: Received) -> str:
    """Return an identifier of one run of the serving container."""
    statuses = mappings(pod, "status", "containerStatuses")
    restarts = next((number(one, "restartCount") for one in statuses if one.get("name") == RUNTIME), 0)
    return f"{text(pod, 'metadata', 'uid')}/{restarts}"


def read_mounted_config_map(pod_spec: Any) -> str:
    """Return the name of the ConfigMap that a pod spec mounts."""
    for volume in mappings(pod_spec, "volumes"):
        if volume.get("name") == CONFIG_VOLUME:
            return text(volume, "configMap", "name")
    return ""


def _read_phase(pod: Received) -> PodPhase:
    if dig(pod, "metadata", "deletionTimestamp") is not None:
        return "Ending"
    if any(
        c.get("type") == "Ready" and c.get("status") == "True" for c in mappings(pod, "status", "conditions")
    ):
        return "Ready"
    if _is_running(pod, "containerStatuses", RUNTIME):
        return "Loading"
    if _is_running(pod, "initContainerStatuses", FETCH):
        return "Fetching"
    return "Pending"


def _is_running(pod: Received, group: str, name: str) -> bool:
    return any(
        status.get("name") == name and dig(status, "state", "running") is not None
        for status in mappings(pod, "status", group)
    )


def find_failure(pod: Received) -> Failure | None:
    """Return what keeps a pod from being ready; None when no reason is known."""
    statuses = [
        *mappings(pod, "status", "initContainerStatuses"),
        *mappings(pod, "status", "containerStatuses"),
    ]
    for status in statuses:
        found = _find_creation_failure(pod, status) or _find_run_failure(pod, status)
        if found is not None:
            return found
    return _find_placement_failure(pod) or _find_pod_end(pod) or _find_start_failure(pod)


def _find_creation_failure(pod: Received, status: Received) -> Failure | None:
    """Return why the container could not be started at all."""
    reason = text(status, "state", "waiting", "reason")
    where = f"container {text(status, 'name')} of pod {text(pod, 'metadata', 'name')}"
    message = text(status, "state", "waiting", "message")
    if reason in _IMAGE_REASONS:
        # The kubelet alternates between trying and pausing; in both, the message of the last attempt is what matters.
        steady = "ImagePullBackOff" if reason == "ErrImagePull" else reason
        cause = message.rpartition("ErrImagePull: ")[2] or "the image cannot be pulled"
        return _build_failure(steady, f"{where}: {cause}", is_transient=_IMAGE_REASONS[reason])
    if reason in _CREATION_REASONS and _mounts_image(pod) and _NO_HOST_PATH.search(message):
        advice = (
            f"the container runtime of node {text(pod, 'spec', 'nodeName')} knows no image volumes: take nodes with "
            "containerd 2.1 or CRI-O 1.31, or newer, or the model from another source"
        )
        return _build_failure(
            _NO_IMAGES, f"{where}: {advice}; the kubelet says: {message}", is_transient=True
        )
    if reason in _CREATION_REASONS:
        return _build_failure(
            _find_creation_reason(message) or reason, f"{where}: {message}", is_transient=True
        )
    return None


def _find_creation_reason(message: str) -> str | None:
    """Return the reason for what the kubelet's message says is missing; None when it does not say."""
    if _MISSING_KEY.search(message):
        return "SecretKeyMissing"
    if _MISSING_SECRET.search(message):
        return "SecretMissing"
    return None


def _find_run_failure(pod: Received, status: Received) -> Failure | None:
    """Return how the container failed.

    A later run that is still going on does not make the failure untrue.
    """
    ended = dig(status, "state", "terminated")
    if ended is None:
        ended = dig(status, "lastState", "terminated")
    if ended is None or number(ended, "exitCode") == 0:
        return None
    name = text(status, "name")
    where = f"container {name} of pod {text(pod, 'metadata', 'name')}"
    if text(ended, "reason") == "OOMKilled":
        loops = text(status, "state", "waiting", "reason") == "CrashLoopBackOff"
        return _build_failure("OOMKilled", f"{where} {_describe_memory(pod, name)}", is_transient=not loops)
    reported = _parse_reported_failure(text(ended, "message"))
    if reported is not None:
        origin = _describe_named_secrets(pod, name, reported.message)
        return replace(reported, message=reported.message + origin, ended_at=text(ended, "finishedAt"))
    restarts = number(status, "restartCount")
    message = (
        f"{where} ended with exit code {number(ended, 'exitCode')} ({restarts} restarts so far); see its log"
    )
    return _build_failure("ContainerFailed", message, is_transient=True)


def _describe_memory(pod: Received, container: str) -> str:
    """Describe the limit that was too low, and what the model needs."""
    limit = text(_read_resources(pod, container), "limits", "memory")
    bound = f"its limit of {limit}" if limit else "the node's memory"
    report = parse_model_report(read_result(pod, FETCH)) or read_annotated_report(pod)
    size = report.size_bytes if report is not None else None
    if size is None:
        return f"needed more memory than {bound}; raise spec.resources.limits.memory"
    return (
        f"needed more memory than {bound} (its model's files alone are {size / _MIB:.0f} MiB); raise "
        f"spec.resources.limits.memory: about {format_mib(compute_memory(size))} are needed to serve it"
    )


def _describe_named_secrets(pod: Received, container: str, message: str) -> str:
    """Describe the Secrets and keys behind the environment variables that a message of the runtime names,
    since the runtime cannot know them.
    """
    found = []
    for variable in mappings(_find_container(pod, container), "env"):
        ref = dig(variable, "valueFrom", "secretKeyRef")
        if ref is not None and re.search(rf"\b{re.escape(text(variable, 'name'))}\b", message):
            found.append(f"{text(variable, 'name')} is key {text(ref, 'key')} of Secret {text(ref, 'name')}")
    return f" ({'; '.join(found)})" if found else ""


def _find_container(pod: Received, name: str) -> Received | None:
    containers = [*mappings(pod, "spec", "initContainers"), *mappings(pod, "spec", "containers")]
    return next((found for found in containers if found.get("name") == name), None)


def _read_resources(pod: Received, container: str) -> Any:
    return dig(_find_container(pod, container), "resources")


def _parse_reported_failure(message: str) -> Failure | None:
    """Return what the runtime wrote about its own end; None when it is not in the agreed form."""
    content = _parse_json(message)
    reason = text(content, "reason")
    if not _REASON.match(reason):
        return None
    return _build_failure(reason, text(content, "message"), is_transient=dig(content, "retryable") is True)


def _find_placement_failure(pod: Received) -> Failure | None:
    for condition in mappings(pod, "status", "conditions"):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            reason = text(condition, "reason")
            said = text(condition, "message")
            message = f"pod {text(pod, 'metadata', 'name')}: {said}{_describe_requests(pod, said)}"
            for pattern, missing in _VOLUME_REASONS:
                if pattern.search(said):
                    return _build_failure(missing, message, is_transient=True)
            placed = reason if _REASON.match(reason) else "Unschedulable"
            return replace(_build_failure(placed, message, is_transient=True), is_unscheduled=True)
    return None


def _describe_requests(pod: Received, said: str) -> str:
    """Describe how much the pod requests of the resources that the scheduler found too little of."""
    requests = dig(_read_resources(pod, RUNTIME), "requests") or {}
    asked = [f"{name} {requests[name]}" for name in _INSUFFICIENT.findall(said) if name in requests]
    return f" The pod asks for {' and '.join(dict.fromkeys(asked))}" if asked else ""


def _find_start_failure(pod: Received) -> Failure | None:
    """Return that a node has the pod but runs none of its containers.

    Kubernetes gives the reason in events only.
    """
    conditions = {text(one, "type"): one for one in mappings(pod, "status", "conditions")}
    since = parse_moment(text(conditions.get("PodScheduled"), "lastTransitionTime"))
    if since is None or text(conditions.get("PodReadyToStartContainers"), "status") != "False":
        return None
    name, node = text(pod, "metadata", "name"), text(pod, "spec", "nodeName")
    message = (
        f"pod {name}: node {node} has not got its volumes and its network ready for {_MAX_START_SECONDS} seconds and "
        f"more{_IMAGE_ADVICE if _mounts_image(pod) else ''}; `kubectl describe pod {name}` says why"
    )
    found = _build_failure(_NO_IMAGES if _mounts_image(pod) else _NOT_STARTED, message, is_transient=True)
    return replace(found, effective_from=since + _MAX_START_SECONDS)


def _mounts_image(pod: Received) -> bool:
    return any(dig(volume, "image") is not None for volume in mappings(pod, "spec", "volumes"))


def _find_pod_end(pod: Received) -> Failure | None:
    """Return why the pod as a whole was ended, for example evicted; its Deployment makes another one."""
    if text(pod, "status", "phase") != "Failed":
        return None
    reason = text(pod, "status", "reason")
    message = f"pod {text(pod, 'metadata', 'name')}: {text(pod, 'status', 'message') or 'failed'}"
    return _build_failure(reason if _REASON.match(reason) else "PodFailed", message, is_transient=True)


def _build_failure(reason: str, message: str, *, is_transient: bool) -> Failure:
    if len(message) > _MAX_MESSAGE_LENGTH:
        message = message[: _MAX_MESSAGE_LENGTH - 1] + "…"
    return Failure(reason=reason, message=message, is_transient=is_transient)


def read_result(pod: Received, container: str) -> Any:
    """Return what a container reported when it ended successfully; None as long as there is nothing."""
    for group in ("initContainerStatuses", "containerStatuses"):
        for status in mappings(pod, "status", group):
            ended = dig(status, "state", "terminated")
            if status.get("name") == container and ended is not None and number(ended, "exitCode") == 0:
                return _parse_json(text(ended, "message"))
    return None


def parse_model_report(result: Any) -> ModelReport | None:
    """Return what a fetch reported at its end, or None when it reported nothing of the kind."""
    model = dig(result, "model")
    if model is None:
        return None
    return ModelReport(
        source=text(model, "source"),
        revision=text(model, "revision") or None,
        digest=text(model, "digest") or None,
        size_bytes=number(model, "sizeBytes") or None,
        dimensions=number(model, "dimensions") or None,
        vector_space=text(model, "vectorSpace") or None,
        licence=text(model, "licence") or None,
        outputs=strings(model, "outputs"),
        needs_export=dig(model, "foreign") is True,
        onnx_outputs=strings(model, "onnxOutputs") if dig(model, "onnxOutputs") is not None else None,
    )


def _parse_json(message: str) -> Any:
    try:
        return json.loads(message)
    except ValueError:
        return None
