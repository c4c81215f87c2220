"""Which images the cluster needs, and how each gets into the node when its content has changed."""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from e2e.cluster.base_image import ensure_base_image
from e2e.cluster.buildah import Buildah, ImageBuild
from e2e.cluster.containerd import Containerd
from e2e.cluster.contents import build_once, digest
from e2e.cluster.emulation import ARM64, ensure_arm64, own_architecture
from e2e.cluster.emulation import printed as emulated
from e2e.cluster.layout import Layout
from e2e.cluster.locking import only_one
from e2e.cluster.progress import Progress
from e2e.cluster.shell import run

REPOSITORY = Path(__file__).resolve().parents[2]
CONTAINERFILES = Path(__file__).parent / "containerfiles"
# Names without a registry of their own: pods may write them short ("embedserve-operator:0.1.0").
PREFIX = "docker.io/library/"
PAUSE_IMAGE = f"{PREFIX}embedserve-pause:1"
HELPER_IMAGE = f"{PREFIX}embedserve-helper:1"
COREDNS_IMAGE = f"{PREFIX}embedserve-coredns:1"
LOCAL_PATH_IMAGE = f"{PREFIX}embedserve-local-path-provisioner:1"


@dataclass(frozen=True)
class LoadedImage:
    """An image that the node can run, under its version and under a name that changes with its content."""

    reference: str
    content_reference: str
    was_loaded: bool


@dataclass(frozen=True)
class ImageLoader:
    layout: Layout
    progress: Progress

    @property
    def buildah(self) -> Buildah:
        return Buildah(self.layout.buildah)

    @property
    def containerd(self) -> Containerd:
        return Containerd(self.layout.containerd_socket)

    def ensure(self, image: ImageBuild, hint: str = "") -> LoadedImage:
        facts = [image.reference, *(f"{name}={value}" for name, value in sorted(image.arguments.items()))]
        content = digest([image.containerfile, *image.inputs], facts)
        content_reference = f"{image.reference}-{content}"
        # containerd forgets what another load of the same name leaves behind, also while this one unpacks it.
        with only_one(self.layout.images_lock):
            was_loaded = self._load_if_changed(image, content, content_reference, hint)
        return LoadedImage(image.reference, content_reference, was_loaded)

    def _load_if_changed(self, image: ImageBuild, content: str, content_reference: str, hint: str) -> bool:
        if self.containerd.content_of(image.reference) == content:
            return False
        name = image.reference.removeprefix(PREFIX)
        with self.progress.step(f"building image {name}", hint):
            self.buildah.build(image)
        with self.progress.step(f"loading image {name} into the node"):
            self._load(image.reference)
            self.containerd.tag(image.reference, content_reference)
            # Last, so that a load that was broken off is done again.
            self.containerd.label(image.reference, content)
        return True

    def base(self, architecture: str | None = None) -> str:
        return ensure_base_image(self.layout, self.buildah, self.progress, architecture)

    def _load(self, reference: str) -> None:
        with tempfile.TemporaryDirectory(prefix="load-", dir=self.layout.buildah) as folder:
            archive = Path(folder) / "image.tar"
            self.buildah.save(reference, archive)
            self.containerd.load(archive)


def load_system_images(loader: ImageLoader, programs: dict[str, Path]) -> None:
    """Load the images that the cluster itself runs: all from scratch, one program each."""
    pause = _pause_folder(loader.layout)
    helper = _helper_folder(loader.layout)
    for reference, name, context in (
        (PAUSE_IMAGE, "pause", pause),
        (HELPER_IMAGE, "helper", helper),
        (COREDNS_IMAGE, "coredns", programs["coredns"].parent),
        (LOCAL_PATH_IMAGE, "local-path-provisioner", programs["local-path-provisioner"].parent),
    ):
        # The folder's name holds the digest of what was built into it.
        arguments = {"CONTENT": context.name}
        loader.ensure(ImageBuild(reference, CONTAINERFILES / name / "Containerfile", context, (), arguments))


def operator_image(loader: ImageLoader) -> ImageBuild:
    return _project_image(loader, "operator", "embedserve-operator", "")


def runtime_image(loader: ImageLoader) -> ImageBuild:
    return _project_image(loader, "runtime", "embedserve-runtime", "-cpu")


def load_project_images(loader: ImageLoader) -> Sequence[LoadedImage]:
    """The operator's and the runtime's image, in this order, from the working tree as it is."""
    hint = "first run: 1 to 2 minutes; after a change of the sources: seconds"
    return [loader.ensure(image(loader), hint) for image in (operator_image, runtime_image)]


