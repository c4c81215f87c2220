"""Log lines and the termination message, as other programs read them."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from embedserve_runtime.config import load_config
from embedserve_runtime.errors import ModelNotFound, SourceUnavailable
from embedserve_runtime.telemetry.logs import JsonFormatter, TextFormatter
from embedserve_runtime.telemetry.redaction import Redactor
from embedserve_runtime.telemetry.termination import write_termination_message
from tests.support.terminal import run_in_terminal

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


def text_line_of(message: str, **fields: object) -> str:
    record = logging.getLogger("tests").makeRecord(
        "tests", logging.INFO, "", 0, message, (), None, extra=fields
    )
    return TextFormatter(Redactor(["secret-value"]), is_colored=False).format(record)


def test_a_line_for_people_has_the_time_the_level_and_the_fields_with_a_value() -> None:
    line = text_line_of("ready", model="a/b", pinned=None, tokens=16, path=Path("/a"), why="two words")
    assert line[8:] == ' info     ready model=a/b tokens=16 path="/a" why="two words"'


def test_a_line_for_people_has_the_fields_of_a_mapping_each_for_itself() -> None:
    line = text_line_of("fetching", progress={"bytesDone": 1, "secondsRemaining": None})
    assert line[8:] == " info     fetching bytesDone=1"


def test_nothing_in_a_line_for_people_moves_the_cursor() -> None:
    line = text_line_of("file \x1b[2J\nname", path="\x1b]0;title\x07")
    assert line.isprintable()


def test_a_line_for_people_has_no_secret() -> None:
    assert "secret-value" not in text_line_of("sent secret-value", header="Bearer secret-value")


PROGRAM = """
import logging, sys
from embedserve_runtime.telemetry.logs import configure_logs
from embedserve_runtime.telemetry.redaction import Redactor
configure_logs("info", Redactor(), sys.argv[1])
logging.getLogger("embedserve_runtime.x").info("ready", extra={"model": "a/b"})
logging.getLogger("embedserve_runtime.x").error("broken")
"""


def logging_program(log_format: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM, log_format]


def test_logs_are_readable_and_coloured_on_a_terminal() -> None:
    text = run_in_terminal(logging_program("auto")).text
    assert "\x1b[32minfo" in text
    assert "\x1b[31merror" in text
    assert "ready \x1b[2mmodel=a/b" in text


def test_a_terminal_has_json_where_it_is_asked_for_and_no_colour_where_that_is_not_wanted() -> None:
    lines = run_in_terminal(logging_program("json")).text.splitlines()
    assert [json.loads(line)["message"] for line in lines] == ["ready", "broken"]
    assert "\x1b" not in run_in_terminal(logging_program("auto"), {"NO_COLOR": "1"}).text


def test_a_pipe_gets_json_unless_text_is_asked_for() -> None:
    auto, text = (
        subprocess.run(logging_program(kind), capture_output=True, text=True, check=True).stderr.splitlines()
        for kind in ("auto", "text")
    )
    assert [json.loads(line)["level"] for line in auto] == ["info", "error"]
    assert text[0].endswith("info     ready model=a/b")


MESSAGES = {"short": "no such model", "long": "é" * 5_000, "wide": "深" * 5_000, "escaped": "\0" * 5_000}


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_the_termination_message_is_whole_json_within_what_the_kubelet_keeps(
    tmp_path: Path, message: str
) -> None:
    path = tmp_path / "termination-log"
    path.touch()
    write_termination_message(path, ModelNotFound(message), Redactor())
    assert len(path.read_bytes()) <= KUBELET_BYTES
    message_on_disk = json.loads(path.read_bytes())
    assert (message_on_disk["reason"], message_on_disk["retryable"]) == ("ModelNotFound", False)
    assert message.startswith(message_on_disk["message"])


def test_outside_a_pod_nothing_is_written(tmp_path: Path) -> None:
    write_termination_message(tmp_path / "absent", SourceUnavailable("x"), Redactor())
    assert not (tmp_path / "absent").exists()
