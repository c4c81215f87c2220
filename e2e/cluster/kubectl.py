"""kubectl against this cluster as its administrator; works from outside the node's network namespace."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.polling import wait_until
from e2e.cluster.shell import attempt, run


@dataclass(frozen=True)
class Kubectl:
    program: Path
    kubeconfig: Path

    def __call__(self, *words: str, stdin: str | None = None, timeout_s: float = 60) -> str:
        return run(self.command(words), stdin=stdin, environment=self.environment(), timeout_s=timeout_s)

    def attempt(self, *words: str, timeout_s: float = 30) -> subprocess.CompletedProcess[str]:
        return attempt(self.command(words), environment=self.environment(), timeout_s=timeout_s)

    def apply(self, manifest: str) -> None:
        self("apply", "--server-side", "--force-conflicts", "--filename", "-", stdin=manifest)

    def get(self, *words: str) -> dict[str, Any] | None:
        """An object, or nothing when it does not exist."""
        text = self("get", *words, "--ignore-not-found", "--output", "json")
        return dict(json.loads(text)) if text.strip() else None

    def wait_for(
        self,
        what: str,
        words: Sequence[str],
        met: Callable[[dict[str, Any]], bool],
        *,
        timeout_s: float,
        give_up: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """Poll an object until it exists and ``met`` holds; returns it as it then was."""
        latest: dict[str, Any] = {}

        def look() -> bool:
            give_up()
            received = self.get(*words)
            latest.clear()
            latest.update(received or {})
            return received is not None and met(received)

        wait_until(what, look, timeout_s=timeout_s, every_s=0.3, why_not=lambda: self.describe(*words))
        return latest

    def describe(self, *words: str) -> str:
        result = self.attempt("describe", *words)
        return "\n".join((result.stdout + result.stderr).splitlines()[-40:])

    def command(self, words: Sequence[str]) -> list[str]:
        return [str(self.program), *words]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig)}


def deployment_available(deployment: dict[str, Any]) -> bool:
    """All replicas of the newest template are up."""
    status = deployment.get("status", {})
    replicas = deployment["spec"].get("replicas", 1)
    return bool(
        status.get("observedGeneration", 0) >= deployment["metadata"]["generation"]
        and status.get("updatedReplicas", 0) == replicas
        and status.get("availableReplicas", 0) == replicas
        and status.get("replicas", 0) == replicas
    )


def condition_true(resource: dict[str, Any], kind: str) -> bool:
    conditions = resource.get("status", {}).get("conditions", [])
    return any(condition["type"] == kind and condition["status"] == "True" for condition in conditions)
