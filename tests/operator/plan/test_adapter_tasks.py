"""The tasks of a model with adapters in the status of its service."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from embedserve_operator.api.status import AdapterTask
from embedserve_operator.observe.reports import ReportedModel, read_model_report
from tests.operator.builders import REPORT, Cluster, hub_spec, resource
from tests.operator.cache_builders import cached, started, succeeded

SPACE = str(REPORT["vectorSpace"])
REPORTED: dict[str, Any] = {
    **REPORT,
    "adapterTasks": [
        {"name": "retrieval", "vectorSpace": SPACE},
        {"name": "text-matching", "vectorSpace": "vs2-fedcba9876543210fedc"},
        {"name": "separation"},
    ],
}
TASKS = (
    AdapterTask(name="retrieval", vector_space=SPACE),
    AdapterTask(name="text-matching", vector_space="vs2-fedcba9876543210fedc"),
    AdapterTask(name="separation"),
)
MODEL = {"adapters": ["retrieval", "text-matching"]}


def find_tasks(cluster: Cluster) -> tuple[AdapterTask, ...] | None:
    model = cluster.status().model
    assert model is not None
    return model.adapter_tasks


def test_the_status_has_the_tasks_that_pods_report_and_keeps_them_until_others_report() -> None:
    spec = hub_spec(model=MODEL)
    served = Cluster(resource(spec)).applied().rolled_out(report=REPORTED).applied().published()
    assert find_tasks(served) == TASKS
    assert find_tasks(replace(served, pods=())) == TASKS


def test_the_tasks_that_a_job_reports_stay_when_the_job_is_gone() -> None:
    cluster = started(succeeded(started(Cluster(resource(cached(model=MODEL)))), {"model": REPORTED}))
    later = replace(cluster, jobs=(), job_pods=())
    for seen in (cluster, later):
        status = seen.status()
        assert status.fetch is not None
        assert status.fetch.adapter_tasks == TASKS
        assert find_tasks(seen) == TASKS
    (deployment,) = [child for child in cluster.children if child["kind"] == "Deployment"]
    annotation = deployment["spec"]["template"]["metadata"]["annotations"]["embedserve.dev/model"]
    assert json.loads(annotation)["adapterTasks"] == REPORTED["adapterTasks"], "the pods carry it"


def test_a_model_without_adapters_has_no_tasks_in_its_status() -> None:
    served = Cluster(resource(hub_spec())).applied().rolled_out().applied().published()
    assert find_tasks(served) is None
    assert "adapterTasks" not in str(served.resource["status"])


@pytest.mark.parametrize(
    ("reported", "want"),
    [
        ("retrieval", ()),
        ([{"name": ""}, {"name": "x" * 201}, "retrieval", {"vectorSpace": SPACE}], ()),
        ([{"name": "retrieval", "vectorSpace": 1}], (AdapterTask(name="retrieval"),)),
        ([{"name": f"task-{n}"} for n in range(70)], tuple(AdapterTask(name=f"task-{n}") for n in range(64))),
    ],
    ids=["no list", "no tasks", "a space of another type", "too many"],
)
def test_what_is_no_task_is_left_out(reported: object, want: tuple[AdapterTask, ...]) -> None:
    report = read_model_report(ReportedModel.parse({"source": "acme/docs", "adapterTasks": reported}))
    assert report.adapter_tasks == want
