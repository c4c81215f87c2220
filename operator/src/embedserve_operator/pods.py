"""Reading a pod: how far it is, why it does not serve, and what it said about its model.

Pods speak through their containers' termination messages (JSON, written by the runtime): `fetch` reports the
model on success, any container reports a reason and a message on failure.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from embedserve_operator.specs.containers import CONFIG_VOLUME, FETCH, RUNTIME
from embedserve_operator.specs.memory import in_mib, memory_needed
from embedserve_operator.specs.metadata import FETCHED, REVISION_LABEL, SPACE_LABEL, TEMPLATE_HASH
from embedserve_operator.times import seconds_of
from embedserve_operator.wire import Received, dig, mappings, number, strings, text
from embedserve_operator.world import Failure, Fetcher, ModelReport, PodFacts, PodPhase

_REASON = re.compile(r"^[A-Z][A-Za-z0-9]{0,63}$")
_LONGEST_MESSAGE = 2000
_IMAGE_REASONS = {
    "ErrImagePull": True,
    "ImagePullBackOff": True,
    "ImageInspectError": True,
    "RegistryUnavailable": True,
    "ErrImageNeverPull": False,
    "InvalidImageName": False,
}
"""The kubelet's words for image troubles, and whether waiting can heal them."""
_MISSING_SECRET = re.compile(r'^secret "[^"]+" not found')
_MISSING_KEY = re.compile(r"^couldn't find key \S+ in Secret")
_VOLUME_REASONS = (
    (re.compile(r'persistentvolumeclaim "[^"]+" not found'), "VolumeClaimMissing"),
    (re.compile(r"unbound immediate PersistentVolumeClaims"), "VolumeClaimUnbound"),
)
"""Words of the kubelet and of the scheduler that name what is missing."""
_SHORT_OF = re.compile(r"Insufficient ([a-z0-9./-]*[a-z0-9])")
"""The scheduler's words for a resource that nodes have too little of."""
_MIB = 2**20
_NOT_STARTED = "PodNotStarted"
_NO_IMAGES = "ImageVolumesMissing"
_PATIENCE_SECONDS = 120
"""In which a node gets volumes and network of a pod ready, a disk of a cloud included."""
_NO_HOST_PATH = re.compile(r'(mkdir|stat) "?"?: no such file or directory')
"""What a container runtime says that knows no image volumes: to it the mount has no source at all."""
_IMAGE_ADVICE = (
    ". The model is in an image, which only a kubelet with the feature ImageVolume mounts: switch it on, take other "
    "nodes by spec.pod.nodeSelector, or the model from another source"
)
_CREATION_REASONS = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})


def read_pod(pod: Received) -> PodFacts:
    """The facts of a pod."""
    phase = _phase(pod)
    return PodFacts(
        name=text(pod, "metadata", "name"),
        revision=text(pod, "metadata", "labels", REVISION_LABEL),
        template=text(pod, "metadata", "annotations", TEMPLATE_HASH),
        config=mounted_config(dig(pod, "spec")),
        phase=phase,
        failure=None if phase in ("Ready", "Ending") else failure_of(pod),
        report=model_report(result_of(pod, FETCH)) or told_report(pod),
        uid=text(pod, "metadata", "uid"),
        address=text(pod, "status", "podIP"),
        run=_run(pod),
        space_label=text(pod, "metadata", "labels", SPACE_LABEL),
        fetcher=fetcher_of(pod) if phase == "Fetching" else None,
    )


def fetcher_of(pod: Received) -> Fetcher | None:
    """The pod as one that fetches now, by itself or for a Job; None when it does not, or has no address yet."""
    address = text(pod, "status", "podIP")
    groups = ("containerStatuses", "initContainerStatuses")
    if not address or not any(_is_running(pod, group, FETCH) for group in groups):
        return None
    return Fetcher(name=text(pod, "metadata", "name"), address=address, run=_run(pod))


def told_report(pod: Any) -> ModelReport | None:
    """What the Job said that filled the cache of a pod, or of the pods of a template."""
    said = text(pod, "metadata", "annotations", FETCHED)
    return model_report({"model": _json(said)}) if said else None


def _run(pod: Received) -> str:
    """Names one run of its serving container."""
    statuses = mappings(pod, "status", "containerStatuses")
    restarts = next((number(one, "restartCount") for one in statuses if one.get("name") == RUNTIME), 0)
    return f"{text(pod, 'metadata', 'uid')}/{restarts}"


