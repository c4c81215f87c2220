"""The command line: each flag reaches its setting, helps say what there is, wrong usage is told apart from wrong
settings."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import pytest

from embedserve_runtime.commands.arguments import Invocation, build_command_line, parse_arguments
from embedserve_runtime.commands.cli import main
from embedserve_runtime.config import Setting, list_runtime_settings, load_config
from embedserve_runtime.config.catalog import SettingPath

PAGE = Path(__file__).parents[3] / "docs" / "command-line.md"
FLAGGED = [setting for setting in list_runtime_settings() if setting.flag is not None]
CONFIGURED = ("serve", "fetch", "plan", "convert", "inspect", "bench")
SECRETS = {("model", "token"), ("server", "api_keys")}
# Texts that fit where any text of the type does not.
SPECIAL: dict[SettingPath, str] = {
    ("server", "cors_origins"): "https://app.example",
    ("model", "commit"): "0123456789abcdef0123456789abcdef01234567",
    ("model", "sha256"): "0" * 64,
    ("model", "s3_endpoint"): "http://s3.example",
    ("server", "space_url"): "http://docs-{space8}:8080",
    ("server", "space_grpc"): "docs-{space8}:9090",
    ("telemetry", "otlp_endpoint"): "http://collector:4318",
}
SOURCES: dict[SettingPath, str] = {
    ("model", "sha256"): "https://example/m.tar",
    ("model", "s3_endpoint"): "s3://bucket/m",
}


def parse(*arguments: str) -> Invocation:
    parsed = parse_arguments(arguments)
    assert isinstance(parsed, Invocation)
    return parsed


def list_commands() -> list[tuple[str, ...]]:
    """Return the words of every command, and those of groups."""
    commands: list[tuple[str, ...]] = [()]
    for name, command in build_command_line().commands.items():
        commands.append((name,))
        if isinstance(command, click.Group):
            commands += [(name, action) for action in command.commands]
    return commands


@pytest.mark.parametrize("words", list_commands(), ids=" ".join)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_each_command_has_a_help_that_names_it(
    words: tuple[str, ...], flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, flag]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(" ".join(("Usage: embedserve", *words)))
    assert captured.err == ""


@pytest.mark.parametrize("command", CONFIGURED)
def test_the_whole_help_has_each_setting_with_its_variable_and_its_default(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help-all"]) == 0
    # Lines are broken at blanks and hyphens.
    output = "".join(capsys.readouterr().out.split())
    missing = [
        (setting.flag, text)
        for setting in FLAGGED
        for text in (
            str(setting.flag),
            setting.variable,
            f"default: {setting.default}" if setting.default else "",
            setting.description,
        )
        if "".join(text.split()) not in output
    ]
    assert missing == []


def test_the_help_shows_what_people_use_and_names_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 0
    output = capsys.readouterr().out
    for flag in ("--precision", "--pooling", "--device", "--prompt-name", "--port", "--log-format"):
        assert f"{flag} " in output
    assert "--max-pending-bytes" not in output
    assert "embedserve serve --help-all" in output
    titles = [line for line in output.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles == ["Options:", "Model:", "Engine:", "Server:", "Batching:", "Logs:"]


def test_every_setting_but_the_secrets_has_a_flag_of_its_own() -> None:
    flags = [setting.flag for setting in FLAGGED]
    assert len(flags) == len(set(flags))
    assert {setting.path for setting in list_runtime_settings() if setting.flag is None} == SECRETS


NEEDED: dict[SettingPath, tuple[str, ...]] = {("server", "pinned_grpc_port"): ("--grpc-port", "0")}
"""Flags without which another is refused."""


def write_value(setting: Setting) -> str:
    """Return a text that is not the setting's default and that it takes."""
    value_type = setting.type
    if setting.path in SPECIAL:
        return SPECIAL[setting.path]
    match value_type.kind:
        case "choice":
            return next(word for word in value_type.choices if word != setting.default)
        case "integer":
            return "7"
        case "number":
            return "0.5"
        case "pairs":
            return "query=query: "
        case _:
            return "some-name"


def look_up(values: Any, setting: Setting) -> Any:
    for name in setting.path:
        values = values[name] if isinstance(values, Mapping) else getattr(values, name)
    return values


@pytest.mark.parametrize("setting", FLAGGED, ids=lambda setting: setting.key)
def test_each_flag_reaches_its_setting(setting: Setting) -> None:
    source = [] if setting.path == ("model", "source") else [SOURCES.get(setting.path, "m")]
    if setting.type.kind == "boolean":
        want = setting.default == "false"
        word = str(setting.flag) if want else f"--no-{str(setting.flag).removeprefix('--')}"
        invocation = parse("serve", *source, word)
        assert look_up(load_config(None, invocation.settings), setting) is want
        return
    text = write_value(setting)
    words = [*source, *NEEDED.get(setting.path, ()), str(setting.flag), text]
    config = load_config(None, parse("serve", *words).settings)
    value = look_up(config, setting)
    if setting.type.kind == "pairs":
        assert value == {"query": "query: "}
    else:
        assert str(value[0] if setting.type.is_list else value) == text


