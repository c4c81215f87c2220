"""What is asked of the node's container runtime, through ``ctr`` in Kubernetes' own containerd namespace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.shell import attempt, run

CONTENT_LABEL = "embedserve.dev/content"


@dataclass(frozen=True)
class Containerd:
    socket: Path

    def answers(self) -> bool:
        # Its own bound, so that no answer is a "no": while it reads what it holds, it lets clients connect and wait.
        return attempt(self._ctr("--timeout", "10s", "version"), timeout_s=30).returncode == 0

    def content_of(self, reference: str) -> str | None:
        """The digest of the inputs that an image was built from, or nothing when it is not loaded."""
        listed = run(self._ctr("images", "ls", f"name=={reference}"))
        for word in listed.replace(",", " ").split():
            label, _, value = word.partition("=")
            if label == CONTENT_LABEL:
                return value
        return None

    def load(self, archive: Path) -> None:
        run(self._ctr("images", "import", str(archive)), timeout_s=600)

    def save(self, references: Sequence[str], archive: Path) -> None:
        run(self._ctr("images", "export", str(archive), *references), timeout_s=600)

    def label(self, reference: str, content: str) -> None:
        run(self._ctr("images", "label", reference, f"{CONTENT_LABEL}={content}"))

    def tag(self, reference: str, new_reference: str) -> None:
        run(self._ctr("images", "tag", "--force", reference, new_reference))

    def remove_all_containers(self) -> None:
        """End every task and forget every container; images and their unpacked layers stay."""
        for container in run(self._ctr("containers", "ls", "--quiet")).split():
            attempt(self._ctr("tasks", "delete", "--force", container), timeout_s=30)
            attempt(self._ctr("containers", "delete", container), timeout_s=30)

    def _ctr(self, *words: str) -> list[str]:
        return ["ctr", "--address", str(self.socket), "--namespace", "k8s.io", *words]