def build_arm64(loader: ImageLoader) -> str:
    """The runtime's image for 64-bit ARM, in buildah's store; returns its name."""
    ensure_arm64(loader.progress)
    image = _project_image(loader, "runtime", "embedserve-runtime", "-cpu", ARM64)
    image = replace(image, reference=f"{image.reference}-{ARM64}")
    with loader.progress.step(f"building image {image.reference.removeprefix(PREFIX)}", "by emulation: slow"):
        loader.buildah.build(image)
    return image.reference


def write_manifest(loader: ImageLoader, folder: Path) -> str:
    """Both architectures of the runtime's image under one name, as an OCI layout; returns the name."""
    arm64, native = build_arm64(loader), runtime_image(loader)
    with loader.progress.step(f"building image {native.reference.removeprefix(PREFIX)}"):
        loader.buildah.build(native)
    name = f"localhost/{native.reference.removeprefix(PREFIX)}"
    loader.buildah.join(name, [native.reference, arm64], folder)
    return name


def build_cuda(loader: ImageLoader, architecture: str | None = None) -> str:
    """The runtime's image with torch, in buildah's store; returns its name. architecture: None for this machine's."""
    if architecture == ARM64:
        ensure_arm64(loader.progress)
    image = _project_image(loader, "runtime", "embedserve-runtime", "-cuda", architecture)
    image = replace(
        image,
        reference=image.reference if architecture is None else f"{image.reference}-{architecture}",
        arguments={**image.arguments, "REQUIREMENTS": "cuda.txt"},
        target="cuda",
    )
    with loader.progress.step(f"building image {image.reference.removeprefix(PREFIX)}", "some 26 GB of disk"):
        loader.buildah.build(image)
    return image.reference


def self_test(loader: ImageLoader, reference: str, architecture: str | None = None) -> str:
    """Return what the image of the runtime says of itself. Raises ClusterError when a check fails."""
    if architecture is None or architecture == own_architecture():
        return loader.buildah.printed(reference, "embedserve", "self-test")
    with (
        loader.progress.step(f"self-test of {reference.removeprefix(PREFIX)}", "by emulation: minutes"),
        loader.buildah.unpacked(reference) as system,
    ):
        return emulated(system, ["embedserve", "self-test"], "/opt/embedserve/bin:/usr/bin:/bin")


def _project_image(
    loader: ImageLoader, package: str, name: str, suffix: str, architecture: str | None = None
) -> ImageBuild:
    folder = REPOSITORY / package
    version = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["version"]
    return ImageBuild(
        reference=f"{PREFIX}{name}:{version}{suffix}",
        containerfile=folder / "Containerfile",
        context=REPOSITORY,
        inputs=(REPOSITORY / "requirements" / f"{package}.txt", folder / "pyproject.toml", folder / "src"),
        arguments={"BASE": loader.base(architecture), **_of_the_builder(loader, architecture)},
        architecture=architecture,
    )


def _of_the_builder(loader: ImageLoader, architecture: str | None) -> dict[str, str]:
    """Return, for another architecture, what this machine unpacks the packages in, since a local base has one
    architecture.
    """
    if architecture is None:
        return {}
    return {"BUILD_BASE": loader.base(), "BUILDPLATFORM": f"linux/{own_architecture()}"}


def _pause_folder(layout: Layout) -> Path:
    source = CONTAINERFILES / "pause" / "pause.c"
    folder = layout.builds / f"pause-{digest([source], [])}"
    build_once(folder, lambda workplace: _compile_static(source, workplace / "pause"))
    return folder


def _compile_static(source: Path, program: Path) -> None:
    run(["gcc", "-Os", "-static", "-s", "-Wall", "-Werror", "-o", program, source])


def _helper_folder(layout: Layout) -> Path:
    folder = layout.builds / f"helper-{digest([], ['busybox-static', 'sh mkdir rm'])}"
    build_once(folder, _unpack_busybox)
    return folder


def _unpack_busybox(workplace: Path) -> None:
    """Unpacked, not installed: it would push a machine's own busybox away."""
    with tempfile.TemporaryDirectory(prefix="busybox-") as download:
        # The package manager drops its rights for the download and must be able to write there.
        Path(download).chmod(0o777)
        run(["apt-get", "download", "-qq", "busybox-static"], folder=Path(download))
        (package,) = Path(download).glob("*.deb")
        run(["dpkg-deb", "--extract", package, Path(download) / "unpacked"])
        programs = workplace / "rootfs" / "bin"
        programs.mkdir(parents=True)
        (programs / "busybox").write_bytes((Path(download) / "unpacked/bin/busybox").read_bytes())
        (programs / "busybox").chmod(0o755)
        for name in ("sh", "mkdir", "rm"):
            (programs / name).symlink_to("busybox")
