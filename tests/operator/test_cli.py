"""The commands that need no cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from embedserve_operator.cli import main

EXAMPLE = Path(__file__).parents[2] / "examples" / "minilm.yaml"


def test_crds_prints_the_definition(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crds"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["metadata"]["name"] == "embeddingservices.embedserve.dev"


def test_render_prints_the_children_of_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", "-f", str(EXAMPLE), "--runtime-image", "mine:1"]) == 0
    children = list(yaml.safe_load_all(capsys.readouterr().out))
    (deployment,) = [child for child in children if child["kind"] == "Deployment"]
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "mine:1"


def test_render_of_a_wrong_file_fails_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("kind: Pod", encoding="utf-8")
    assert main(["render", "-f", str(file)]) == 1
    assert "there is no EmbeddingService" in capsys.readouterr().err


def test_render_of_a_file_that_is_not_there_fails_and_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", "-f", "/nowhere/x.yaml"]) == 1
    assert "/nowhere/x.yaml" in capsys.readouterr().err
