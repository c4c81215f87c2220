"""What the runtime leaves when a container ends, the operator understands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import BertModel

from e2e.hub.samples import model_folder
from embedserve_operator.kube.views.pods import Pod
from embedserve_operator.observe.pods import read_pod, read_result
from embedserve_operator.observe.reports import read_model_report
from embedserve_operator.state.failures import Failure
from embedserve_runtime import errors
from embedserve_runtime.commands import cli
from embedserve_runtime.config import load_config
from embedserve_runtime.telemetry.redaction import Redactor
from embedserve_runtime.telemetry.termination import write_termination_message
from tests.operator.builders import pod
from tests.runtime.api.test_adapter_tasks import save_published
from tests.runtime.model.test_card import edit
from tests.runtime.pipelines.folders import bert
from tests.support.models import small_minilm


def kinds(
    base: type[errors.EmbedserveError] = errors.EmbedserveError,
) -> Iterator[type[errors.EmbedserveError]]:
    """Every error that can end a container; those of a single request cannot."""
    for kind in base.__subclasses__():
        if not issubclass(kind, errors.RequestError):
            yield kind
            yield from kinds(kind)


def left_in(container: str, code: int, message: Path) -> dict[str, Any]:
    """A pod whose container ended, as the kubelet reports it."""
    ended = {"exitCode": code, "message": message.read_text(encoding="utf-8")}
    group = "initContainerStatuses" if container == "fetch" else "containerStatuses"
    found = pod("rev", "template", "docs-config")
    found["status"] = {group: [{"name": container, "state": {"terminated": ended}}]}
    return found


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The file that the kubelet makes for a container."""
    found = tmp_path / "termination-log"
    found.touch()
    return found


@pytest.mark.parametrize("container", ["fetch", "runtime"])
@pytest.mark.parametrize("kind", list(kinds()), ids=lambda kind: kind.__name__)
def test_every_error_that_ends_a_container_becomes_its_reason(
    log: Path, kind: type[errors.EmbedserveError], container: str
) -> None:
    write_termination_message(log, kind("tokenizer.json is missing in a/b"), Redactor())
    want = Failure(kind.reason, "tokenizer.json is missing in a/b", is_transient=kind.retryable)
    assert read_pod(Pod.parse(left_in(container, 1, log))).failure == want


def test_a_setting_from_a_secret_is_told_with_the_secret_and_its_key(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDSERVE_MODEL__TOKEN", "hf_first-line\nsecond-line")
    with pytest.raises(errors.ConfigError) as caught:
        load_config(flags={"model": {"source": "a/b"}})
    write_termination_message(log, caught.value, Redactor())
    ended = left_in("fetch", caught.value.exit_code, log)
    reference = {"secretKeyRef": {"name": "hub", "key": "token"}}
    container = {"name": "fetch", "env": [{"name": "EMBEDSERVE_MODEL__TOKEN", "valueFrom": reference}]}
    ended["spec"]["initContainers"] = [container]
    failure = read_pod(Pod.parse(ended)).failure
    assert failure is not None
    assert (failure.reason, failure.is_transient) == ("ConfigInvalid", False)
    assert failure.message.startswith(
        "configuration: model.token (set by EMBEDSERVE_MODEL__TOKEN): cannot be sent"
    )
    assert failure.message.endswith("(EMBEDSERVE_MODEL__TOKEN is key token of Secret hub)")
    assert "line" not in failure.message.replace("a line break", "")


def test_an_error_with_endless_words_still_has_its_reason(log: Path) -> None:
    write_termination_message(log, errors.ModelInvalid("ü" * 100_000), Redactor())
    failure = read_pod(Pod.parse(left_in("fetch", 1, log))).failure
    assert failure is not None
    assert (failure.reason, failure.is_transient) == ("ModelInvalid", False)


def test_a_model_that_is_yet_to_be_exported_is_understood(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = small_minilm(tmp_path / "model")
    edit(folder / "config.json", model_type="novel")
    monkeypatch.setenv("EMBEDSERVE_TERMINATION_LOG", str(log))
    words = ["fetch", "--model", str(folder), "--store", str(tmp_path / "store")]
    assert cli.main(words) == 1
    failure = read_pod(Pod.parse(left_in("fetch", 1, log))).failure
    assert failure is not None
    assert failure.reason == "UnsupportedArchitecture"
    assert "spec.cache and spec.onnx" in failure.message
    monkeypatch.setenv("EMBEDSERVE_MODEL__EXPORT_ELSEWHERE", "true")
    assert cli.main(words) == 0
    report = read_pod(Pod.parse(left_in("fetch", 0, log))).report
    assert report is not None
    assert (report.needs_export, report.vector_space, report.onnx_outputs) == (True, None, None)
    assert report.size_bytes is not None


def test_a_guess_of_the_pooling_is_understood(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bert(tmp_path / "model", BertModel)
    monkeypatch.setenv("EMBEDSERVE_TERMINATION_LOG", str(log))
    words = ["fetch", "--model", str(tmp_path / "model"), "--store", str(tmp_path / "store")]
    for pooling, is_guess in (("auto", True), ("mean", False)):
        monkeypatch.setenv("EMBEDSERVE_MODEL__POOLING", pooling)
        assert cli.main(words) == 0
        report = read_pod(Pod.parse(left_in("fetch", 0, log))).report
        assert report is not None
        assert report.guesses_pooling is is_guess


def test_the_tasks_of_a_model_are_understood_with_the_spaces_of_those_that_are_served(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_published(tmp_path / "model")
    monkeypatch.setenv("EMBEDSERVE_TERMINATION_LOG", str(log))
    config = tmp_path / "config.yaml"
    config.write_text(f"model: {{source: {folder}, adapters: [text-matching, retrieval]}}", encoding="utf-8")
    assert cli.main(["fetch", "--config", str(config), "--store", str(tmp_path / "store")]) == 0
    report = read_pod(Pod.parse(left_in("fetch", 0, log))).report
    assert report is not None
    first, second, *others = report.adapter_tasks
    assert (first.name, first.vector_space) == ("text-matching", report.vector_space)
    assert second.name == "retrieval"
    assert second.vector_space not in (None, first.vector_space)
    assert {task.name for task in others} == {"separation", "classification"}
    assert all(task.vector_space is None for task in others)


def test_what_was_planned_is_understood(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBEDSERVE_TERMINATION_LOG", str(log))
    assert cli.main(["plan", str(model_folder())]) == 0
    result = read_result(Pod.parse(left_in("plan", 0, log)), "plan")
    assert result.model is not None
    size = read_model_report(result.model).size
    assert size is not None
    assert size.file_bytes > 80_000_000
    assert size.memory is not None
    assert size.memory.max_length == 256


def test_what_was_fetched_is_understood(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBEDSERVE_TERMINATION_LOG", str(log))
    assert cli.main(["fetch", "--model", str(model_folder()), "--store", str(tmp_path / "store")]) == 0
    report = read_pod(Pod.parse(left_in("fetch", 0, log))).report
    assert report is not None
    assert report.dimensions == 384
    assert report.size_bytes is not None
    assert report.size_bytes > 80_000_000
    assert report.vector_space is not None
    assert report.vector_space.startswith("vs2-")
    assert (report.needs_export, report.onnx_outputs) == (False, ("last_hidden_state", "sentence_embedding"))
    assert not report.guesses_pooling
    assert report.digest is None, "a folder is used where it is, nothing is put into the store"
