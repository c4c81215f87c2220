"""The programs that Debian does not have, built by the small go.mod files under ``go/``.

A build is kept for ever under a digest of its go.mod, go.sum, sources, compiler and flags.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.contents import build_once, digest
from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import Layout
from e2e.cluster.progress import Progress
from e2e.cluster.shell import run

SOURCES = Path(__file__).parent / "go"
KUBERNETES_VERSION = "v1.34.2"
_VERSION_PACKAGE = "k8s.io/component-base/version"


@dataclass(frozen=True)
class GoBuild:
    """One go.mod and what to build of it: ``tool`` stands for all programs that its tool lines name."""

    name: str
    target: str
    duration: str
    link_flags: str = "-s -w"

    @property
    def source(self) -> Path:
        return SOURCES / self.name


# Without the version flags clients would see v0.0.0 and refuse or warn.
_MAJOR, _MINOR, _ = KUBERNETES_VERSION.removeprefix("v").split(".")
KUBERNETES = GoBuild(
    name="kubernetes",
    target="tool",
    duration="about 8 minutes on two cores",
    link_flags=f"-s -w -X {_VERSION_PACKAGE}.gitVersion={KUBERNETES_VERSION}"
    f" -X {_VERSION_PACKAGE}.gitMajor={_MAJOR} -X {_VERSION_PACKAGE}.gitMinor={_MINOR}",
)
COREDNS = GoBuild("coredns", ".", "about 2 minutes")
HELM = GoBuild("helm", "tool", "about 3 minutes")
LOCAL_PATH = GoBuild("local-path-provisioner", "tool", "under 1 minute")
# Nodes and pods that exist only as objects, for placement and scale.
KWOK = GoBuild("kwok", "tool", "about 2 minutes")

# An S3 server on a folder, for tests of models that lie on one; no part of the cluster.
S3 = GoBuild("versitygw", "tool", "about 1 minute")
# A container runtime that mounts images as volumes, which Debian's does not.
CONTAINERD = GoBuild("containerd", "tool", "about 4 minutes")
# Autoscaling by somebody else; built only by the test that wants it.
KEDA = GoBuild("keda", "tool", "about 15 minutes")
# Manifests applied from Git by somebody else; likewise.
FLUX = GoBuild("flux", "tool", "about 20 minutes")

# Kubernetes first: the others share most of its compiled packages.
BUILDS = (KUBERNETES, COREDNS, HELM, LOCAL_PATH, KWOK)


def build_binaries(layout: Layout, progress: Progress) -> dict[str, Path]:
    """Build what is not built yet; returns each program's path by its name."""
    compiler = _compiler()
    return {
        path.name: path for build in BUILDS for path in _build(build, compiler, layout, progress).iterdir()
    }


def build_helm(layout: Layout, progress: Progress) -> Path:
    """helm alone, for what needs no cluster."""
    return _build(HELM, _compiler(), layout, progress) / "helm"


def build_s3(layout: Layout, progress: Progress) -> Path:
    """The S3 server alone."""
    return _build(S3, _compiler(), layout, progress) / "versitygw"


def build_containerd(layout: Layout, progress: Progress) -> Path:
    """The folder with containerd and its shim."""
    return _build(CONTAINERD, _compiler(), layout, progress)


def build_keda(layout: Layout, progress: Progress) -> Path:
    """The folder with KEDA's operator and its metrics server."""
    return _build(KEDA, _compiler(), layout, progress)


def build_flux(layout: Layout, progress: Progress) -> Path:
    """The folder with Flux's source-controller and kustomize-controller."""
    return _build(FLUX, _compiler(), layout, progress)


def module_folder(build: GoBuild, module: str) -> Path:
    """Return where the sources of a module lie that was built: its manifests are installed as they are."""
    words = ["go", "list", "-m", "-f", "{{.Dir}}", module]
    return Path(run(words, folder=build.source, environment={**os.environ, "GOWORK": "off"}).strip())


def _compiler() -> str:
    try:
        return run(["go", "version"]).strip()
    except ClusterError as error:
        raise ClusterError(
            f"Go is needed to build Kubernetes, and `go version` does not work: {error}"
        ) from error


def _build(build: GoBuild, compiler: str, layout: Layout, progress: Progress) -> Path:
    key = digest([build.source], [compiler, build.target, build.link_flags])
    folder = layout.builds / f"{build.name}-{key}"

    def compile_into(workplace: Path) -> None:
        with progress.step(f"building {build.name}", f"first run only, {build.duration}"):
            run(
                [
                    "go",
                    "build",
                    "-trimpath",
                    f"-ldflags={build.link_flags}",
                    "-o",
                    f"{workplace}/",
                    build.target,
                ],
                folder=build.source,
                environment={**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"},
                timeout_s=3600,
            )

    build_once(folder, compile_into)
    return folder
