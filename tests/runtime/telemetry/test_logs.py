"""Log lines and the termination message, as other programs read them."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import pytest

from embedserve_runtime.config import load_config
from embedserve_runtime.errors import ModelNotFound, SourceUnavailable
from embedserve_runtime.telemetry.logs import JsonFormatter
from embedserve_runtime.telemetry.redaction import Redactor
from embedserve_runtime.telemetry.termination import write_termination_message

KUBELET_BYTES = 4096


def line_of(message: str, *arguments: object, **fields: object) -> dict[str, object]:
    record = logging.getLogger("tests").makeRecord(
        "tests", logging.INFO, "", 0, message, arguments, None, extra=fields
    )
    text = JsonFormatter(Redactor()).format(record)
    assert "\n" not in text
    content: dict[str, object] = json.loads(text)
    return content


def test_a_line_is_one_json_object_with_the_fields_given() -> None:
    line = line_of("request %s", "done", route="/embed", status=200)
    assert (line["level"], line["logger"], line["message"]) == ("info", "tests", "request done")
    assert (line["route"], line["status"]) == ("/embed", 200)
    assert str(line["time"]).endswith("+00:00")


def test_values_that_are_not_json_are_written_as_text() -> None:
    assert line_of("x", path=Path("/a"), several={"deep": Path("/b")})["path"] == "/a"


def test_an_exception_is_in_its_line() -> None:
    try:
        raise ValueError("inside")
    except ValueError:
        record = logging.getLogger("tests").makeRecord(
            "tests", logging.ERROR, "", 0, "failed", (), sys.exc_info()
        )
    line = json.loads(JsonFormatter(Redactor()).format(record))
    assert "ValueError: inside" in line["exception"]


def test_a_secret_setting_is_masked() -> None:
    config = load_config(flags={"model": {"source": "a/b", "token": "hf_secret"}})
    assert "hf_secret" not in str(line_of("settings", settings=config.model)["settings"])


MESSAGES = {"short": "no such model", "long": "é" * 5_000, "wide": "深" * 5_000, "escaped": "\0" * 5_000}


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_the_termination_message_is_whole_json_within_what_the_kubelet_keeps(
    tmp_path: Path, message: str
) -> None:
    path = tmp_path / "termination-log"
    path.touch()
    write_termination_message(path, ModelNotFound(message), Redactor())
    assert len(path.read_bytes()) <= KUBELET_BYTES
    left = json.loads(path.read_bytes())
    assert (left["reason"], left["retryable"]) == ("ModelNotFound", False)
    assert message.startswith(left["message"])


def test_outside_a_pod_nothing_is_written(tmp_path: Path) -> None:
    write_termination_message(tmp_path / "absent", SourceUnavailable("x"), Redactor())
    assert not (tmp_path / "absent").exists()
