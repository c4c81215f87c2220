"""Reads a pod: its progress, why it does not serve, and what it reported about its model.

Pods speak through the termination messages of their containers (`observe.reports`): `fetch` reports the model
when it succeeds, and any container reports a reason and a message when it fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from embedserve_operator.api.quantities import MIB
from embedserve_operator.api.times import parse_moment
from embedserve_operator.kube.views.objects import Metadata, find_condition
from embedserve_operator.kube.views.pods import ContainerStatus, Pod, PodSpec, SecretVariable
from embedserve_operator.manifests.containers import CONFIG_VOLUME, FETCH, KEYS_VOLUME, RUNTIME
from embedserve_operator.manifests.metadata import FETCHED, REVISION_LABEL, SPACE_LABEL, TEMPLATE_HASH
from embedserve_operator.manifests.runtime_config import KEYS_FILE, KEYS_PATH
from embedserve_operator.observe.reports import (
    ReportedModel,
    TerminationMessage,
    is_reason,
    read_model_report,
)
from embedserve_operator.observe.shortages import advise_after_eviction
from embedserve_operator.state.failures import Failure, MemoryShortage
from embedserve_operator.state.models import ModelReport
from embedserve_operator.state.pods import FetchingPod, PodState, ServingPhase

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
_NO_TEXT = re.compile(r"invalid UTF-8|nul+ byte|contains nul", re.IGNORECASE)
"""A pattern of what kubelets and container runtimes say about a variable whose value is binary."""
_VOLUME_REASONS = (
    (re.compile(r'persistentvolumeclaim "[^"]+" not found'), "VolumeClaimMissing"),
    (re.compile(r'persistentvolumeclaim "[^"]+" is being deleted'), "VolumeClaimTerminating"),
    (re.compile(r"unbound immediate PersistentVolumeClaims"), "VolumeClaimUnbound"),
)
"""Patterns of messages of the kubelet and the scheduler that name what is missing."""
_INSUFFICIENT = re.compile(r"Insufficient ([a-z0-9./-]*[a-z0-9])")
"""A pattern of the scheduler's message about a resource that nodes have too little of."""
_STORAGE = "ephemeral-storage"
_NOT_STARTED = "PodNotStarted"
_NO_IMAGES = "ImageVolumesMissing"
_MAX_START_SECONDS = 120
"""The time in which a node gets a pod's volumes and network ready, including a disk of a cloud."""
_NO_HOST_PATH = re.compile(r'(mkdir|stat) "?"?: no such file or directory')
"""A pattern of what a container runtime without image volumes says: it finds no source for the mount."""
_IMAGE_ADVICE = (
    ". The model is in an image, which only a kubelet with the feature gate ImageVolume mounts: enable it, choose "
    "other nodes with spec.pod.nodeSelector, or use another source"
)
_CREATION_REASONS = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})


def read_pod(pod: Pod) -> PodState:
    """Return the state of a pod."""
    phase = _read_phase(pod)
    metadata = pod.metadata
    return PodState(
        name=metadata.name,
        revision=metadata.labels.get(REVISION_LABEL, ""),
        template_hash=metadata.annotations.get(TEMPLATE_HASH, ""),
        config_map=read_mounted_config_map(pod.spec),
        phase=phase,
        failure=None if phase in ("Ready", "Terminating") else find_failure(pod),
        report=_find_model_report(pod),
        uid=metadata.uid,
        address=pod.status.pod_ip,
        run_id=_read_run_id(pod),
        space_label=metadata.labels.get(SPACE_LABEL, ""),
        fetching_pod=read_fetching_pod(pod) if phase == "Fetching" else None,
    )


def read_fetching_pod(pod: Pod) -> FetchingPod | None:
    """Return the pod as one that is fetching, for itself or for a Job; None when it is not, or has no address
    yet.
    """
    if not pod.status.pod_ip or not _is_running(pod.status.all_container_statuses, FETCH):
        return None
    return FetchingPod(name=pod.metadata.name, address=pod.status.pod_ip, run_id=_read_run_id(pod))


def read_annotated_report(metadata: Metadata) -> ModelReport | None:
    """Return what the Job that filled the cache reported, from the annotation of a pod or of a pod template."""
    reported = ReportedModel.parse_json(metadata.annotations.get(FETCHED, ""))
    return read_model_report(reported) if reported.source else None


def _read_run_id(pod: Pod) -> str:
    """Return an identifier of one run of the serving container."""
    statuses = pod.status.container_statuses
    restarts = next((status.restart_count for status in statuses if status.name == RUNTIME), 0)
    return f"{pod.metadata.uid}/{restarts}"


def read_mounted_config_map(pod_spec: PodSpec) -> str:
    """Return the name of the ConfigMap that a pod spec mounts."""
    config_volume = next((volume for volume in pod_spec.volumes if volume.name == CONFIG_VOLUME), None)
    return (
        config_volume.config_map.name
        if config_volume is not None and config_volume.config_map is not None
        else ""
    )


