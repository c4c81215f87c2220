"""What the operator writes, the runtime reads: the one place where both are imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from embedserve_operator.manifests.runtime_config import (
    ENDPOINT_DRAIN_SECONDS,
    GRPC_PORT,
    MANAGEMENT_PORT,
    PINNED_GRPC_PORT,
    SERVING_PORT,
)
from embedserve_runtime.config import RuntimeConfig, load_config
from tests.operator.builders import REPO, hub_spec
from tests.operator.rendering.case import CONVERTED, render
from tests.operator.rendering.cases import SPECS
from tests.operator.rendering.settings import EVERY_FIELD


def configs(spec: Mapping[str, Any], folder: Path) -> list[RuntimeConfig]:
    children = yaml.safe_load_all(render(spec))
    loaded = []
    for child in children:
        if child["kind"] == "ConfigMap":
            file = folder / f"{child['metadata']['name']}.yaml"
            file.write_text(child["data"]["runtime.yaml"], encoding="utf-8")
            loaded.append(load_config(file))
    return loaded


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_every_rendered_configuration_starts_the_runtime(spec: Mapping[str, Any], tmp_path: Path) -> None:
    for config in configs(spec, tmp_path):
        assert config.model.store == Path("/models")
        server = config.server
        if "port" not in server.model_fields_set:
            continue  # of a Job
        assert (server.port, server.management_port) == (SERVING_PORT, MANAGEMENT_PORT)
        assert server.endpoint_drain_seconds == ENDPOINT_DRAIN_SECONDS
        assert server.shutdown_grace_seconds >= 30


def test_pods_with_a_cache_ask_nobody_and_only_the_fetch_does(tmp_path: Path) -> None:
    found = configs(CONVERTED, tmp_path)
    fetch, convert, serve = found
    assert [config.model.offline for config in found] == [False, True, True]
    assert convert.onnx == serve.onnx
    assert (serve.onnx.convert, serve.onnx.precision) == ("IfNeeded", ("int8",))
    floors = serve.onnx.parity
    assert (floors.min_mean_cosine, floors.min_cosine, floors.min_rank_agreement) == (0.999, 0.98, 0.95)
    assert {config.model.source for config in found} == {fetch.model.source}


def test_nothing_that_others_have_converted_is_taken_unasked(tmp_path: Path) -> None:
    _, serve = configs(hub_spec(cache={"claimName": "models"}), tmp_path)
    assert serve.onnx.convert == "Never"


def test_other_sources_arrive(tmp_path: Path) -> None:
    archive = {"url": "https://models.example:8443/minilm.tar.gz", "sha256": "0123456789abcdef" * 4}
    bucket = {"uri": "s3://models/minilm", "endpoint": "http://minio.storage.svc:9000"}
    hub = {"repo": REPO, "endpoint": "https://mirror.example"}
    (http,) = configs({"model": {"source": {"http": archive}}}, tmp_path)
    (s3,) = configs({"model": {"source": {"s3": bucket}, "refresh": "2026-11-28"}}, tmp_path)
    (mirror,) = configs({"model": {"source": {"huggingFace": hub}, "onnxFile": "onnx/model.onnx"}}, tmp_path)
    assert http.model.source == "https://models.example:8443/minilm.tar.gz"
    assert http.model.sha256 == "0123456789abcdef" * 4
    assert (s3.model.source, s3.model.s3_endpoint) == ("s3://models/minilm", "http://minio.storage.svc:9000")
    assert s3.model.refresh == "2026-11-28"
    assert (mirror.model.endpoint, mirror.model.onnx_file) == ("https://mirror.example", "onnx/model.onnx")


def test_the_ports_for_grpc_arrive(tmp_path: Path) -> None:
    (config,) = configs(hub_spec(service={"grpcPort": 9090}), tmp_path)
    server = config.server
    assert (server.grpc_port, server.pinned_grpc_port) == (GRPC_PORT, PINNED_GRPC_PORT)
    assert server.space_grpc == "docs-{space8}.search.svc:9090"


def test_every_field_of_the_resource_arrives(tmp_path: Path) -> None:
    (config,) = configs(EVERY_FIELD, tmp_path)
    model, batching = config.model, config.batching
    assert (model.source, model.revision) == (
        "acme/private-encoder",
        "8b3219a92973c328a8e22fadcfa821b5dc75636a",
    )
    assert (model.pooling, model.dimensions, model.max_length) == ("cls", 256, 512)
    assert model.outputs == ("dense",)
    assert model.adapters == ("retrieval",)
    assert (model.default_prompt, model.prompts) == ("query", {"query": "query: ", "passage": "passage: "})
    assert model.endpoint == "http://hub.example"
    assert (batching.max_batch_tokens, batching.max_queue_tokens) == (16384, 500000)
    assert (batching.max_queue_inputs, batching.max_client_batch_size) == (10000, 128)
    assert batching.request_timeout_seconds == 60
    assert (batching.cache_bytes, batching.cache_seconds) == (2**28, 600)
    assert config.server.served_model_name == "docs"
    assert config.server.openai_token_ids
    assert config.server.client_header == "X-Tenant"
    assert config.server.client_requests_per_minute == 600
    assert config.server.client_tokens_per_minute == 1_000_000


def test_a_volume_is_a_folder_for_the_runtime(tmp_path: Path) -> None:
    models = {"claimName": "models"}
    (folder,) = configs({"model": {"source": {"volume": {**models, "path": "encoders/minilm/"}}}}, tmp_path)
    (root,) = configs({"model": {"source": {"volume": models}}}, tmp_path)
    assert (folder.model.source, root.model.source) == ("/volume/encoders/minilm", "/volume")
    assert folder.server.served_model_name == "models:/encoders/minilm"


def test_the_token_comes_in_by_the_name_that_the_runtime_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = list(yaml.safe_load_all(render(EVERY_FIELD)))
    deployment = next(child for child in children if child["kind"] == "Deployment")
    fetch = deployment["spec"]["template"]["spec"]["initContainers"][0]
    variable = next(env["name"] for env in fetch["env"] if "valueFrom" in env)
    monkeypatch.setenv(variable, "hf_secret")
    (config,) = configs(EVERY_FIELD, tmp_path)
    assert config.model.token is not None
    assert config.model.token.get_secret_value() == "hf_secret"
