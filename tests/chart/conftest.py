"""The real helm, built and cached by the project's own scripts."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from e2e.cluster.binaries import build_helm
from e2e.cluster.layout import Layout
from e2e.cluster.progress import Progress

CHART = Path(__file__).parents[2] / "charts" / "embedserve"
# A helm that was built without its release flags takes the cluster for an ancient one.
KUBERNETES = "1.34.2"

Helm = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def helm() -> Helm:
    """Run helm with some words; the caller looks at the exit status."""
    program = build_helm(Layout.of_user(), Progress())

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, *words], capture_output=True, text=True, check=False, timeout=60)

    return run


@pytest.fixture(scope="session")
def template(helm: Helm) -> Callable[..., str]:
    """Return what the chart renders with some flags, each set of flags once."""

    @cache
    def render(*flags: str) -> str:
        result = helm(
            "template",
            "embedserve",
            str(CHART),
            "--namespace",
            "system",
            "--kube-version",
            KUBERNETES,
            *flags,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    return render