def mounted_config(pod_spec: Any) -> str:
    """Name of the ConfigMap that a pod spec mounts."""
    for volume in mappings(pod_spec, "volumes"):
        if volume.get("name") == CONFIG_VOLUME:
            return text(volume, "configMap", "name")
    return ""


def _phase(pod: Received) -> PodPhase:
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


def failure_of(pod: Received) -> Failure | None:
    """What keeps a pod that is not ready; None when nothing is known to."""
    statuses = [
        *mappings(pod, "status", "initContainerStatuses"),
        *mappings(pod, "status", "containerStatuses"),
    ]
    for status in statuses:
        found = _creation_failure(pod, status) or _run_failure(pod, status)
        if found is not None:
            return found
    return _placement_failure(pod) or _end_of_pod(pod) or _start_failure(pod)


def _creation_failure(pod: Received, status: Received) -> Failure | None:
    """The container could not be started at all."""
    reason = text(status, "state", "waiting", "reason")
    where = f"container {text(status, 'name')} of pod {text(pod, 'metadata', 'name')}"
    words = text(status, "state", "waiting", "message")
    if reason in _IMAGE_REASONS:
        # The kubelet swings between trying and pausing; the words of the last try are what matters in both.
        steady = "ImagePullBackOff" if reason == "ErrImagePull" else reason
        cause = words.rpartition("ErrImagePull: ")[2] or "the image cannot be pulled"
        return _made(steady, f"{where}: {cause}", heals=_IMAGE_REASONS[reason])
    if reason in _CREATION_REASONS and _mounts_image(pod) and _NO_HOST_PATH.search(words):
        advice = (
            f"the container runtime of node {text(pod, 'spec', 'nodeName')} knows no image volumes: take nodes with "
            "containerd 2.1 or CRI-O 1.31, or newer, or the model from another source"
        )
        return _made(_NO_IMAGES, f"{where}: {advice}; the kubelet says: {words}", heals=True)
    if reason in _CREATION_REASONS:
        return _made(_creation_reason(words) or reason, f"{where}: {words}", heals=True)
    return None


def _creation_reason(words: str) -> str | None:
    """What the kubelet's words say is missing, when they say so."""
    if _MISSING_KEY.search(words):
        return "SecretKeyMissing"
    if _MISSING_SECRET.search(words):
        return "SecretMissing"
    return None


def _run_failure(pod: Received, status: Received) -> Failure | None:
    """The container ran and ended badly; a later run that still goes on does not make that untrue."""
    ended = dig(status, "state", "terminated")
    if ended is None:
        ended = dig(status, "lastState", "terminated")
    if ended is None or number(ended, "exitCode") == 0:
        return None
    name = text(status, "name")
    where = f"container {name} of pod {text(pod, 'metadata', 'name')}"
    if text(ended, "reason") == "OOMKilled":
        loops = text(status, "state", "waiting", "reason") == "CrashLoopBackOff"
        return _made("OOMKilled", f"{where} {_memory_words(pod, name)}", heals=not loops)
    reported = _reported_failure(text(ended, "message"))
    if reported is not None:
        origin = _secrets_named(pod, name, reported.message)
        return replace(reported, message=reported.message + origin, at=text(ended, "finishedAt"))
    restarts = number(status, "restartCount")
    words = (
        f"{where} ended with exit code {number(ended, 'exitCode')} ({restarts} restarts so far); see its log"
    )
    return _made("ContainerFailed", words, heals=True)


def _memory_words(pod: Received, container: str) -> str:
    """The limit that was too low, and what the model needs."""
    limit = text(_resources(pod, container), "limits", "memory")
    bound = f"its limit of {limit}" if limit else "the node's memory"
    report = model_report(result_of(pod, FETCH)) or told_report(pod)
    size = report.size_bytes if report is not None else None
    if size is None:
        return f"needed more memory than {bound}; raise spec.resources.limits.memory"
    return (
        f"needed more memory than {bound} (its model's files alone are {size / _MIB:.0f} MiB); raise "
        f"spec.resources.limits.memory: about {in_mib(memory_needed(size))} are needed to serve it"
    )


def _secrets_named(pod: Received, container: str, message: str) -> str:
    """Secret and key of the environment variables that a message of the runtime names; it cannot know them itself."""
    found = []
    for variable in mappings(_container(pod, container), "env"):
        ref = dig(variable, "valueFrom", "secretKeyRef")
        if ref is not None and re.search(rf"\b{re.escape(text(variable, 'name'))}\b", message):
            found.append(f"{text(variable, 'name')} is key {text(ref, 'key')} of Secret {text(ref, 'name')}")
    return f" ({'; '.join(found)})" if found else ""


