"""A Git repository with one manifest, and who applies what is pushed to it: a plain loop, or Flux."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.kubectl import Kubectl
from e2e.cluster.layout import HOST_ADDRESS
from e2e.cluster.polling import wait_until
from e2e.cluster.shell import run
from e2e.flux import NAMESPACE
from e2e.git_http import serving
from e2e.services import TIMEOUT_S, Object, Service, condition

FILE = "service.yaml"
COMMIT = "embedserve.test/commit"
_WHO = ("-c", "user.name=e2e", "-c", "user.email=e2e@embedserve.dev")


@dataclass(frozen=True)
class GitOps:
    """`origin` is bare and what is applied from, `work` where a person commits. pushed: called with each commit."""

    service: Service
    folder: Path
    pushed: Callable[[], None]

    @classmethod
    def init(cls, service: Service, folder: Path, pushed: Callable[[], None] = lambda: None) -> GitOps:
        gitops = cls(service, folder, pushed)
        _git(folder, "init", "--quiet", "--bare", "--initial-branch=main", str(origin(folder)))
        _git(folder, "clone", "--quiet", str(origin(folder)), str(gitops.work))
        return gitops

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def commit(self, spec: dict[str, Any], message: str) -> None:
        """Commit the manifest with this spec, push it, and wait until it is applied."""
        metadata = {
            "name": self.service.name,
            "namespace": self.service.namespace,
            "annotations": {COMMIT: message},
        }
        manifest = {
            "apiVersion": "embedserve.dev/v1alpha1",
            "kind": "EmbeddingService",
            "metadata": metadata,
            "spec": spec,
        }
        # JSON is YAML.
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
        self.pushed()
        annotations = json.loads((self.work / FILE).read_text())["metadata"]["annotations"]
        wait_until("the commit is applied", lambda: self._applied() == annotations, timeout_s=TIMEOUT_S)

    def _applied(self) -> dict[str, str] | None:
        words = (self.service.name, "--namespace", self.service.namespace)
        received = self.service.kubectl.get("embeddingservice", *words)
        annotations: dict[str, str] | None = received and received["metadata"].get("annotations")
        return annotations


def pull_and_apply(kubectl: Kubectl, folder: Path) -> None:
    """The plainest of GitOps tools."""
    clone = folder / "clone"
    if not clone.exists():
        _git(folder, "clone", "--quiet", str(origin(folder)), str(clone))
    _git(clone, "pull", "--quiet", "--ff-only", "origin", "main")
    words = ("apply", "--server-side", "--field-manager", "gitops", "--filename", str(clone / FILE))
    kubectl(*words)


@dataclass(frozen=True)
class Kustomization:
    """Flux's, which asks for commits every second and waits for what they ask for."""

    kubectl: Kubectl
    name: str

    def wait_condition(self, status: str, reason: str) -> Object:
        """Wait until the Kustomization says this of the newest commit."""

        def met(resource: Object) -> bool:
            reported = condition(resource, "Ready")
            return reported is not None and (reported["status"], reported["reason"]) == (status, reason)

        words = ("kustomizations.kustomize.toolkit.fluxcd.io", self.name, "--namespace", NAMESPACE)
        return self.kubectl.wait_for(f"Flux says {reason}", words, met, timeout_s=TIMEOUT_S)


@contextmanager
def by_flux(kubectl: Kubectl, folder: Path) -> Iterator[Kustomization]:
    """The repository in that folder, served over HTTP and applied by Flux."""
    name = f"e2e-{secrets.token_hex(4)}"
    with serving(folder, HOST_ADDRESS) as url:
        objects = json.dumps(_objects(name, f"{url}/{origin(folder).name}"))
        kubectl("apply", "--filename", "-", stdin=objects)
        try:
            yield Kustomization(kubectl, name)
        finally:
            kubectl("delete", "--filename", "-", stdin=objects, timeout_s=TIMEOUT_S)


def _objects(name: str, url: str) -> Object:
    metadata = {"name": name, "namespace": NAMESPACE}
    source = {
        "apiVersion": "source.toolkit.fluxcd.io/v1",
        "kind": "GitRepository",
        "metadata": metadata,
        "spec": {"url": url, "interval": "1s", "timeout": "20s", "ref": {"branch": "main"}},
    }
    kustomization = {
        "apiVersion": "kustomize.toolkit.fluxcd.io/v1",
        "kind": "Kustomization",
        "metadata": metadata,
        "spec": {
            "sourceRef": {"kind": "GitRepository", "name": name},
            "path": "./",
            "interval": "1m",
            "retryInterval": "5s",
            "timeout": "5m",
            "prune": False,
            "wait": True,
        },
    }
    return {"apiVersion": "v1", "kind": "List", "items": [source, kustomization]}


def origin(folder: Path) -> Path:
    return folder / "origin.git"


def _git(where: Path, *words: str) -> None:
    run(["git", "-C", str(where), *words], timeout_s=60)
