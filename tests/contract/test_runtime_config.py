"""What the operator writes, the runtime reads: the one place where both are imported."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from embedserve_operator.render import render
from embedserve_operator.specs.runtime_config import (
    ENDPOINT_DRAIN_SECONDS,
    MANAGEMENT_PORT,
    SERVING_PORT,
)
from embedserve_runtime.config import RuntimeConfig, load_config
from tests.operator.builders import SETTINGS

MANIFEST_FOLDER = Path(__file__).parents[1] / "operator" / "manifests"
MANIFESTS = sorted(MANIFEST_FOLDER.glob("*.yaml"))


def configs(manifest: Path, folder: Path) -> list[RuntimeConfig]:
    children = yaml.safe_load_all(render(manifest.read_text(encoding="utf-8"), SETTINGS))
    loaded = []
    for child in children:
        if child["kind"] == "ConfigMap":
            file = folder / f"{child['metadata']['name']}.yaml"
            file.write_text(child["data"]["runtime.yaml"], encoding="utf-8")
            loaded.append(load_config(file))
    return loaded


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_every_rendered_configuration_starts_the_runtime(manifest: Path, tmp_path: Path) -> None:
    for config in configs(manifest, tmp_path):
        server = config.server
        assert (server.port, server.management_port) == (SERVING_PORT, MANAGEMENT_PORT)
        assert server.endpoint_drain_seconds == ENDPOINT_DRAIN_SECONDS
        assert server.shutdown_grace_seconds >= 30
        assert config.model.store == Path("/models")


def test_every_field_of_the_resource_arrives(tmp_path: Path) -> None:
    (config,) = configs(MANIFEST_FOLDER / "every-field.yaml", tmp_path)
    model, batching = config.model, config.batching
    assert (model.source, model.revision) == (
        "acme/private-encoder",
        "8b3219a92973c328a8e22fadcfa821b5dc75636a",
    )
    assert (model.pooling, model.dimensions, model.max_length) == ("cls", 256, 512)
    assert (model.default_prompt, model.prompts) == ("query", {"query": "query: ", "passage": "passage: "})
    assert model.endpoint == "http://hub.example"
    assert (batching.max_batch_tokens, batching.max_queue_tokens) == (16384, 500000)
    assert (batching.max_queue_inputs, batching.max_client_batch_size) == (10000, 128)
    assert batching.request_timeout_seconds == 60
    assert config.server.served_model_name == "docs"


def test_a_volume_is_a_folder_for_the_runtime(tmp_path: Path) -> None:
    (folder,) = configs(MANIFEST_FOLDER / "volume.yaml", tmp_path)
    (root,) = configs(MANIFEST_FOLDER / "volume-root.yaml", tmp_path)
    assert (folder.model.source, root.model.source) == ("/volume/encoders/minilm", "/volume")
    assert folder.server.served_model_name == "models:/encoders/minilm"


def test_the_token_comes_in_by_the_name_that_the_runtime_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = (MANIFEST_FOLDER / "every-field.yaml").read_text(encoding="utf-8")
    children = list(yaml.safe_load_all(render(content, SETTINGS)))
    deployment = next(child for child in children if child["kind"] == "Deployment")
    fetch = deployment["spec"]["template"]["spec"]["initContainers"][0]
    variable = next(env["name"] for env in fetch["env"] if "valueFrom" in env)
    monkeypatch.setenv(variable, "hf_secret")
    (config,) = configs(MANIFEST_FOLDER / "every-field.yaml", tmp_path)
    assert config.model.token is not None
    assert config.model.token.get_secret_value() == "hf_secret"
