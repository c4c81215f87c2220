"""A status that another version of the operator wrote, or anybody: what can be read of it is used, field by field."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedserve_operator.api.reading import read_known_fields
from embedserve_operator.api.status import EmbeddingServiceStatus
from embedserve_operator.kube.views.resource import EmbeddingServiceObject
from embedserve_operator.observe.resource import read_resource
from tests.operator.builders import resource

MOMENT = "2026-01-02T12:00:00Z"
SPACE = "vs2-0123456789abcdef0123"
JOB = {"job": "docs-fetch", "state": "Succeeded", "template": "t", "generation": 3}
PREVIOUS = {"id": SPACE, "revision": "r0", "replacedAt": MOMENT, "keptUntil": MOMENT}
CONDITION = {
    "type": "Ready",
    "status": "True",
    "reason": "Serving",
    "message": "m",
    "lastTransitionTime": MOMENT,
}
STATUS: dict[str, Any] = {
    "observedGeneration": 3,
    "conditions": [CONDITION, {**CONDITION, "type": "Stalled"}],
    "replicas": 2,
    "readyReplicas": 1,
    "selector": "a=b",
    "endpoint": {"url": "http://docs.search.svc", "grpc": "docs.search.svc:9000"},
    "vectorSpace": {
        "id": SPACE,
        "compute": ["float32"],
        "dimensions": 384,
        "outputs": ["dense", "hidden"],
        "revision": "r1",
        "since": MOMENT,
        "previous": [PREVIOUS, {**PREVIOUS, "revision": "r9"}],
    },
    "model": {
        "source": "a/b",
        "fetching": {"phase": "p", "bytesDone": 1, "bytesTotal": 2, "bytesPerSecond": 3},
    },
    "plan": {**JOB, "sizeBytes": 5},
    "fetch": {**JOB, "outputs": ["dense"], "sizeBytes": 5},
    "conversion": {**JOB, "variants": [{"precision": "int8", "published": True, "minCosine": 0.5}]},
    "rollout": {"revision": "r2", "state": "Held"},
    "hardware": {"class": "cpu", "matchingNodes": 3},
    "autoscaling": {"currentReplicas": 1, "desiredReplicas": 2, "metric": "inFlight", "target": "4"},
}
WHOLE = EmbeddingServiceStatus.model_validate(STATUS)
Path = tuple[int | str, ...]


def paths(value: Any, before: Path = ()) -> Iterator[Path]:
    """The paths of everything inside a value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in inside:
        yield (*before, step)
        yield from paths(inner, (*before, step))


ALL_PATHS = list(paths(STATUS))


def at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def test_a_readable_status_is_read_as_a_whole() -> None:
    assert set(STATUS) == {field.alias for field in EmbeddingServiceStatus.model_fields.values()}
    assert read_known_fields(EmbeddingServiceStatus, STATUS) == WHOLE


@pytest.mark.parametrize(
    "path", [(), *(path for path in ALL_PATHS if isinstance(at(STATUS, path), dict))], ids=str
)
def test_a_field_of_another_version_takes_nothing_else_away(path: Path) -> None:
    status = deepcopy(STATUS)
    at(status, path)["addedLater"] = {"some": ["thing"]}
    assert read_known_fields(EmbeddingServiceStatus, status) == WHOLE


JUNK: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 7, -1, 1.5, "", "words", [], ["a"], {}, {"a": 1}, [[]], [{}]]
)


@given(path=st.sampled_from(ALL_PATHS), junk=JUNK)
def test_a_field_of_another_type_takes_nothing_away_beside_it(path: Path, junk: Any) -> None:
    status = deepcopy(STATUS)
    at(status, path[:-1])[path[-1]] = junk
    read = read_known_fields(EmbeddingServiceStatus, status).as_wire()
    for name in STATUS:
        if name != path[0]:
            assert read.get(name) == WHOLE.as_wire().get(name)
    if path[:2] == ("vectorSpace", "previous"):
        assert read["vectorSpace"]["id"] == SPACE
        if len(path) > 2:
            other_item = WHOLE.as_wire()["vectorSpace"]["previous"][1 - int(path[2])]
            assert other_item in read["vectorSpace"]["previous"], "the other model is still kept"


@given(
    st.recursive(
        JUNK,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from([*STATUS, "previous", "id", "x"]), inner, max_size=4)
        ),
        max_leaves=12,
    )
)
def test_whatever_somebody_wrote_is_read(written: Any) -> None:
    assert isinstance(read_known_fields(EmbeddingServiceStatus, written), EmbeddingServiceStatus)


def test_a_resource_with_such_a_status_has_the_rest_of_it() -> None:
    received = {
        **resource(),
        "status": {**STATUS, "addedLater": 1, "rollout": {"state": "Paused", "revision": "r2"}},
    }
    status = read_resource(EmbeddingServiceObject.parse(received)).status
    assert status.vector_space == WHOLE.vector_space
    assert status.rollout is None, "a state that this version does not know"
