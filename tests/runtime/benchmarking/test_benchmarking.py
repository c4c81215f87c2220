"""The report of `embedserve bench` on a real model, and what it makes of its measurements."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from embedserve_runtime.benchmarking.bar_chart import Bar, BarGroup, render_bar_chart
from embedserve_runtime.benchmarking.bench import BenchReport, Suggestion
from embedserve_runtime.benchmarking.matrix_products import count_flops
from embedserve_runtime.benchmarking.report import format_table
from embedserve_runtime.benchmarking.texts import build_mix
from embedserve_runtime.commands.cli import main
from embedserve_runtime.runners.base import Runner
from tests.support.models import minilm_folder

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def few_texts(tmp_path: Path) -> Path:
    file = tmp_path / "texts.txt"
    file.write_text("one two three\n\nfour\n")
    return file


def test_a_run_on_the_users_texts_is_told_as_json_and_drawn(
    few_texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = tmp_path / "bench.svg"
    words = [
        "bench",
        "--model",
        str(minilm_folder()),
        "--texts",
        str(few_texts),
        "--batch",
        "2",
        "--clients",
        "2",
    ]
    assert (
        main([*words, "--seconds", "0.01", "--max-batch-tokens", "64", "--json", "--picture", str(drawn)])
        == 0
    )
    report = json.loads(capsys.readouterr().out)
    # [CLS] one two three [SEP] and [CLS] four [SEP].
    assert (report["texts"], report["mean_tokens"], report["padding_share"]) == (2, 4.0, 0.0)
    assert report["requests"] >= 2
    assert report["texts_per_second"] == pytest.approx(report["tokens_per_second"] / 4)
    assert 0 < report["p50_ms"] <= report["p99_ms"]
    assert report["suggestion"]["max_batch_tokens"] in map(int, report["budgets"])
    assert (report["suggestion"]["precision"], report["variants"]) == ("float32", {})
    assert report["product_share"] > 0
    assert len(ElementTree.parse(drawn).findall(f"{SVG}rect")) == len(report["budgets"]) + 2


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(None, "cannot be read"), ("\n \n", "has no texts")],
    ids=["no file", "no texts"],
)
def test_texts_that_cannot_be_used_are_refused(
    content: str | None, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "texts.txt"
    if content is not None:
        file.write_text(content)
    assert main(["bench", "--model", str(minilm_folder()), "--texts", str(file)]) == os.EX_CONFIG
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("engine", "precision", "variants", "want"),
    [
        ("onnx", "float32", {}, "float32; `embedserve convert` tries what is faster on this machine"),
        (
            "onnx",
            "int8",
            {"float32": 6_697.0, "int8": 13_891.0},
            "int8; when it was converted: float32 6,697/s, int8 13,891/s",
        ),
        ("torch", "float16", {}, "float16"),
    ],
    ids=["not converted", "converted", "another engine"],
)
def test_precisions_are_told_as_far_as_they_are_known(
    engine: str, precision: str, variants: dict[str, float], want: str
) -> None:
    report = BenchReport(
        model="tiny",
        engine=engine,
        texts=1,
        mean_tokens=8.0,
        clients=1,
        batch=1,
        requests=1,
        tokens_per_second=1.0,
        texts_per_second=1.0,
        p50_ms=1.0,
        p99_ms=1.0,
        padding_share=0.0,
        tokenizing_share=0.0,
        product_gflops=None,
        product_share=None,
        budgets={256: 1.0},
        variants=variants,
        suggestion=Suggestion(256, 1, 2, precision),
    )
    (line,) = [line for line in format_table(report).splitlines() if line.startswith("precision")]
    assert line.removeprefix("precision").strip() == want


def test_the_operations_of_a_text_are_those_of_its_products(minilm_runner: Runner) -> None:
    # Six layers of 384: four times the square for attention's products, eight times for the MLP; then the scores.
    want = 6 * (2 * 10 * 12 * 384**2 + 4 * 384 * 10**2)
    assert count_flops(minilm_runner.card.encoder, np.array([10])) == want


def test_the_built_in_mix_is_the_same_in_every_release_and_has_short_and_long_texts() -> None:
    """Measurements of two releases are compared with each other."""
    texts = build_mix()
    lengths = sorted(len(text.split()) for text in texts)
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    assert digest == "e35f33aa5f389529e32af2b6277ad8475a598b633b706d0ee47cb9530ed17303"
    assert (lengths[0], lengths[len(lengths) // 2] < 40, lengths[-1] > 180) == (4, True, True)


def test_bars_are_as_long_as_their_values_and_labels_are_escaped() -> None:
    root = ElementTree.fromstring(
        render_bar_chart("a & b", [BarGroup("c < d", [Bar("<x>", 10)]), BarGroup("e", [Bar("y", 5)])])
    )
    _background, first, second = root.findall(f"{SVG}rect")
    assert float(first.attrib["width"]) == 2 * float(second.attrib["width"])
    texts = [text.text for text in root.findall(f"{SVG}text")]
    assert texts == ["a & b", "c < d", "<x>", "10", "e", "y", "5"]
