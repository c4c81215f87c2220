"""`embedserve convert` and what serving makes of it, with a tiny model."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from transformers import BertForMaskedLM, BertForSequenceClassification, BertModel

from embedserve_runtime.commands.cli import main
from embedserve_runtime.config import RuntimeConfig, load_config
from embedserve_runtime.conversion import converting
from embedserve_runtime.conversion.converting import QuantizationConfig, choose_forms, convert
from embedserve_runtime.conversion.quantizing import BlockQuantization, StaticQuantization
from embedserve_runtime.conversion.rewriting import Product
from embedserve_runtime.errors import UnsupportedArchitecture
from embedserve_runtime.loading.runners import choose_variant, load_runner
from tests.runtime.pipelines.folders import TEXTS, bert, embed
from tests.support.in_process_server import serve_in_process
from tests.support.static_models import sentence_transformer
from tests.support.tolerances import TINY_MODEL_MAX_ABS_DIFF

ConfigOf = Callable[..., RuntimeConfig]
NO_FLOOR = {"min_mean_cosine": -1, "min_cosine": -1, "min_rank_agreement": -1}
NOT_REACHED = {"min_mean_cosine": 1, "min_cosine": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bert(tmp_path_factory.mktemp("model"), BertModel)


@pytest.fixture
def config_of(model: Path, tmp_path: Path) -> ConfigOf:
    """Settings with the store of this test; `onnx` and `engine` as given, one thread."""

    def made(
        source: Path = model, engine: dict[str, Any] | None = None, store: str = "store", **onnx: Any
    ) -> RuntimeConfig:
        flags = {
            "model": {"source": str(source), "store": tmp_path / store},
            "engine": {"threads": 1} | (engine or {}),
            "onnx": {"parity": NO_FLOOR} | onnx,
        }
        return load_config(flags=flags)

    return made


def folder_of(config: RuntimeConfig, result: Any) -> Path:
    return config.model.store / "artifacts" / str(result["artifact"])


def contents(folder: Path) -> dict[str, str]:
    """SHA-256 of the files that have no times in them."""
    times = {"report.json", "manifest.json"}
    return {
        str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in times
    }


def test_a_published_variant_is_served_with_the_identity_of_its_source(config_of: ConfigOf) -> None:
    plain = load_runner(config_of())
    config = config_of(precision=["int8", "float16"])
    result = convert(config)
    assert {variant["precision"]: variant["published"] for variant in result["variants"]} == {
        "float32": True,
        "float16": True,
        "int8": True,
    }
    assert result["vectorSpace"] == plain.card.vector_space
    want = embed(plain, TEXTS)
    for precision in ("float32", "float16", "int8"):
        engine = {"kind": "onnx", "precision": precision}
        runner = load_runner(config_of(precision=["int8", "float16"], engine=engine))
        assert (runner.engine.precision, runner.card.vector_space) == (precision, plain.card.vector_space)
        assert runner.engine.threads == plain.engine.threads
        is_equal = bool(np.abs(embed(runner, TEXTS) - want).max() <= TINY_MODEL_MAX_ABS_DIFF)
        assert is_equal is (precision == "float32")
    assert load_runner(config).engine.precision == result["chosen"], "auto takes the fastest"


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
async def test_a_converted_variant_tells_its_file_and_the_distance_that_its_report_has(
    config_of: ConfigOf, precision: str
) -> None:
    config = config_of(precision=["int8", "float16"], engine={"kind": "onnx", "precision": precision})
    (measured,) = [variant for variant in convert(config)["variants"] if variant["precision"] == precision]
    runner = load_runner(config)
    async with serve_in_process(model=runner) as server:
        info = (await server.client.get("/info")).json()
        embedded = await server.client.post("/embed", json={"inputs": "a text"})
    compute, parity = (
        ("float32", None) if precision == "float32" else (f"{precision}@[0-9a-f]{{12}}", measured)
    )
    assert re.fullmatch(compute, info["compute"])
    assert embedded.headers["X-Embedserve-Compute"] == info["compute"]
    assert info["parity"] == (
        None
        if parity is None
        else {
            "reference": "float32",
            "mean_cosine": parity["meanCosine"],
            "min_cosine": parity["minCosine"],
            "texts": "parity/texts/parity.txt",
        }
    )


def test_two_conversions_of_one_model_have_one_name_and_other_bytes_have_another(
    config_of: ConfigOf,
) -> None:
    def compute(**settings: Any) -> str:
        config = config_of(engine={"kind": "onnx", "precision": "int8"}, **settings)
        convert(config)
        return load_runner(config).engine.compute_precision

    first = compute(store="one", precision=["int8"])
    assert compute(store="two", precision=["int8"]) == first
    config = config_of(store="two", precision=["int8"], engine={"kind": "onnx", "precision": "int8"})
    artifact, _ = choose_variant(load_runner(config).card, config) or pytest.fail("no artifact")
    manifest = json.loads((artifact.folder / "manifest.json").read_text())
    for file in manifest["files"]:
        file["sha256"] = "0" * 64
    (artifact.folder / "manifest.json").write_text(json.dumps(manifest))
    assert load_runner(config).engine.compute_precision != first


def test_the_same_inputs_give_the_same_bytes(config_of: ConfigOf) -> None:
    first, second = config_of(store="one"), config_of(store="two")
    folders = [folder_of(config, convert(config)) for config in (first, second)]
    assert folders[0].name == folders[1].name
    assert contents(folders[0]) == contents(folders[1])
    assert {"float32/weights", "int8/model.onnx", "inputs.json"} <= contents(folders[0]).keys()


@pytest.mark.parametrize(
    "change",
    [
        {"precision": ["float32"]},
        {"parity": NO_FLOOR | {"min_cosine": 0.5}},
    ],
    ids=["variants", "floor"],
)
def test_other_inputs_give_another_artifact(config_of: ConfigOf, change: dict[str, Any]) -> None:
    assert convert(config_of())["artifact"] != convert(config_of(**change))["artifact"]


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_a_variant_below_the_floor_is_not_published_and_float32_is_served(
    config_of: ConfigOf, caplog: pytest.LogCaptureFixture, precision: str
) -> None:
    engine = {"kind": "onnx", "precision": precision}
    config = config_of(parity=NOT_REACHED, precision=[precision], engine=engine)
    result = convert(config)
    float32, eight_bit = result["variants"]
    assert (result["chosen"], float32["published"], eight_bit["published"]) == ("float32", True, False)
    assert "is below 1" in eight_bit["reason"]
    assert not (folder_of(config, result) / precision).exists()
    with caplog.at_level(logging.WARNING):
        assert load_runner(config).engine.precision == "float32"
    assert "no variant of this precision is published" in caplog.text


def test_a_file_that_lacks_its_last_byte_is_noticed_and_the_graph_is_written_anew(
    config_of: ConfigOf, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of()
    want = embed(load_runner(config), TEXTS)
    weights = folder_of(config, convert(config)) / "float32" / "weights"
    weights.chmod(0o644)
    weights.write_bytes(weights.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING):
        runner = load_runner(config)
    assert "the converted model is damaged and not used" in caplog.text
    assert np.array_equal(embed(runner, TEXTS), want)
    convert(config)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        load_runner(config)
    assert "converted model taken from the store" in caplog.text


def test_a_file_of_the_right_size_with_another_byte_is_made_anew(config_of: ConfigOf) -> None:
    config = config_of()
    folder = folder_of(config, convert(config))
    want = contents(folder)
    weights = folder / "int8" / "weights"
    weights.chmod(0o644)
    weights.write_bytes(b"\xff" + weights.read_bytes()[1:])
    assert contents(folder) != want
    convert(config)
    assert contents(folder) == want


@pytest.mark.parametrize(("convert_setting", "want_same"), [("IfNeeded", True), ("Always", False)])
def test_an_artifact_that_is_there_is_made_again_only_if_asked_to(
    config_of: ConfigOf, convert_setting: str, want_same: bool
) -> None:
    folder = folder_of(config_of(), convert(config_of()))
    report = folder / "report.json"
    before = report.stat().st_mtime_ns
    convert(config_of(convert=convert_setting))
    assert (report.stat().st_mtime_ns == before) is want_same


def test_never_makes_and_takes_nothing(config_of: ConfigOf, caplog: pytest.LogCaptureFixture) -> None:
    convert(config_of())
    never = config_of(convert="Never", store="other")
    assert convert(never)["artifact"] is None
    assert not never.model.store.exists()
    with caplog.at_level(logging.INFO):
        load_runner(config_of(convert="Never"))
    assert "taken from the store" not in caplog.text


def product(name: str) -> Product:
    return Product(f"{name} input", name)


STATIC = StaticQuantization(None, np.float32(1), 0)
ERRORS = {"near": (STATIC, 1e-5), "further": (STATIC, 4e-4), "far": (STATIC, 2e-3)}


@pytest.mark.parametrize(
    ("recipe", "want"),
    [
        pytest.param(
            QuantizationConfig(6e-4, BlockQuantization(128)),
            {
                "near": STATIC,
                "further": STATIC,
                "far": BlockQuantization(128),
                "unseen": BlockQuantization(128),
            },
            id="only what loses much is made in blocks",
        ),
        pytest.param(
            QuantizationConfig(0.0, BlockQuantization(32)),
            dict.fromkeys(("near", "further", "far", "unseen"), BlockQuantization(32)),
            id="everything in blocks",
        ),
        pytest.param(
            QuantizationConfig(2e-4, BlockQuantization(32), float_share=0.5),
            {"near": STATIC, "further": BlockQuantization(32)},
            id="what loses most stays in float32",
        ),
    ],
)
def test_the_measured_error_decides_the_form_of_a_product(
    recipe: QuantizationConfig, want: dict[str, Any]
) -> None:
    assert choose_forms([product(name) for name in (*ERRORS, "unseen")], ERRORS, recipe) == want


def test_a_recipe_with_products_in_float32_runs_and_says_so(
    config_of: ConfigOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        converting, "QUANTIZATION_CONFIGS", (QuantizationConfig(0.0, BlockQuantization(32), float_share=0.5),)
    )
    config = config_of()
    graph = onnx.load(
        str(folder_of(config, convert(config)) / "int8" / "model.onnx"), load_external_data=False
    )
    assert sorted(node.op_type for node in graph.graph.node if node.op_type in ("Gemm", "MatMulNBits")) == [
        "Gemm",
        "Gemm",
        "MatMulNBits",
        "MatMulNBits",
    ]
    (recipe,) = (entry.value for entry in graph.metadata_props if entry.key == "embedserve.recipe")
    assert recipe == "8-bit products: 0 static, 2 block-wise of 32, 2 in float32"


HEADS = {
    "a reranker": (BertForSequenceClassification, {"num_labels": 1}),
    "a classifier": (BertForSequenceClassification, {"num_labels": 3}),
    "sparse vectors": (BertForMaskedLM, {}),
}


@pytest.mark.parametrize(("kind", "settings"), HEADS.values(), ids=HEADS.keys())
def test_models_with_a_head_are_compared_by_what_they_give(
    config_of: ConfigOf, tmp_path: Path, kind: Any, settings: dict[str, Any]
) -> None:
    source = bert(tmp_path / "headed", kind, **settings)
    float32, int8 = convert(config_of(source))["variants"]
    assert (float32["minCosine"], float32["rankAgreement"]) == (1, 1)
    assert 0.9 < int8["rankAgreement"] < 1
    assert 0.9 < int8["minCosine"] < 1


def test_what_has_no_layers_is_refused_with_a_way_out(config_of: ConfigOf, tmp_path: Path) -> None:
    sentence_transformer(tmp_path / "static", normalize=True)
    with pytest.raises(UnsupportedArchitecture, match=r"no layers to convert; set onnx\.convert to Never"):
        convert(config_of(tmp_path / "static"))


def test_the_command_prints_and_leaves_what_it_made(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "termination-log"
    log.touch()
    config = tmp_path / "runtime.yaml"
    config.write_text(
        f"model: {{source: {model}, store: {tmp_path / 'store'}}}\ntermination_log: {log}\n"
        "engine: {threads: 1}\nonnx: {precision: [int8], parity: {min_cosine: -1}}\n"
    )
    assert main(["convert", "--config", str(config)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert json.loads(log.read_text()) == printed
    conversion = printed["conversion"]
    assert list(conversion) == [
        "artifact",
        "vectorSpace",
        "formerVectorSpace",
        "dimensions",
        "outputs",
        "guessesPooling",
        "chosen",
        "variants",
    ]
    assert list(conversion["variants"][0]) == [
        "precision",
        "published",
        "reason",
        "meanCosine",
        "minCosine",
        "maxDifference",
        "rankAgreement",
        "tokensPerSecond",
    ]
    assert main(["inspect", "--json", "--config", str(config)]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["artifact"] == conversion["artifact"]
    assert facts["memory"]["precision"] == conversion["chosen"]
