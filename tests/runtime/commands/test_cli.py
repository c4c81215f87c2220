from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.hub import HubServer
from embedserve_runtime.commands.cli import main
from embedserve_runtime.store import publish_folder
from tests.support.models import small_minilm
from tests.support.server_process import PROGRAM

REPOSITORY = "sentence-transformers/all-MiniLM-L6-v2"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "termination-log").touch()
    path = tmp_path / "runtime.yaml"
    path.write_text(
        f"model: {{source: {REPOSITORY}, store: {tmp_path / 'store'}}}\n"
        f"termination_log: {tmp_path / 'termination-log'}\n"
    )
    return path


def test_fetch_prints_and_leaves_what_it_fetched(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small_minilm(tmp_path / "repositories" / REPOSITORY / "main")
    with HubServer(tmp_path / "repositories") as hub:
        monkeypatch.setenv("EMBEDSERVE_MODEL__ENDPOINT", hub.url)
        assert main(["fetch", "--config", str(config)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "termination-log").read_text()) == printed
    model = printed["model"]
    assert (model["source"], model["dimensions"]) == (REPOSITORY, 384)
    assert model["digest"].startswith("sha256:")
    assert model["outputs"] == ["dense", "hidden"]
    memory = model["memory"]
    assert memory["fixedBytes"] > memory["loadingBytes"] > 0
    assert (memory["resultNumbers"], memory["maxLength"]) == (384, 256)
    # The same model from its folder has the same identity.
    assert main(["inspect", "--json", str(tmp_path / "repositories" / REPOSITORY / "main")]) == 0
    assert json.loads(capsys.readouterr().out)["vectorSpace"] == model["vectorSpace"]


def test_a_fetch_makes_the_folder_that_servers_keep_compiled_kernels_in(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_minilm(tmp_path / "repositories" / REPOSITORY / "main")
    with HubServer(tmp_path / "repositories") as hub:
        monkeypatch.setenv("EMBEDSERVE_MODEL__ENDPOINT", hub.url)
        assert main(["fetch", "--config", str(config)]) == 0
    assert (tmp_path / "store" / "kernels").stat().st_mode & 0o070 == 0o070


def test_a_flag_wins_over_the_variable_of_the_hubs_client(config: Path, tmp_path: Path) -> None:
    small_minilm(tmp_path / "repositories" / REPOSITORY / "main")
    with HubServer(tmp_path / "repositories") as hub:
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "EMBEDSERVE_MODEL__ENDPOINT": hub.url}
        command = [sys.executable, "-c", PROGRAM, "fetch", "--config", str(config)]
        refused = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        fetched = subprocess.run(
            [*command, "--no-offline"], env=environment, capture_output=True, check=False
        )
    assert (refused.returncode, fetched.returncode) == (1, 0)
    assert "offline mode is set" in refused.stderr


def test_a_failed_fetch_exits_with_1_and_leaves_the_reason(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "repositories").mkdir()
    with HubServer(tmp_path / "repositories") as hub:
        monkeypatch.setenv("EMBEDSERVE_MODEL__ENDPOINT", hub.url)
        assert main(["fetch", "--config", str(config)]) == 1
    assert f"embedserve: ModelNotFound: repository {REPOSITORY} does not exist" in capsys.readouterr().err
    termination_message = json.loads((tmp_path / "termination-log").read_text())
    assert (termination_message["reason"], termination_message["retryable"]) == ("ModelNotFound", False)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["store", *arguments])
    return code, capsys.readouterr().out


def test_the_store_is_the_one_of_the_environment_where_no_flag_names_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDSERVE_MODEL__STORE", str(tmp_path / "served"))
    for name in ("served", "other"):
        (tmp_path / name).mkdir()
    assert run(capsys, "verify") == (0, f"0 damaged, 0 models and artifacts in {tmp_path / 'served'}\n")
    where = ("--store", str(tmp_path / "other"))
    assert run(capsys, "verify", *where) == (
        0,
        f"0 damaged, 0 models and artifacts in {tmp_path / 'other'}\n",
    )


@pytest.mark.parametrize("action", [["list"], ["list", "--json"], ["verify"]])
def test_a_store_that_is_not_there_is_not_an_empty_one(
    action: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing"
    assert main(["store", *action, "--store", str(missing)]) == os.EX_CONFIG
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"there is no folder {missing}" in captured.err


def test_an_empty_store_is_said_to_be_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "list", "--store", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"embedserve: the store {tmp_path} is empty\n")


def test_the_store_is_listed_checked_and_cleaned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fill(folder: Path) -> None:
        (folder / "model.onnx").write_bytes(b"graph")

    folder = publish_folder(tmp_path, "artifacts", "abc", fill, made_from="sha256:0")
    where = ("--store", str(tmp_path))
    code, listed = run(capsys, "list", "--json", *where)
    (row,) = json.loads(listed)
    assert (code, row["kind"], row["name"], row["sizeBytes"], row["madeFrom"]) == (
        0,
        "artifact",
        "abc",
        5,
        "sha256:0",
    )
    assert run(capsys, "list", *where)[1].split() == ["artifact", "abc", "0.0", "MB", "sha256:0"]
    assert run(capsys, "verify", *where) == (0, f"0 damaged, 1 models and artifacts in {tmp_path}\n")
    assert run(capsys, "gc", *where)[1] == f"freed 0.0 MB of {tmp_path}\n"
    assert run(capsys, "gc", "--older-than", "0s", "--dry-run", *where)[1].startswith(
        "artifact abc\nwould free"
    )
    assert folder.is_dir()
    (folder / "model.onnx").chmod(0o644)
    (folder / "model.onnx").write_bytes(b"grape")
    code, output = run(capsys, "verify", "--remove", *where)
    assert code == 1
    assert "artifacts/abc: model.onnx has SHA-256" in output
    assert not folder.exists()


@pytest.mark.parametrize(
    "arguments", [["store", "gc", "--older-than", "soon"], [], ["cook"], ["serve", "--port", "many"]]
)
def test_wrong_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Usage: embedserve" in captured.err
