"""An earlier release of the project, built from its commit: its chart and both of its images."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.buildah import ImageBuild
from e2e.cluster.contents import build_once
from e2e.cluster.images import PREFIX, REPOSITORY, ImageLoader, LoadedImage
from e2e.cluster.shell import run


@dataclass(frozen=True)
class EarlierRelease:
    """The objects that a user of that release has installed."""

    chart: Path
    operator: LoadedImage
    runtime: LoadedImage


def load_earlier_release(loader: ImageLoader, commit: str) -> EarlierRelease:
    """Build the images of a commit of this repository and load them into the node.

    Raises ClusterError where the repository does not have the commit.
    """
    full = run(
        ["git", "rev-parse", "--verify", "--end-of-options", f"{commit}^{{commit}}"], folder=REPOSITORY
    ).strip()
    source = loader.layout.builds / f"release-{full[:12]}"
    build_once(source, lambda workplace: _check_out(full, workplace))
    return EarlierRelease(
        chart=source / "charts" / "embedserve",
        operator=loader.ensure(_image(loader, source, "operator", full[:12]), "1 to 2 minutes"),
        runtime=loader.ensure(_image(loader, source, "runtime", f"{full[:12]}-cpu"), "1 to 2 minutes"),
    )


def _check_out(commit: str, folder: Path) -> None:
    archive = folder / "release.tar"
    run(["git", "archive", "--format=tar", f"--output={archive}", commit], folder=REPOSITORY)
    with tarfile.open(archive) as content:
        content.extractall(folder, filter="data")
    archive.unlink()


def _image(loader: ImageLoader, source: Path, package: str, tag: str) -> ImageBuild:
    folder = source / package
    return ImageBuild(
        reference=f"{PREFIX}embedserve-{package}:{tag}",
        containerfile=folder / "Containerfile",
        context=source,
        inputs=(source / "requirements" / f"{package}.txt", folder / "pyproject.toml", folder / "src"),
        arguments={"BASE": loader.base()},
    )
