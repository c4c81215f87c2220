"""`kubectl embedserve model`: what it prints of a status."""

from __future__ import annotations

from typing import Any

import pytest

from embedserve_operator.api.status import EmbeddingServiceStatus
from embedserve_operator.commands.model import describe_model

SERVED: dict[str, Any] = {
    "observedGeneration": 2,
    "vectorSpace": {"id": "vs1-0978181612db7ef023ab", "dimensions": 384},
    "model": {
        "source": "sentence-transformers/all-MiniLM-L6-v2",
        "revision": "b1ae82044ee8447606cb57ea10a0f9b24659981b",
        "digest": "sha256:c1ea2174",
        "sizeBytes": 91607178,
        "licence": "apache-2.0",
    },
}
JOB = {"job": "docs-fetch-0a1b", "state": "Running", "template": "t", "generation": 2}
FETCHING = {
    "phase": "fetching",
    "bytesDone": 41538802,
    "bytesTotal": 91607178,
    "bytesPerSecond": 8297842,
    "secondsRemaining": 6,
}
INT8 = {"precision": "int8", "published": True, "minCosine": 0.99443}
TABLE = """\
SOURCE    sentence-transformers/all-MiniLM-L6-v2
COMMIT    b1ae82044ee8447606cb57ea10a0f9b24659981b
LICENCE   apache-2.0
SIZE      87.4 MiB (91607178 bytes)
DIGEST    sha256:c1ea2174
SPACE     vs1-0978181612db7ef023ab
"""


def describe(**more: Any) -> str:
    return describe_model(EmbeddingServiceStatus.model_validate({**SERVED, **more}))


def test_where_the_served_model_came_from_is_said() -> None:
    assert describe() == TABLE


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"plan": {**JOB, "job": "docs-plan-0a1b"}}, "PLAN       Running (docs-plan-0a1b)"),
        ({"fetch": JOB}, "FETCH      Running (docs-fetch-0a1b)"),
        (
            {"fetch": {**JOB, "state": "Failed", "reason": "VolumeFull", "message": "no room"}},
            "FETCH      Failed (docs-fetch-0a1b): VolumeFull: no room",
        ),
        (
            {"model": {**SERVED["model"], "fetching": FETCHING}},
            "PROGRESS   fetching, 39.6 of 87.4 MiB, 7.9 MiB/s, 6 s left",
        ),
        (
            {"conversion": {**JOB, "state": "Succeeded", "chosen": "int8", "variants": [INT8]}},
            "CONVERSION   int8, least cosine to float32 0.9944 (docs-fetch-0a1b)",
        ),
    ],
    ids=["a plan", "a fetch", "a fetch that failed", "its progress", "a conversion"],
)
def test_what_is_on_its_way_has_a_line(more: dict[str, Any], line: str) -> None:
    assert [
        part.split() for part in describe(**more).splitlines() if part.startswith(line.split(maxsplit=1)[0])
    ] == [line.split()]


def test_the_tasks_of_a_model_with_adapters_are_listed_with_the_spaces_of_those_that_are_served() -> None:
    tasks = [{"name": "retrieval", "vectorSpace": "vs2-0978181612db7ef023ab"}, {"name": "separation"}]
    described = describe(model={**SERVED["model"], "adapterTasks": tasks})
    assert described == TABLE + "TASKS     retrieval (vs2-0978181612db7ef023ab), separation\n"


def test_what_is_not_known_yet_has_a_dash() -> None:
    assert {line.split()[-1] for line in describe_model(EmbeddingServiceStatus()).splitlines()} == {"-"}
