"""What the condition of a container that ran out of memory says to set."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from embedserve_operator.kube.objects import Manifest
from tests.operator.builders import REPORT, Cluster, fetched, hub_spec, pod, resource
from tests.operator.cache_builders import cached, ended, running, started, succeeded
from tests.operator.manifests.test_resources import PLANNED


def killed(container: str) -> Manifest:
    """Status of a container that was killed again and again."""
    return {
        "name": container,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
        "restartCount": 2,
    }


def out_of_memory(limit: str | None, report: dict[str, Any] | None, **more: Any) -> str:
    """What is said of pods whose server was killed."""
    cluster = Cluster(resource(hub_spec(**more))).applied()
    (deployment,) = [child for child in cluster.children if child["kind"] == "Deployment"]
    template = deployment["spec"]["template"]["metadata"]
    received = pod(
        template["labels"]["embedserve.dev/revision"],
        template["annotations"]["embedserve.dev/template"],
        "config",
    )
    received["spec"]["containers"][0]["resources"] = {} if limit is None else {"limits": {"memory": limit}}
    init = [] if report is None else [fetched(report)]
    received["status"] = {"initContainerStatuses": init, "containerStatuses": [killed("runtime")]}
    condition = replace(cluster, pods=(received,)).conditions()["Ready"]
    assert condition.reason == "OOMKilled"
    return condition.message


@pytest.mark.parametrize(
    ("limit", "report", "more", "want"),
    [
        ("1Gi", PLANNED, {}, "set spec.resources.limits.memory to 2560Mi"),
        ("1Gi", PLANNED, {"resources": {"limits": {"cpu": 8}}}, "set spec.resources.limits.memory to 2560Mi"),
        (
            "1Gi",
            PLANNED,
            {"batching": {"maxBatchTokens": 16_384}},
            "set spec.resources.limits.memory to 2880Mi",
        ),
        (None, PLANNED, {}, "set spec.resources.limits.memory to 2560Mi"),
        ("4Gi", PLANNED, {}, "set spec.resources.limits.memory to 6144Mi"),
        ("256Mi", REPORT, {}, "set spec.resources.limits.memory to 448Mi"),
        ("1Gi", REPORT, {}, "set spec.resources.limits.memory to 1536Mi"),
        ("500M", None, {}, "set spec.resources.limits.memory to 768Mi"),
        (None, None, {}, "raise spec.resources.limits.memory"),
        ("1Gi", PLANNED, {"hardware": {"class": "hopper"}}, "set spec.resources.limits.memory to 1536Mi"),
    ],
    ids=[
        "less than the plan",
        "on eight CPUs",
        "with larger batches",
        "without a limit",
        "more than the plan",
        "less than the files need",
        "more than the files need",
        "a limit alone",
        "nothing",
        "on an accelerator",
    ],
)
def test_a_limit_is_named_that_should_do(
    limit: str | None, report: dict[str, Any] | None, more: dict[str, Any], want: str
) -> None:
    assert out_of_memory(limit, report, **more).endswith(f"; {want}")


@pytest.mark.parametrize(
    ("task", "want"),
    [("fetch", "set spec.resources.limits.memory to 512Mi"), ("convert", "to 1664Mi")],
)
def test_what_a_job_needs_is_named_too(task: str, want: str) -> None:
    spec = cached(onnx={"convert": "Always"}, resources={"limits": {"memory": "256Mi"}})
    cluster = started(Cluster(resource(spec)))
    if task == "convert":
        cluster = started(succeeded(cluster, {"model": PLANNED}))
    given_up = ended(cluster, running(cluster), "Failed", {"exitCode": 137, "reason": "OOMKilled"})
    assert want in given_up.conditions()["Ready"].message