def _read_phase(pod: Pod) -> ServingPhase:
    if pod.metadata.is_being_deleted:
        return "Terminating"
    if pod.is_ready:
        return "Ready"
    if _is_running(pod.status.container_statuses, RUNTIME):
        return "Loading"
    if _is_running(pod.status.init_container_statuses, FETCH):
        return "Fetching"
    return "Pending"


def _is_running(statuses: Iterable[ContainerStatus], name: str) -> bool:
    return any(status.name == name and status.is_running for status in statuses)


def find_failure(pod: Pod) -> Failure | None:
    """Return what keeps a pod from being ready; None when no reason is known."""
    for status in pod.status.all_container_statuses:
        failure = _find_creation_failure(pod, status) or _find_run_failure(pod, status)
        if failure is not None:
            return failure
    return _find_placement_failure(pod) or _find_pod_end(pod) or _find_start_failure(pod)


def _find_creation_failure(pod: Pod, status: ContainerStatus) -> Failure | None:
    """Return why the container could not be started at all."""
    reason, message = status.state.waiting.reason, status.state.waiting.message
    subject = _describe_container(pod, status)
    if reason in _IMAGE_REASONS:
        # The kubelet alternates between trying and pausing; in both, the message of the last attempt is what matters.
        steady = "ImagePullBackOff" if reason == "ErrImagePull" else reason
        cause = message.rpartition("ErrImagePull: ")[2] or "the image cannot be pulled"
        return _build_failure(steady, f"{subject}: {cause}", is_transient=_IMAGE_REASONS[reason])
    if reason in _CREATION_REASONS and pod.spec.image_volumes and _NO_HOST_PATH.search(message):
        advice = (
            f"the container runtime of node {pod.spec.node_name} does not support image volumes: use nodes with "
            "containerd 2.1 or CRI-O 1.31, or newer, or another source"
        )
        return _build_failure(
            _NO_IMAGES, f"{subject}: {advice}; the kubelet says: {message}", is_transient=True
        )
    secrets = _list_secret_variables(pod, status.name)
    if reason in _CREATION_REASONS and secrets and _NO_TEXT.search(message):
        return _build_failure(
            "ConfigInvalid",
            # The message itself is left out: it may quote the value.
            f"{subject}: a value from a Secret is binary, but has to be text: {'; '.join(secrets)}; correct the Secret",
            is_transient=False,
        )
    if reason in _CREATION_REASONS:
        return _build_failure(
            _find_creation_reason(message) or reason, f"{subject}: {message}", is_transient=True
        )
    return None


def _list_secret_variables(pod: Pod, name: str) -> list[str]:
    """Return which key of which Secret each variable of a container comes from, as far as one does."""
    container = pod.spec.find_container(name)
    return [
        _describe_secret_variable(variable) for variable in (container.env if container is not None else ())
    ]


def _describe_secret_variable(variable: SecretVariable) -> str:
    ref = variable.value_from.secret_key_ref
    return f"{variable.name} is key {ref.key} of Secret {ref.name}"


def _describe_container(pod: Pod, status: ContainerStatus) -> str:
    return f"container {status.name} of pod {pod.metadata.name}"


def _find_creation_reason(message: str) -> str | None:
    """Return the reason for what the kubelet's message says is missing; None when it does not say."""
    if _MISSING_KEY.search(message):
        return "SecretKeyMissing"
    if _MISSING_SECRET.search(message):
        return "SecretMissing"
    return None


def _find_run_failure(pod: Pod, status: ContainerStatus) -> Failure | None:
    """Return how the container failed.

    A later run that is still going on does not make the failure untrue.
    """
    ended = status.state.terminated or status.last_state.terminated
    if ended is None or ended.exit_code == 0:
        return None
    subject = _describe_container(pod, status)
    if ended.reason == "OOMKilled":
        loops = status.state.waiting.reason == "CrashLoopBackOff"
        container = pod.spec.find_container(status.name)
        limit = container.resources.limits.get("memory") if container is not None else None
        failure = _build_failure(
            "OOMKilled", f"{subject} {_describe_memory(pod, limit)}", is_transient=not loops
        )
        return replace(failure, shortage=MemoryShortage(status.name, limit))
    reported = _parse_reported_failure(ended.message)
    if reported is not None:
        origin = _describe_named_secrets(pod, status.name, reported.message)
        return replace(reported, message=reported.message + origin, ended_at=ended.finished_at)
    message = f"{subject} ended with exit code {ended.exit_code} ({status.restart_count} restarts so far); see its log"
    return _build_failure("ContainerFailed", message, is_transient=True)


def _describe_memory(pod: Pod, limit: str | int | None) -> str:
    """Describe the limit that was too low, and the size of the model."""
    bound = f"its limit of {limit}" if limit else "the node's memory"
    report = _find_model_report(pod)
    size = report.size_bytes if report is not None else None
    files = "" if size is None else f" (its model's files alone are {size / MIB:.0f} MiB)"
    return f"needed more memory than {bound}{files}"


