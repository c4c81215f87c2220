from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from embedserve_runtime.config import RuntimeConfig, load_config
from embedserve_runtime.errors import ConfigError
from tests.support.settings_page import PAGE, render_page


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "runtime.yaml"
    path.write_text(
        "model: {source: from-file}\nbatching: {max_queue_tokens: 1, max_queue_inputs: 1, max_batch_tokens: 1}\n"
    )
    return path


def test_environment_wins_over_the_file_and_flags_over_both(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDSERVE_BATCHING__MAX_QUEUE_TOKENS", "2")
    monkeypatch.setenv("EMBEDSERVE_BATCHING__MAX_QUEUE_INPUTS", "2")
    config = load_config(file, {"batching": {"max_queue_inputs": 3}})
    batching = config.batching
    assert (batching.max_batch_tokens, batching.max_queue_tokens, batching.max_queue_inputs) == (1, 2, 3)
    assert config.model.source == "from-file"


REFUSED: dict[str, tuple[str, str]] = {
    "nothing at all": ("", "model: "),
    "an unknown group": ("model: {source: m}\nmodle: {}", "modle: Extra inputs are not permitted"),
    "an unknown key": ("model: {source: m, poling: cls}", "model.poling: Extra inputs are not permitted"),
    "no model": ("model: {}", "model.source is missing: give a model folder or a Hub repository"),
    "a negative budget": (
        "model: {source: m}\nbatching: {max_batch_tokens: -1}",
        "batching.max_batch_tokens",
    ),
    "a port that is none": (
        "model: {source: m}\nserver: {port: 70000}",
        "server.port: Input should be less than",
    ),
    "a host without a name": (
        "model: {source: m}\nserver: {host: ''}",
        "server.host: String should have at least",
    ),
    "a header that carries keys": (
        "model: {source: m}\nserver: {client_header: Authorization}",
        "server.client_header: must not be Authorization: it carries secrets",
    ),
    "a header that carries sessions": (
        "model: {source: m}\nserver: {client_header: cookie}",
        "server.client_header: must not be cookie",
    ),
    "a header instead of keys": (
        "model: {source: m}\nserver: {api_keys: Bearer sk-1}",
        "server.api_keys.0: is the name of an authentication scheme",
    ),
    "no group": ("model: {source: m}\nserver:\n", "server: Input should be a mapping"),
    "a number that may be a word": (
        "model: {source: m}\nengine: {devices: 0}",
        "engine.devices: Input should be greater than 0 or 'auto'",
    ),
    "a word of a list that may be a word": (
        "model: {source: m}\nonnx: {precision: [x]}",
        "onnx.precision.0: Input should be 'float32', 'float16' or 'int8'; onnx.precision: Input should be 'auto'",
    ),
    "YAML that is nested too deeply": ("[" * 3000, "runtime.yaml is not valid YAML: it is nested too deeply"),
    "a control character": (
        "model: \x07",
        "runtime.yaml is not valid YAML: character 7 is a control character",
    ),
    "a key twice": (
        "model: {source: m}\nserver: {port: 1}\nserver: {port: 2}",
        "is not valid YAML: the same key a second time in line 3, column 1",
    ),
    "more threads than any machine has": (
        "model: {source: m}\nengine: {threads: 100000}",
        "engine.threads: Input should be less than or equal to 1024",
    ),
    "an endless time": (
        "model: {source: m}\nbatching: {request_timeout_seconds: .inf}",
        "batching.request_timeout_seconds: Input should be a finite number",
    ),
    "a second port for gRPC without the first": (
        "model: {source: m}\nserver: {pinned_grpc_port: 0}",
        "server: pinned_grpc_port needs grpc_port",
    ),
    "an origin without a scheme": (
        "model: {source: m}\nserver: {cors_origins: [nope]}",
        "server.cors_origins.0: String should match pattern",
    ),
    "no YAML": ("model: [", "runtime.yaml is not valid YAML"),
    "no mapping": ("[1]", "must hold a mapping of settings, found a list"),
}


@pytest.mark.parametrize(("text", "want_message"), REFUSED.values(), ids=REFUSED.keys())
def test_wrong_settings_stop_the_start_with_the_path_of_the_field(
    file: Path, text: str, want_message: str
) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert want_message in caught.value.message


def test_a_file_that_is_no_text_is_named_without_the_names_of_exceptions(file: Path) -> None:
    file.write_bytes(b"\x7fELF\xff")
    with pytest.raises(ConfigError, match=r"runtime\.yaml is not valid YAML: byte 4 is not UTF-8 text$"):
        load_config(file)


@pytest.mark.parametrize(
    ("variable", "value", "want_message"),
    [
        (
            "EMBEDSERVE_MODEL__OUTPUTS",
            "dense",
            r"configuration: model\.outputs \(set by EMBEDSERVE_MODEL__OUTPUTS\): .* JSON",
        ),
        ("EMBEDSERVE_MODEL__PROMPTS", "a=b", r"model\.prompts \(set by EMBEDSERVE_MODEL__PROMPTS\): .* JSON"),
        ("EMBEDSERVE_ENGINE", "onnx", r"engine \(set by EMBEDSERVE_ENGINE\): .* JSON"),
        (
            "embedserve_model__outputs",
            "dense",
            r"model\.outputs \(set by embedserve_model__outputs\): .* JSON",
        ),
        (
            "embedserve_server__port",
            "70000",
            r"server\.port \(set by embedserve_server__port\): Input should",
        ),
    ],
)
def test_a_variable_that_is_wrong_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, want_message: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=want_message):
        load_config(flags={"model": {"source": "m"}})


