"""The census of the repositories themselves, against a hub of the tests that has small ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.hub import HubServer
from tests.census.kinds import build_kind
from tests.census.layouts import edit_config
from tests.census.online import Hub, survey_all
from tests.census.repositories import Kind, Repository
from tests.support.tolerances import FP32_MAX_ABS_DIFF

SERVED = Repository("acme/served", Kind("dense", "bert", "mean normalize"), 22.7, is_confirmed=True)
LARGE = Repository("acme/large", SERVED.kind, 7_000, is_confirmed=True)
REFUSED = Repository("acme/refused", Kind("dense", "qwen3-vl", "last normalize"), None, is_confirmed=True)
ABSENT = Repository("acme/absent", SERVED.kind, None, is_confirmed=True)
ALL = (SERVED, LARGE, REFUSED, ABSENT)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    root = tmp_path / "repositories"
    for repository in (SERVED, LARGE, REFUSED):
        built = build_kind(repository.kind, tmp_path / repository.name)
        shutil.copytree(built.folder, root / repository.name / "main")
    with HubServer(root) as server:
        yield Hub(tmp_path / "store", server.url)


def test_commits_identities_vectors_and_words_are_recorded_and_compared_with_the_next_run(
    hub: Hub, tmp_path: Path
) -> None:
    record = tmp_path / "record.json"
    assert survey_all(ALL, record, hub) == {}
    found = json.loads(record.read_text())
    assert found["acme/served"]["difference"] <= FP32_MAX_ABS_DIFF
    assert found["acme/served"]["vectors"]
    assert found["acme/large"]["vectors"] == []
    assert found["acme/large"]["vector_space"] == found["acme/served"]["vector_space"]
    assert len(found["acme/served"]["commit"]) == 40
    assert "model_type 'qwen3_vl' is not supported: it reads images" in found["acme/refused"]["refusal"]
    assert found["acme/absent"]["refusal"]
    assert survey_all([SERVED, REFUSED], record, hub) == {}

    edit_config(tmp_path / "repositories" / "acme/refused" / "main", model_type="siglip")
    assert survey_all(ALL, record, hub).keys() == {"acme/refused"}