def _describe_named_secrets(pod: Pod, name: str, message: str) -> str:
    """Describe the Secrets and keys behind the environment variables and the file that a message of the runtime
    names, since the runtime cannot know them.
    """
    container = pod.spec.find_container(name)
    sources = [
        f"it is key {file.key} of Secret {volume.secret.secret_name}"
        for volume in pod.spec.volumes
        if volume.name == KEYS_VOLUME and volume.secret is not None and f"{KEYS_PATH}/{KEYS_FILE}" in message
        for file in volume.secret.items
    ]
    sources += [
        _describe_secret_variable(variable)
        for variable in (container.env if container is not None else ())
        if re.search(rf"\b{re.escape(variable.name)}\b", message)
    ]
    return f" ({'; '.join(sources)})" if sources else ""


def _parse_reported_failure(message: str) -> Failure | None:
    """Return what the runtime wrote about its own end; None when it is not in the agreed form."""
    reported = TerminationMessage.parse_json(message)
    if not is_reason(reported.reason):
        return None
    return _build_failure(reported.reason, reported.message, is_transient=reported.retryable)


def _find_placement_failure(pod: Pod) -> Failure | None:
    condition = find_condition(pod.status.conditions, "PodScheduled")
    if condition is None or condition.status != "False":
        return None
    scheduler_message = condition.message
    message = f"pod {pod.metadata.name}: {scheduler_message}{_describe_requests(pod, scheduler_message)}"
    for pattern, missing in _VOLUME_REASONS:
        if pattern.search(scheduler_message):
            return _build_failure(missing, message, is_transient=True)
    placed = condition.reason if is_reason(condition.reason) else "Unschedulable"
    return replace(_build_failure(placed, message, is_transient=True), is_unscheduled=True)


def _describe_requests(pod: Pod, scheduler_message: str) -> str:
    """Describe how much the pod requests of the resources that the scheduler found too little of."""
    container = pod.spec.find_container(RUNTIME)
    requests = container.resources.requests if container is not None else {}
    insufficient = [
        f"{name} {requests[name]}" for name in _INSUFFICIENT.findall(scheduler_message) if name in requests
    ]
    return f" The pod asks for {' and '.join(dict.fromkeys(insufficient))}" if insufficient else ""


def _find_start_failure(pod: Pod) -> Failure | None:
    """Return that a node has the pod but runs none of its containers.

    Kubernetes gives the reason in events only.
    """
    scheduled = find_condition(pod.status.conditions, "PodScheduled")
    sandbox = find_condition(pod.status.conditions, "PodReadyToStartContainers")
    since = parse_moment(scheduled.last_transition_time) if scheduled is not None else None
    if since is None or sandbox is None or sandbox.status != "False":
        return None
    name, node, has_image = pod.metadata.name, pod.spec.node_name, bool(pod.spec.image_volumes)
    message = (
        f"pod {name}: node {node} has not made its volumes and its network ready within {_MAX_START_SECONDS} "
        f"seconds{_IMAGE_ADVICE if has_image else ''}; `kubectl describe pod {name}` says why"
    )
    failure = _build_failure(_NO_IMAGES if has_image else _NOT_STARTED, message, is_transient=True)
    return replace(failure, effective_from=since + _MAX_START_SECONDS)


def _find_pod_end(pod: Pod) -> Failure | None:
    """Return why the pod as a whole was ended, for example evicted; its Deployment makes another one."""
    status = pod.status
    if status.phase != "Failed":
        return None
    limits = [container.resources.limits.get(_STORAGE) for container in pod.spec.containers]
    advice = advise_after_eviction(
        status.message, next((limit for limit in limits if limit is not None), None)
    )
    message = f"pod {pod.metadata.name}: {status.message or 'failed'}{advice}"
    reason = status.reason if is_reason(status.reason) else "PodFailed"
    return _build_failure(reason, message, is_transient=True)


def _build_failure(reason: str, message: str, *, is_transient: bool) -> Failure:
    if len(message) > _MAX_MESSAGE_LENGTH:
        message = message[: _MAX_MESSAGE_LENGTH - 1] + "…"
    return Failure(reason=reason, message=message, is_transient=is_transient)


def read_result(pod: Pod, name: str) -> TerminationMessage:
    """Return what a container reported when it ended successfully; it is empty as long as there is nothing."""
    for status in pod.status.all_container_statuses:
        ended = status.state.terminated
        if status.name == name and ended is not None and ended.exit_code == 0:
            return TerminationMessage.parse_json(ended.message)
    return TerminationMessage.parse({})


def read_lingering_end(pod: Pod, name: str) -> str | None:
    """Return when a container ended successfully while another one, a sidecar, keeps its pod running; None where that
    is not so.
    """
    statuses = pod.status.all_container_statuses
    # A pod is in phase Running for a moment after its only container has ended, and so is its Job.
    if not any(status.is_running for status in statuses if status.name != name):
        return None
    for status in statuses:
        ended = status.state.terminated
        if status.name == name and ended is not None and ended.exit_code == 0:
            return ended.finished_at
    return None


def _find_model_report(pod: Pod) -> ModelReport | None:
    """Return what is known about the model of a pod, from its own fetch or from that of a Job."""
    reported = read_result(pod, FETCH).model
    return read_annotated_report(pod.metadata) if reported is None else read_model_report(reported)
