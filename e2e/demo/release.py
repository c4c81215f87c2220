"""The project under test as a user installs it: both images in the node and the chart by helm."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.images import PREFIX, REPOSITORY, LoadedImage, load_project_images
from e2e.cluster.lifecycle import Cluster
from e2e.cluster.locking import only_one
from e2e.cluster.shell import run

RELEASE = "embedserve"
OPERATOR_NAMESPACE = "embedserve-system"
CHART = REPOSITORY / "charts" / "embedserve"


@dataclass(frozen=True)
class Release:
    cluster: Cluster
    hub_url: str
    name: str = RELEASE
    namespace: str = OPERATOR_NAMESPACE

    def install(
        self,
        more: Mapping[str, str] | None = None,
        *,
        chart: Path = CHART,
        images: Sequence[LoadedImage] | None = None,
    ) -> None:
        """Install or upgrade, and wait until the operator is available.

        more: values of this time, as JSON. images: the operator's and the runtime's; those of the working tree without.
        """
        operator, runtime = images or load_project_images(self.cluster.images)
        values = {
            **_image_values("image", operator),
            **_image_values("runtime.image", runtime),
            "runtime.hfEndpoint": self.hub_url,
        }
        if chart == CHART:  # the previous release has no such value
            values["allowedEndpoints[0]"] = "*"
        # Built on this machine, so for its architecture only. One operator is enough for most tests.
        typed = {"runtime.image.architectures": f'["{_architecture()}"]', "replicas": "1", **(more or {})}
        words = ["upgrade", "--install", self.name, str(chart), "--namespace", self.namespace]
        words += ["--create-namespace", "--take-ownership", "--wait", "--timeout", "3m"]
        for name, value in values.items():
            words += ["--set-string", f"{name}={value}"]
        for name, value in typed.items():
            words += ["--set-json", f"{name}={value}"]
        # helm refuses a second upgrade while one is under way.
        lock = only_one(self.cluster.layout.release_lock)
        with self.cluster.progress.step("installing the chart"), lock:
            self._helm(*words)

    def uninstall(self) -> None:
        """Uninstall, and wait until what the chart installed is gone."""
        with only_one(self.cluster.layout.release_lock):
            self._helm("uninstall", self.name, "--namespace", self.namespace, "--wait", "--timeout", "3m")

    def _helm(self, *words: str) -> None:
        environment = {**os.environ, "KUBECONFIG": str(self.cluster.layout.admin_kubeconfig)}
        run([self.cluster.helm, *words], environment=environment, timeout_s=240)


def _architecture() -> str:
    """This machine's, in Kubernetes' words."""
    return {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]


def _image_values(key: str, image: LoadedImage) -> dict[str, str]:
    """The tag that names the content, so that an upgrade rolls exactly the pods whose image has changed."""
    repository, _, tag = image.content_reference.removeprefix(PREFIX).rpartition(":")
    return {f"{key}.repository": repository, f"{key}.tag": tag}
