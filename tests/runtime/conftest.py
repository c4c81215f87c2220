from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from embedserve_runtime.config import RuntimeConfig, load_config
from embedserve_runtime.loading.runners import load_runner
from embedserve_runtime.runners.base import Runner
from tests.support.models import minilm_folder
from tests.support.mounts import memory_volume


@pytest.fixture(scope="session")
def minilm() -> Path:
    return minilm_folder()


@pytest.fixture(scope="session")
def minilm_config(minilm: Path) -> RuntimeConfig:
    return load_config(flags={"model": {"source": str(minilm)}})


@pytest.fixture(scope="session")
def minilm_runner(minilm_config: RuntimeConfig) -> Runner:
    return load_runner(minilm_config)


@pytest.fixture
def small_volume(tmp_path: Path) -> Iterator[Path]:
    """A file system of 40 MB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    volume = tmp_path / "volume"
    volume.mkdir()
    with ExitStack() as mounted:
        try:
            mounted.enter_context(memory_volume(volume, "size=40m"))
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no file system can be mounted here: {error.stderr.strip()}")
        yield volume