@pytest.mark.parametrize(
    ("words", "path", "want"),
    [
        (["--max-batch-tokens", "auto"], ("batching", "max_batch_tokens"), "auto"),
        (["--onnx-precision", "auto"], ("onnx", "precision"), "auto"),
        (
            ["--onnx-precision", "int8", "--onnx-precision", "float16"],
            ("onnx", "precision"),
            ("int8", "float16"),
        ),
        (["--outputs", "dense", "--outputs", "sparse"], ("model", "outputs"), ("dense", "sparse")),
        (["--prompt", "a=1", "--prompt", "b=2=3"], ("model", "prompts"), {"a": "1", "b": "2=3"}),
    ],
    ids=["a word for a number", "a word for a list", "a list", "another list", "a mapping"],
)
def test_lists_mappings_and_words_are_as_in_a_file(
    words: list[str], path: tuple[str, str], want: object
) -> None:
    config = load_config(None, parse("serve", "m", *words).settings)
    assert getattr(getattr(config, path[0]), path[1]) == want


@pytest.mark.parametrize("command", CONFIGURED)
@pytest.mark.parametrize("words", [["lab/m"], ["--model", "lab/m"], ["lab/m", "--model", "lab/m"]], ids=str)
def test_the_model_is_an_argument_and_a_flag(command: str, words: list[str]) -> None:
    assert parse(command, *words).settings == {"model": {"source": "lab/m"}}


def test_a_flag_that_is_not_given_sets_nothing() -> None:
    assert parse("serve").settings == {}


@pytest.mark.parametrize(
    ("words", "want"),
    [
        (["serve", "m", "--poling", "cls"], "'--pooling'"),
        (["serve", "m", "--max-batch-token", "1"], "'--max-batch-tokens'"),
        (["srve"], "'serve'"),
        (["serve", "m", "--pooling", "clss"], "'clss' is not one of 'auto', 'cls', 'mean'"),
        (["serve", "m", "--port", "many"], "'--port': 'many' is not a valid integer"),
        (["serve", "m", "--threads", "many"], "'--threads': 'many' is not a valid integer"),
        (["serve", "m", "--http-workers", "many"], "'many' is not a valid integer, nor 'auto'"),
        (["serve", "m", "--prompt", "query"], "'query' is not written as NAME=TEXT"),
        (["serve", "m", "--prompt", "q=a", "--prompt", "q=b"], "--prompt gives one name two texts"),
        (["serve", "m", "--config", "a", "--config", "b"], "--config is given 2 times; give it once"),
        (["serve", "a", "--model", "b"], "Two models are named, a and --model b"),
        (["serve", "a", "b"], "unexpected extra argument (b)"),
        (["bench", "m", "--seconds", "0"], "'--seconds'"),
        (["store", "gc", "--older-than", "soon"], "'soon' is not an age such as 90s"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_exits_with_2_and_says_what_is_right(
    words: list[str], want: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    errors = capsys.readouterr().err
    assert want in errors
    assert "--help' for help." in errors


@pytest.mark.parametrize(
    ("words", "variables", "want"),
    [
        (["--port", "70000"], {}, "server.port (set by --port): Input should be less than or equal to 65535"),
        (
            ["--port", "70000"],
            {"EMBEDSERVE_SERVER__PORT": "80"},
            "server.port (set by --port): Input should be less than or equal to 65535",
        ),
        (
            ["--host", "::"],
            {"EMBEDSERVE_SERVER__PORT": "70000"},
            "server.port (set by EMBEDSERVE_SERVER__PORT): Input should be less than or equal to 65535",
        ),
        (["--onnx-parity-min-cosine", "2"], {}, "onnx.parity.min_cosine (set by --onnx-parity-min-cosine): "),
    ],
    ids=["a flag", "a flag before a variable", "a variable", "a flag of a group in a group"],
)
def test_wrong_settings_exit_with_78_and_name_where_they_come_from(
    words: list[str],
    variables: dict[str, str],
    want: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["serve", "m", *words]) == os.EX_CONFIG
    assert f"embedserve: ConfigInvalid: configuration: {want}" in capsys.readouterr().err


def test_without_a_model_the_error_says_how_to_name_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "empty.yaml").touch()
    for words in ([], ["--config", str(tmp_path / "empty.yaml")], ["--port", "80"]):
        assert main(["serve", *words]) == os.EX_CONFIG
        errors = capsys.readouterr().err
        assert "model.source is missing: give a model folder or a Hub repository" in errors
        assert "EMBEDSERVE_MODEL__SOURCE" in errors


def list_examples() -> list[tuple[str, str]]:
    """Return each command of docs/command-line.md that stands alone with its output."""
    example = re.compile(
        r"^```console\n\$ embedserve ?([^\n]*)\n((?!\$|```).*?)```$", re.MULTILINE | re.DOTALL
    )
    return example.findall(PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("words", "want"), list_examples(), ids=lambda text: text[:40].splitlines()[:1])
def test_the_page_shows_what_commands_print(
    words: str, want: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    main(shlex.split(words))
    captured = capsys.readouterr()
    assert captured.out + captured.err == want


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "0.1.0\n"
