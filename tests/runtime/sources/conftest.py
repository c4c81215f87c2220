"""A hub that has the repository of a module's `files`, and settings that fetch it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.hub import HubServer
from embedserve_runtime.config import ModelSettings
from tests.runtime.sources.fetch_kit import REPOSITORY


@pytest.fixture
def hub(tmp_path: Path, files: dict[str, bytes]) -> Iterator[HubServer]:
    with HubServer(tmp_path / "repositories") as server:
        yield server


@pytest.fixture
def settings(hub: HubServer, tmp_path: Path) -> ModelSettings:
    return ModelSettings(source=REPOSITORY, endpoint=hub.url, store=tmp_path / "store")