@pytest.mark.parametrize(
    "origin", ["*", "null", "https://app.example", "http://localhost:3000", "tauri://localhost"]
)
def test_origins_are_those_that_browsers_send(origin: str) -> None:
    config = load_config(flags={"model": {"source": "m"}, "server": {"cors_origins": [origin]}})
    assert config.server.cors_origins == (origin,)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the configuration file .*absent\.yaml"):
        load_config(tmp_path / "absent.yaml")


def test_a_token_is_in_neither_the_printed_settings_nor_an_error(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDSERVE_MODEL__TOKEN", "hf_secret")
    assert "hf_secret" not in repr(load_config(file))
    file.write_text("model: {source: m, wrong: 1}")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert "hf_secret" not in caught.value.message


def fields_of(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, str | None]]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from fields_of(kind, f"{path}{name}.")
        else:
            yield f"{path}{name}", field.description


def test_every_setting_says_what_it_does() -> None:
    assert [name for name, description in fields_of(RuntimeConfig) if not description] == []


def test_white_space_around_a_secret_is_stripped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBEDSERVE_MODEL__TOKEN", "\t hf_marked \r\n")
    monkeypatch.setenv("EMBEDSERVE_SERVER__API_KEYS", "first,\n second\n")
    config = load_config(flags={"model": {"source": "m"}})
    assert [secret.get_secret_value() for secret in config.secrets if secret] == [
        "hf_marked",
        "first",
        "second",
    ]


def test_an_empty_variable_for_a_token_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBEDSERVE_MODEL__TOKEN", "")
    token = load_config(flags={"model": {"source": "m"}}).model.token
    assert token is None or not token.get_secret_value()


NO_HEADER_VALUES = {
    "two lines": "marked-one\nmarked-two",
    "a name in front of it": "token: marked",
    "a word in front of it": "Bearer marked",
    "a letter outside ASCII": "marked-ü",
    "a control character": "marked\x07",
    "white space alone": " \n",
}


@pytest.mark.parametrize("value", NO_HEADER_VALUES.values(), ids=NO_HEADER_VALUES)
def test_a_token_that_no_header_can_carry_is_refused_unquoted_with_the_variable_that_has_it(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("EMBEDSERVE_MODEL__TOKEN", value)
    with pytest.raises(ConfigError) as caught:
        load_config(flags={"model": {"source": "m"}})
    assert "model.token (set by EMBEDSERVE_MODEL__TOKEN): " in caught.value.message
    assert "marked" not in caught.value.message
    assert not caught.value.retryable


def test_an_api_key_that_no_header_can_carry_is_refused_unquoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBEDSERVE_SERVER__API_KEYS", "fine,marked-\x07")
    with pytest.raises(
        ConfigError, match=r"server.api_keys.1 \(set by EMBEDSERVE_SERVER__API_KEYS\)"
    ) as caught:
        load_config(flags={"model": {"source": "m"}})
    assert "marked" not in caught.value.message


def test_a_file_that_is_no_yaml_is_not_quoted(file: Path) -> None:
    file.write_text("model:\n  source: m\n  token: hf_marked: [\n")
    with pytest.raises(ConfigError, match=r"is not valid YAML: .* in line 3, column") as caught:
        load_config(file)
    assert "marked" not in caught.value.message


def test_the_page_of_settings_is_what_the_code_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == render_page(), "run `python -m tests.support.settings_page`"
