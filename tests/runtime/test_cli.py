from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e.hub import HubServer
from embedserve_runtime.cli import main
from tests.support.models import copy_of_minilm

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
    copy_of_minilm(tmp_path / "repositories" / REPOSITORY / "main")
    with HubServer(tmp_path / "repositories") as hub:
        monkeypatch.setenv("EMBEDSERVE_MODEL__ENDPOINT", hub.url)
        assert main(["fetch", "--config", str(config)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "termination-log").read_text()) == printed
    model = printed["model"]
    assert (model["source"], model["dimensions"]) == (REPOSITORY, 384)
    assert model["digest"].startswith("sha256:")
    # The same model from its folder has the same identity.
    assert main(["inspect", "--json", str(tmp_path / "repositories" / REPOSITORY / "main")]) == 0
    assert json.loads(capsys.readouterr().out)["vectorSpace"] == model["vectorSpace"]


def test_a_failed_fetch_exits_with_1_and_leaves_the_reason(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "repositories").mkdir()
    with HubServer(tmp_path / "repositories") as hub:
        monkeypatch.setenv("EMBEDSERVE_MODEL__ENDPOINT", hub.url)
        assert main(["fetch", "--config", str(config)]) == 1
    assert f"embedserve: ModelNotFound: repository {REPOSITORY} does not exist" in capsys.readouterr().err
    left = json.loads((tmp_path / "termination-log").read_text())
    assert (left["reason"], left["retryable"]) == ("ModelNotFound", False)


@pytest.mark.parametrize("arguments", [[], ["cook"], ["serve", "--port", "many"]])
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
