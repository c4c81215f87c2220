"""A Git repository with one manifest, and the plainest of GitOps tools: what was pushed is applied.

Flux's source and kustomize controllers would be two more large Go programs to build. They would add the wait on the
conditions, which `tests/operator/test_kstatus.py` checks against kstatus' rules.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.shell import run
from e2e.services import Service

FILE = "service.json"
_WHO = ("-c", "user.name=e2e", "-c", "user.email=e2e@embedserve.dev")


@dataclass(frozen=True)
class GitOps:
    """`origin` is bare; `work` is where a person commits, `clone` where the tool reads."""

    service: Service
    folder: Path

    @classmethod
    def init(cls, service: Service, folder: Path) -> GitOps:
        found = cls(service, folder)
        _git(folder, "init", "--bare", "--initial-branch=main", str(found.origin))
        for place in (found.work, found.clone):
            _git(folder, "clone", "--quiet", str(found.origin), str(place))
        return found

    @property
    def origin(self) -> Path:
        return self.folder / "origin.git"

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def clone(self) -> Path:
        return self.folder / "clone"

    def commit(self, spec: dict[str, Any], message: str) -> None:
        """Commit the manifest with this spec, push it, and have it applied."""
        metadata = {"name": self.service.name, "namespace": self.service.namespace}
        manifest = {
            "apiVersion": "embedserve.dev/v1alpha1",
            "kind": "EmbeddingService",
            "metadata": metadata,
            "spec": spec,
        }
        (self.work / FILE).write_text(json.dumps(manifest, indent=2))
        _git(self.work, "add", FILE)
        _git(self.work, *_WHO, "commit", "--quiet", "--message", message)
        self._publish()

    def revert(self) -> None:
        """Take the last commit back by another one."""
        _git(self.work, *_WHO, "revert", "--no-edit", "HEAD")
        self._publish()

    def _publish(self) -> None:
        _git(self.work, "push", "--quiet", "origin", "HEAD:main")
        _git(self.clone, "pull", "--quiet", "--ff-only", "origin", "main")
        words = ("apply", "--server-side", "--field-manager", "gitops", "--filename", str(self.clone / FILE))
        self.service.kubectl(*words)


def _git(where: Path, *words: str) -> None:
    run(["git", "-C", str(where), *words], timeout_s=60)
