"""The commands, but for those that run for ever."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import yaml

from embedserve_operator.commands.cli import kubectl_plugin, main

EXAMPLE = Path(__file__).parents[3] / "examples" / "minilm.yaml"


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


def test_explain_says_which_nodes_fit(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = Path(__file__).parents[1] / "nodes.yaml"
    assert main(["explain", "-f", str(EXAMPLE), "--nodes", str(nodes)]) == 0
    assert "nodes that fit: plain, graviton, spark" in capsys.readouterr().out


def test_the_plugin_has_the_commands_that_need_no_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert kubectl_plugin(["render", "-f", str(EXAMPLE)]) == 0
    assert "kind: Deployment" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        kubectl_plugin(["run"])
    assert "invalid choice: 'run'" in capsys.readouterr().err


def test_kubectl_finds_the_plugin_by_its_name() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "operator" / "pyproject.toml").read_text())
    assert (
        project["project"]["scripts"]["kubectl-embedserve"]
        == f"{kubectl_plugin.__module__}:{kubectl_plugin.__name__}"
    )


@pytest.mark.parametrize(
    ("words", "want"),
    [
        pytest.param(["--runtime-image-architectures", "vax"], "not vax", id="an unknown architecture"),
        pytest.param(["--hardware-classes", "/nowhere.yaml"], "/nowhere.yaml", id="no such file"),
    ],
)
def test_options_that_make_no_sense_are_named(
    words: list[str], want: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["render", "-f", str(EXAMPLE), *words]) == 1
    assert want in capsys.readouterr().err


def test_classes_of_a_file_are_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    classes, manifest = tmp_path / "classes.yaml", tmp_path / "docs.yaml"
    classes.write_text("pool: {nodeLabels: {pool: a}, cpus: 3}", encoding="utf-8")
    content = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    content["spec"]["hardware"] = {"class": "pool"}
    manifest.write_text(yaml.safe_dump(content), encoding="utf-8")
    assert main(["render", "-f", str(manifest), "--hardware-classes", str(classes)]) == 0
    children = list(yaml.safe_load_all(capsys.readouterr().out))
    (deployment,) = [child for child in children if child["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == {"requests": {"cpu": 3}}
