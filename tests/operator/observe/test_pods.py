"""What a pod says, in Kubernetes' words, and what the user gets to read."""

from __future__ import annotations

from typing import Any

import pytest

from embedserve_operator.kube.views.pods import Pod
from embedserve_operator.observe.pods import read_lingering_end, read_pod
from embedserve_operator.state.failures import Failure, MemoryShortage
from tests.operator.builders import failed, fetched, pod, ready


def with_status(**status: Any) -> dict[str, Any]:
    received = pod("rev", "template", "docs-config")
    received["status"] = status
    return received


def failure_of(received: dict[str, Any]) -> Failure | None:
    return read_pod(Pod.parse(received)).failure


def with_token(received: dict[str, Any]) -> dict[str, Any]:
    """The pod with a variable of its fetch container from a Secret."""
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    received["spec"]["initContainers"] = [{"name": "fetch", "env": [token]}]
    return received


def waiting(container: str, reason: str, message: str) -> dict[str, Any]:
    return {"name": container, "state": {"waiting": {"reason": reason, "message": message}}}


def ended(container: str, code: int, reason: str = "Error", *, loops: bool = True) -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "reason": reason}}
    if not loops:
        return {"name": container, "state": state}
    return {
        "name": container,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": state,
        "restartCount": 3,
    }


def unscheduled(message: str) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return with_status(conditions=[condition])


