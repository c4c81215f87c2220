from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
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


@pytest.fixture
def small_volume(tmp_path: Path) -> Iterator[Path]:
    """A file system of 40 MB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    volume = tmp_path / "volume"
    volume.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(volume)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")
    try:
        yield volume
    finally:
        subprocess.run(["umount", "-l", str(volume)], check=True)