def _container(pod: Received, name: str) -> Received | None:
    containers = [*mappings(pod, "spec", "initContainers"), *mappings(pod, "spec", "containers")]
    return next((found for found in containers if found.get("name") == name), None)


def _resources(pod: Received, container: str) -> Any:
    return dig(_container(pod, container), "resources")


def _reported_failure(message: str) -> Failure | None:
    """What the runtime wrote about its own end; None when it is not in the agreed form."""
    content = _json(message)
    reason = text(content, "reason")
    if not _REASON.match(reason):
        return None
    return _made(reason, text(content, "message"), heals=dig(content, "retryable") is True)


def _placement_failure(pod: Received) -> Failure | None:
    for condition in mappings(pod, "status", "conditions"):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            reason = text(condition, "reason")
            said = text(condition, "message")
            words = f"pod {text(pod, 'metadata', 'name')}: {said}{_asked(pod, said)}"
            for pattern, missing in _VOLUME_REASONS:
                if pattern.search(said):
                    return _made(missing, words, heals=True)
            placed = reason if _REASON.match(reason) else "Unschedulable"
            return replace(_made(placed, words, heals=True), unplaced=True)
    return None


def _asked(pod: Received, said: str) -> str:
    """What the pod asks for of what the scheduler found too little of."""
    requests = dig(_resources(pod, RUNTIME), "requests") or {}
    asked = [f"{name} {requests[name]}" for name in _SHORT_OF.findall(said) if name in requests]
    return f" The pod asks for {' and '.join(dict.fromkeys(asked))}" if asked else ""


def _start_failure(pod: Received) -> Failure | None:
    """A node has the pod and none of its containers. Why, Kubernetes tells in events only."""
    conditions = {text(one, "type"): one for one in mappings(pod, "status", "conditions")}
    since = seconds_of(text(conditions.get("PodScheduled"), "lastTransitionTime"))
    if since is None or text(conditions.get("PodReadyToStartContainers"), "status") != "False":
        return None
    name, node = text(pod, "metadata", "name"), text(pod, "spec", "nodeName")
    words = (
        f"pod {name}: node {node} has not got its volumes and its network ready for {_PATIENCE_SECONDS} seconds and "
        f"more{_IMAGE_ADVICE if _mounts_image(pod) else ''}; `kubectl describe pod {name}` says why"
    )
    found = _made(_NO_IMAGES if _mounts_image(pod) else _NOT_STARTED, words, heals=True)
    return replace(found, counts_from=since + _PATIENCE_SECONDS)


def _mounts_image(pod: Received) -> bool:
    return any(dig(volume, "image") is not None for volume in mappings(pod, "spec", "volumes"))


def _end_of_pod(pod: Received) -> Failure | None:
    """The pod as a whole was ended, for example evicted; its Deployment makes another."""
    if text(pod, "status", "phase") != "Failed":
        return None
    reason = text(pod, "status", "reason")
    words = f"pod {text(pod, 'metadata', 'name')}: {text(pod, 'status', 'message') or 'failed'}"
    return _made(reason if _REASON.match(reason) else "PodFailed", words, heals=True)


def _made(reason: str, message: str, *, heals: bool) -> Failure:
    if len(message) > _LONGEST_MESSAGE:
        message = message[: _LONGEST_MESSAGE - 1] + "…"
    return Failure(reason=reason, message=message, heals=heals)


def result_of(pod: Received, container: str) -> Any:
    """What a container that ended well said at its end; None while there is nothing."""
    for group in ("initContainerStatuses", "containerStatuses"):
        for status in mappings(pod, "status", group):
            ended = dig(status, "state", "terminated")
            if status.get("name") == container and ended is not None and number(ended, "exitCode") == 0:
                return _json(text(ended, "message"))
    return None


def model_report(result: Any) -> ModelReport | None:
    """What a fetch said at its end; None when it said nothing of the kind."""
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
        foreign=dig(model, "foreign") is True,
        onnx_outputs=strings(model, "onnxOutputs") if dig(model, "onnxOutputs") is not None else None,
    )


def _json(message: str) -> Any:
    try:
        return json.loads(message)
    except ValueError:
        return None
