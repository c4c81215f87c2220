"""A Debian base made here by debootstrap, because no image registry may be reachable."""

from __future__ import annotations

import shutil
from pathlib import Path

from e2e.cluster.buildah import Buildah, ImageBuild
from e2e.cluster.contents import build_once, digest
from e2e.cluster.layout import Layout
from e2e.cluster.progress import Progress
from e2e.cluster.shell import run

SUITE = "bookworm"
CONTAINERFILE = 'FROM scratch\nADD rootfs.tar /\nCMD ["/bin/bash"]\n'
# What debootstrap leaves behind and no image needs.
LEFT_OVERS = ("var/cache/apt/archives/*.deb", "var/cache/apt/*.bin", "var/lib/apt/lists/*_*", "var/log/*.log")


def ensure_base_image(
    layout: Layout, buildah: Buildah, progress: Progress, architecture: str | None = None
) -> str:
    """Returns the reference to give to the Containerfiles as BASE. architecture: Debian's name, None for this
    machine's own; another one needs `emulation`."""
    facts = [SUITE, "minbase", CONTAINERFILE, *LEFT_OVERS]
    key = digest([], facts if architecture is None else [*facts, architecture])
    reference = f"localhost/embedserve-base:{key}"
    if buildah.has(reference):
        return reference
    folder = layout.builds / f"base-{key}"

    def bootstrap(workplace: Path) -> None:
        hint = "2 minutes" if architecture is None else "10 minutes, by emulation"
        with progress.step("making the Debian base image", f"first run only, about {hint}"):
            _bootstrap(workplace, architecture)

    build_once(folder, bootstrap)
    buildah.build(ImageBuild(reference, folder / "Containerfile", folder, (), architecture=architecture))
    return reference


def _bootstrap(workplace: Path, architecture: str | None) -> None:
    system = workplace / "system"
    of = [] if architecture is None else [f"--arch={architecture}"]
    run(["debootstrap", *of, "--variant=minbase", SUITE, system], timeout_s=3600)
    for pattern in LEFT_OVERS:
        for path in system.glob(pattern):
            path.unlink()
    run(["tar", "--directory", system, "--create", "--file", workplace / "rootfs.tar", "."])
    shutil.rmtree(system)
    (workplace / "Containerfile").write_text(CONTAINERFILE)
