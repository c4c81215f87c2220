"""The measurements of a start decide how the server runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from embedserve_runtime.config import RuntimeConfig, load_config
from embedserve_runtime.process import startup
from tests.support.models import tiny_bert
from tests.support.static_models import Saved
from tests.support.tokenizers import with_minilm_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model_folder = tmp_path_factory.mktemp("model")
    tiny_bert(model_folder, vocab_size=30_522)
    return with_minilm_tokenizer(model_folder)


def config(folder: Path, **engine: object) -> RuntimeConfig:
    return load_config(
        flags={"model": {"source": str(folder)}, "batching": {"max_batch_tokens": 64}, "engine": engine}
    )


def test_the_engine_gets_the_cores_that_tokenising_leaves(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "count_usable_cpus", lambda: 4)
    monkeypatch.setattr(startup, "measure_rate", lambda run, texts, **_: 1e12)
    started = startup.prepare_model(config(folder), lambda: None)
    assert started.split is not None
    assert (started.split.engine, started.split.around) == (3, 1)
    assert started.runners[0].engine.threads == 3


def test_threads_that_are_a_setting_stay(folder: Path) -> None:
    started = startup.prepare_model(config(folder, threads=1), lambda: None)
    assert started.split is None
    assert started.runners[0].engine.threads == 1


def test_a_table_of_token_vectors_has_no_engine_to_share_cores_with(tmp_path: Path) -> None:
    Saved().save(tmp_path)
    started = startup.prepare_model(config(tmp_path), lambda: None)
    assert (started.split, started.http_workers) == (None, 1)


def counted(config: RuntimeConfig) -> RuntimeConfig:
    return config.model_copy(update={"server": config.server.model_copy(update={"http_workers": "auto"})})


@pytest.mark.parametrize(
    ("cpus", "rate", "want"),
    [(4, 1e12, (3, 1)), (4, 1.0, (1, 4)), (2, 1e12, (1, 1))],
    ids=["a fast engine", "a slow one", "a fast one on two cores"],
)
def test_processes_are_counted_by_what_is_measured_and_the_engine_gets_the_other_cores(
    folder: Path, monkeypatch: pytest.MonkeyPatch, cpus: int, rate: float, want: tuple[int, int]
) -> None:
    monkeypatch.setattr(startup, "count_usable_cpus", lambda: cpus)
    monkeypatch.setattr(startup, "measure_rate", lambda run, texts, **_: rate)
    started = startup.prepare_model(counted(config(folder)), lambda: None)
    assert started.split is not None
    assert (started.http_workers, started.split.engine) == want
    assert started.runners[0].engine.threads == want[1]


def test_a_table_of_token_vectors_is_read_by_all_cores_but_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Saved().save(tmp_path)
    monkeypatch.setattr(startup, "count_usable_cpus", lambda: 4)
    monkeypatch.setattr(startup, "measure_rate", lambda run, texts, **_: 1e12)
    assert startup.prepare_model(counted(config(tmp_path)), lambda: None).http_workers == 3