CASES = [
    pytest.param(
        with_status(initContainerStatuses=[failed("ModelNotFound", "no repository a/b", retryable=False)]),
        Failure("ModelNotFound", "no repository a/b", is_transient=False),
        id="the runtime says what is wrong, and that trying again cannot help",
    ),
    pytest.param(
        with_status(
            initContainerStatuses=[failed("SourceUnavailable", "no answer", retryable=True, loops=False)]
        ),
        Failure("SourceUnavailable", "no answer", is_transient=True),
        id="the runtime says that trying again may help",
    ),
    pytest.param(
        with_status(
            initContainerStatuses=[fetched()],
            containerStatuses=[failed("ModelInvalid", "tokenizer.json is missing", retryable=False)],
        ),
        Failure("ModelInvalid", "tokenizer.json is missing", is_transient=False),
        id="the serving container says it",
    ),
    pytest.param(
        with_status(
            initContainerStatuses=[
                {
                    "name": "fetch",
                    "state": {"running": {}},
                    "lastState": failed("ModelNotFound", "gone", retryable=False, loops=False)["state"],
                }
            ]
        ),
        Failure("ModelNotFound", "gone", is_transient=False),
        id="the next try runs already",
    ),
    pytest.param(
        with_status(
            initContainerStatuses=[
                waiting("fetch", "ImagePullBackOff", 'Back-off pulling image "x": ErrImagePull: not found')
            ]
        ),
        Failure("ImagePullBackOff", "container fetch of pod docs-pod: not found", is_transient=True),
        id="the image cannot be pulled, the kubelet pauses",
    ),
    pytest.param(
        with_status(initContainerStatuses=[waiting("fetch", "ErrImagePull", "not found")]),
        Failure("ImagePullBackOff", "container fetch of pod docs-pod: not found", is_transient=True),
        id="the image cannot be pulled, the kubelet has just tried",
    ),
    pytest.param(
        with_status(initContainerStatuses=[waiting("fetch", "InvalidImageName", "couldn't parse")]),
        Failure("InvalidImageName", "container fetch of pod docs-pod: couldn't parse", is_transient=False),
        id="the image's name is none",
    ),
    pytest.param(
        with_status(
            initContainerStatuses=[waiting("fetch", "CreateContainerConfigError", 'secret "hub" not found')]
        ),
        Failure(
            "SecretMissing",
            'container fetch of pod docs-pod: secret "hub" not found',
            is_transient=True,
        ),
        id="the secret is missing",
    ),
    pytest.param(
        with_status(
            initContainerStatuses=[
                waiting("fetch", "CreateContainerConfigError", "couldn't find key token in Secret search/hub")
            ]
        ),
        Failure(
            "SecretKeyMissing",
            "container fetch of pod docs-pod: couldn't find key token in Secret search/hub",
            is_transient=True,
        ),
        id="the secret lacks the key",
    ),
    *(
        pytest.param(
            with_token(with_status(initContainerStatuses=[waiting("fetch", reason, message)])),
            Failure(
                "ConfigInvalid",
                "container fetch of pod docs-pod: a value from a Secret is binary, but has to be text: HF_TOKEN is key "
                "token of Secret hub; correct the Secret",
                is_transient=False,
            ),
            id=name,
        )
        for name, reason, message in (
            (
                "the secret is binary",
                "CreateContainerError",
                "grpc: error while marshaling: string field contains invalid UTF-8",
            ),
            (
                "the secret has a zero byte",
                "RunContainerError",
                'runc create failed: invalid environment variable: contains nul byte (\\x00): "HF_TOKEN=value\\x00"',
            ),
        )
    ),
    pytest.param(
        unscheduled('0/1 nodes are available: persistentvolumeclaim "models" not found.'),
        Failure(
            "VolumeClaimMissing",
            'pod docs-pod: 0/1 nodes are available: persistentvolumeclaim "models" not found.',
            is_transient=True,
        ),
        id="the claim does not exist",
    ),
    pytest.param(
        unscheduled("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."),
        Failure(
            "VolumeClaimUnbound",
            "pod docs-pod: 0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
            is_transient=True,
        ),
        id="the claim has no volume",
    ),
    pytest.param(
        with_status(
            initContainerStatuses=[fetched()],
            containerStatuses=[ended("runtime", 137, "OOMKilled", loops=False)],
        ),
        Failure(
            "OOMKilled",
            "container runtime of pod docs-pod needed more memory than its limit of 1Gi (its model's files alone "
            "are 87 MiB)",
            is_transient=True,
            shortage=MemoryShortage("runtime", "1Gi"),
        ),
        id="out of memory once, with a model of known size",
    ),
    pytest.param(
        with_status(containerStatuses=[ended("runtime", 137, "OOMKilled")]),
        Failure(
            "OOMKilled",
            "container runtime of pod docs-pod needed more memory than its limit of 1Gi",
            is_transient=False,
            shortage=MemoryShortage("runtime", "1Gi"),
        ),
        id="out of memory again and again",
    ),
    pytest.param(
        with_status(containerStatuses=[ended("runtime", 3)]),
        Failure(
            "ContainerFailed",
            "container runtime of pod docs-pod ended with exit code 3 (3 restarts so far); see its log",
            is_transient=True,
        ),
        id="an end without a word",
    ),
    pytest.param(
        with_status(
            conditions=[
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": "0/3 nodes are available: 3 Insufficient cpu.",
                }
            ]
        ),
        Failure(
            "Unschedulable",
            "pod docs-pod: 0/3 nodes are available: 3 Insufficient cpu.",
            is_transient=True,
            is_unscheduled=True,
        ),
        id="no node fits",
    ),
    pytest.param(
        {
            **unscheduled("0/3 nodes are available: 1 Insufficient cpu, 2 Insufficient memory."),
            "spec": {
                "containers": [{"name": "runtime", "resources": {"requests": {"memory": "3Gi", "cpu": 2}}}]
            },
        },
        Failure(
            "Unschedulable",
            "pod docs-pod: 0/3 nodes are available: 1 Insufficient cpu, 2 Insufficient memory. The pod asks for "
            "cpu 2 and memory 3Gi",
            is_transient=True,
            is_unscheduled=True,
        ),
        id="nodes have too little of what it asks for",
    ),
    pytest.param(
        with_status(phase="Failed", reason="Evicted", message="The node was low on memory"),
        Failure("Evicted", "pod docs-pod: The node was low on memory", is_transient=True),
        id="evicted",
    ),
    pytest.param(
        with_status(
            phase="Failed",
            reason="Evicted",
            message='Usage of EmptyDir volume "models" exceeds the limit "1Gi". ',
        ),
        Failure(
            "Evicted",
            'pod docs-pod: Usage of EmptyDir volume "models" exceeds the limit "1Gi". ; '
            "set spec.resources.limits.ephemeral-storage to 3072Mi or more",
            is_transient=True,
        ),
        id="a full volume",
    ),
    pytest.param(with_status(initContainerStatuses=[ended("fetch", 0, loops=False)]), None, id="ended well"),
    pytest.param(with_status(phase="Pending"), None, id="just created"),
    pytest.param(ready(pod("rev", "template", "docs-config")), None, id="ready"),
]


