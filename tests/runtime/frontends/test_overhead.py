"""The cost of a token around the engine, measured with a real server."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from embedserve_runtime.frontends.overhead import measure_overhead
from embedserve_runtime.model.card import ModelCard
from tests.support.tiny_models import (
    build_card,
    build_classifier_card,
    build_splade_card,
    build_tiny_tokenizer,
)

TEXTS = ["hello world"] * 48
CARDS: dict[str, Callable[[], ModelCard]] = {
    "vectors": build_card,
    "sparse vectors": build_splade_card,
    "scores": lambda: build_classifier_card("score"),
}


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS.keys())
def test_seconds_of_a_token_are_measured_whatever_the_model_makes(card: Callable[[], ModelCard]) -> None:
    assert 0 < measure_overhead(card(), build_tiny_tokenizer(), TEXTS) < 1


def test_longer_texts_cost_less_a_token() -> None:
    short, long = (
        measure_overhead(build_card(), build_tiny_tokenizer(), ["hello " * words] * 48) for words in (1, 30)
    )
    assert long < short


def test_requests_that_only_measure_are_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "embedserve_runtime"):
        measure_overhead(build_card(), build_tiny_tokenizer(), TEXTS)
    assert not caplog.records
