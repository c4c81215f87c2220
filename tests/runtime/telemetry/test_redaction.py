"""Secrets in whatever the process writes: logs, tracebacks, termination messages, standard error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from embedserve_runtime.telemetry.redaction import REDACTED, Redactor, list_environment_secrets

SECRET = 'mark"ed\\ü/+\n'

SPELLINGS = {
    "as it is": 'Bearer mark"ed\\ü/+',
    "in JSON": json.dumps(SECRET),
    "in JSON as ASCII": json.dumps({"authorization": f"Bearer {SECRET}"}),
    "in Python": repr(SECRET),
    "as bytes": repr(f"Bearer {SECRET}".encode()),
    "in a URL": "https://host/?token=mark%22ed%5C%C3%BC%2F%2B",
}


@pytest.mark.parametrize("text", SPELLINGS.values(), ids=SPELLINGS)
def test_a_secret_is_replaced_in_every_spelling(text: str) -> None:
    redacted = Redactor([SECRET]).redact(text)
    assert REDACTED in redacted
    assert "mark" not in redacted


def test_of_a_secret_that_begins_as_another_nothing_is_left() -> None:
    assert Redactor(["marked", "marked-longer"]).redact("marked-longer marked") == f"{REDACTED} {REDACTED}"


def test_short_values_and_other_words_are_left_alone() -> None:
    assert Redactor(["true", ""]).redact("true to its word") == "true to its word"


VARIABLES = {
    "EMBEDSERVE_MODEL__TOKEN": ("hf_a", "hf_a"),
    "EMBEDSERVE_SERVER__API_KEYS": ("a,b", "a,b"),
    "AWS_ACCESS_KEY_ID": ("AKIA", "AKIA"),
    "AWS_SECRET_ACCESS_KEY": ("s", "s"),
    "AWS_SESSION_TOKEN": ("t", "t"),
    "HF_TOKEN": ("hf_b", "hf_b"),
    "OTEL_EXPORTER_OTLP_HEADERS": ("authorization=x", "authorization=x"),
    "HTTP_PROXY": ("http://proxy:3128", None),
    "EMBEDSERVE_BATCHING__MAX_BATCH_TOKENS": ("16384", None),
    "TOKENIZERS_PARALLELISM": ("false", None),
    "HF_TOKEN_PATH": ("/home/token", None),
    "AWS_REGION": ("eu-west-1", None),
}


@pytest.mark.parametrize("name", VARIABLES)
def test_which_variables_are_secrets(name: str) -> None:
    value, secret = VARIABLES[name]
    assert list_environment_secrets({name: value}) == ([secret] if secret else [])


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://user:secretword@proxy:3128", ["secretword", "user:secretword"]),
        ("http://user:secret/word@proxy:3128", ["secret/word", "secret"]),
        ("http://user:with@sign-in-it@proxy", ["with@sign-in-it", "sign-in-it"]),
        ("user:secretword@proxy", ["secretword"]),
        ("http://onlytoken@proxy", ["onlytoken"]),
        ("http://proxy:3128", []),
    ],
)
def test_what_may_be_quoted_of_a_proxy_is_a_secret(url: str, parts: list[str]) -> None:
    secrets = list_environment_secrets({"HTTPS_PROXY": url})
    assert set(parts) <= set(secrets)
    assert bool(secrets) == bool(parts)


BREAKS = {
    "an error that nobody caught": "raise ValueError('Bearer ' + os.environ['HF_TOKEN'])",
    "an error in a thread": "t = threading.Thread(target=fail); t.start(); t.join()",
    "an error in a task of the event loop": "asyncio.run(forgotten())",
    "a line of a library": "logging.getLogger('library').warning('sent %r', os.environ['HF_TOKEN'].encode())",
}
PROGRAM = """
import asyncio, gc, logging, os, threading
from embedserve_runtime.telemetry.logs import configure_logs
from embedserve_runtime.telemetry.redaction import build_redactor

def fail():
    raise ValueError("Bearer " + os.environ["HF_TOKEN"])

async def forgotten():
    asyncio.get_running_loop().call_soon(fail)
    await asyncio.sleep(0)
    await asyncio.sleep(0)

configure_logs("info", build_redactor(()))
"""


@pytest.mark.parametrize("line", BREAKS.values(), ids=BREAKS)
def test_no_traceback_of_the_process_has_a_secret(line: str) -> None:
    environment = {**os.environ, "HF_TOKEN": "hf_marked-value\n"}
    completed = subprocess.run(
        [sys.executable, "-c", PROGRAM + line], env=environment, capture_output=True, text=True, check=False
    )
    assert "marked" not in completed.stdout + completed.stderr
    assert REDACTED in completed.stderr
    assert all(json.loads(logged)["logger"] for logged in completed.stderr.splitlines())


@pytest.mark.parametrize("variable", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"])
def test_an_s3_key_that_no_header_can_carry_is_refused_unquoted(variable: str, tmp_path: Path) -> None:
    environment = {**os.environ, variable: "marked-one\nmarked-two"}
    program = "import sys; from embedserve_runtime.commands.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "fetch", "--model", "s3://bucket/prefix"]
    completed = subprocess.run(
        [*command, "--store", str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert completed.returncode == os.EX_CONFIG
    assert f"ConfigInvalid: {variable} cannot be sent in an HTTP header" in completed.stderr
    assert "marked" not in completed.stdout + completed.stderr