@pytest.mark.parametrize(("received", "want"), CASES)
def test_failure(received: dict[str, Any], want: Failure | None) -> None:
    assert failure_of(received) == want


@pytest.mark.parametrize(
    "reason",
    ["", "not camel case", "lower", "With-Dash", "X" * 65, "Übel", '"; drop'],
)
def test_a_reason_that_is_none_is_not_passed_on(reason: str) -> None:
    failure = failure_of(with_status(initContainerStatuses=[failed(reason, "words", retryable=False)]))
    assert failure is not None
    assert failure.reason == "ContainerFailed"


def test_a_message_is_bounded() -> None:
    status = failed("ModelInvalid", "x" * 100_000, retryable=False)
    failure = failure_of(with_status(initContainerStatuses=[status]))
    assert failure is not None
    assert len(failure.message) == 2000


@pytest.mark.parametrize("message", ["", "null", "[]", "{}", '{"model": null}', "Traceback", '{"model": 1}'])
def test_a_termination_message_of_another_form_is_no_report(message: str) -> None:
    status = {"name": "fetch", "state": {"terminated": {"exitCode": 0, "message": message}}}
    report = read_pod(Pod.parse(with_status(initContainerStatuses=[status]))).report
    assert report is None or report.vector_space is None


@pytest.mark.parametrize(
    ("received", "want"),
    [
        pytest.param(with_status(), "Pending", id="just created"),
        pytest.param(
            with_status(initContainerStatuses=[{"name": "fetch", "state": {"running": {}}}]),
            "Fetching",
            id="fetch runs",
        ),
        pytest.param(
            with_status(containerStatuses=[{"name": "runtime", "state": {"running": {}}}]),
            "Loading",
            id="runtime runs",
        ),
        pytest.param(ready(pod("rev", "template", "docs-config")), "Ready", id="ready"),
    ],
)
def test_phase(received: dict[str, Any], want: str) -> None:
    assert read_pod(Pod.parse(received)).phase == want


def test_a_pod_that_is_going_tells_of_no_failure() -> None:
    received = with_status(initContainerStatuses=[failed("ModelNotFound", "gone", retryable=False)])
    received["metadata"]["deletionTimestamp"] = "2026-01-02T12:00:00Z"
    state = read_pod(Pod.parse(received))
    assert (state.phase, state.failure) == ("Terminating", None)


def test_a_file_of_api_keys_that_a_message_names_is_named_by_its_secret() -> None:
    message = "no API keys: /etc/embedserve-keys/api-keys cannot be read: No such file or directory"
    received = with_status(containerStatuses=[failed("ApiKeysMissing", message, retryable=True)])
    keys = {"secretName": "keys", "items": [{"key": "api", "path": "api-keys"}], "optional": True}
    received["spec"]["volumes"].append({"name": "embedserve-keys", "secret": keys})
    failure = read_pod(Pod.parse(received)).failure
    assert failure is not None
    assert failure.message == f"{message} (it is key api of Secret keys)"


FETCHED = {"name": "fetch", "state": {"terminated": {"exitCode": 0, "finishedAt": "2026-11-30T12:00:00Z"}}}
SIDECAR = {"name": "istio-proxy", "state": {"running": {"startedAt": "2026-11-30T11:59:00Z"}}}
ENDED_SIDECAR = {"name": "istio-proxy", "state": {"terminated": {"exitCode": 0}}}


@pytest.mark.parametrize(
    ("statuses", "want"),
    [
        pytest.param([FETCHED, SIDECAR], "2026-11-30T12:00:00Z", id="a sidecar runs on"),
        pytest.param([FETCHED], None, id="the only container: its Job is about to end"),
        pytest.param([FETCHED, ENDED_SIDECAR], None, id="the sidecar has ended, too"),
        pytest.param([{**FETCHED, "state": {"terminated": {"exitCode": 1}}}, SIDECAR], None, id="it failed"),
    ],
)
def test_the_end_of_a_task_counts_for_itself_only_where_another_container_runs_on(
    statuses: list[dict[str, Any]], want: str | None
) -> None:
    received = with_status(phase="Running", containerStatuses=statuses)
    assert read_lingering_end(Pod.parse(received), "fetch") == want
