from __future__ import annotations

from pathlib import Path

import pytest

from embedserve_runtime.config import RuntimeConfig, load_config
from embedserve_runtime.loading import load_runner
from embedserve_runtime.runner import Runner
from tests.support.models import minilm_folder


@pytest.fixture(scope="session")
def minilm() -> Path:
    return minilm_folder()


@pytest.fixture(scope="session")
def minilm_config(minilm: Path) -> RuntimeConfig:
    return load_config(flags={"model": {"source": str(minilm)}})


@pytest.fixture(scope="session")
def minilm_runner(minilm_config: RuntimeConfig) -> Runner:
    return load_runner(minilm_config)
