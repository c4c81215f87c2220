"""Builds images without an engine or a registry: ``buildah`` in a store of its own under the cache folder."""

from __future__ import annotations

import configparser
import io
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from e2e.cluster.shell import attempt, run

IGNORE_FILE = Path(__file__).parent / "containerfiles" / "ignore"
HOST_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
CERTIFICATES_IN_BUILD = "/run/secrets/ca"
PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "proxy")


@dataclass(frozen=True)
class ImageBuild:
    """A Containerfile, the folder it copies from, and the files and facts that decide its content.

    architecture: None for this machine's own. target: the stage to build, None for the last one.
    """

    reference: str
    containerfile: Path
    context: Path
    inputs: tuple[Path, ...]
    arguments: Mapping[str, str] = field(default_factory=dict)
    architecture: str | None = None
    target: str | None = None


@dataclass(frozen=True)
class Buildah:
    root: Path

    def has(self, reference: str) -> bool:
        return attempt(self._command("inspect", "--type", "image", reference)).returncode == 0

    def build(self, image: ImageBuild) -> None:
        with self._secrets() as secrets:
            words = [
                "build",
                "--quiet",
                "--layers",
                "--isolation",
                "chroot",
                "--network",
                "host",
                "--pull-never",
            ]
            words += [
                "--ignorefile",
                str(IGNORE_FILE),
                "--file",
                str(image.containerfile),
                "--tag",
                image.reference,
            ]
            if image.architecture is not None:
                words += ["--platform", f"linux/{image.architecture}"]
            if image.target is not None:
                words += ["--target", image.target]
            for name, value in image.arguments.items():
                words += ["--build-arg", f"{name}={value}"]
            for name, path in secrets.items():
                words += ["--secret", f"id={name},src={path}"]
            quick = image.architecture is None and image.target is None
            self._run(*words, str(image.context), timeout_s=1800 if quick else 7200)

    def save(self, reference: str, archive: Path) -> None:
        # This format is not compressed; compressing would be most of the time, and the archive goes nowhere.
        self._run("push", "--quiet", reference, f"docker-archive:{archive}:{reference}")

    def join(self, name: str, references: Sequence[str], folder: Path) -> None:
        """Write images of several architectures under one name into an OCI layout."""
        if self.has_list(name):
            self._run("manifest", "rm", name)
        self._run("manifest", "create", name)
        for reference in references:
            self._run("manifest", "add", name, f"containers-storage:{reference}")
        self._run("manifest", "push", "--all", name, f"oci:{folder}:{name.rpartition(':')[2]}")

    def has_list(self, name: str) -> bool:
        return attempt(self._command("manifest", "inspect", name)).returncode == 0

    @contextmanager
    def unpacked(self, reference: str) -> Iterator[Path]:
        """A file system of the image's content, to be written to and thrown away."""
        container = self._ask("from", "--quiet", "--pull-never", reference)
        try:
            yield Path(self._ask("mount", container))
        finally:
            self._run("umount", container)
            self._run("rm", container)

    def printed(self, reference: str, *words: str) -> str:
        """Return what a command inside the image prints, as the image's own user. Raises ClusterError unless it exits
        0.
        """
        container = self._ask("from", "--quiet", "--pull-never", reference)
        try:
            command = self._command("run", "--isolation", "chroot", container, "--", *words)
            return run(command, timeout_s=900)
        finally:
            self._run("rm", container)

    def _ask(self, *words: str) -> str:
        return run(self._command(*words)).strip().splitlines()[-1]

    def _run(self, *words: str, timeout_s: float = 600) -> None:
        temporary = self.root / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        run(self._command(*words), environment={**os.environ, "TMPDIR": str(temporary)}, timeout_s=timeout_s)

    def _command(self, *words: str) -> list[str]:
        store = ["--root", str(self.root / "storage"), "--runroot", "/run/embedserve/buildah"]
        return ["buildah", *store, "--storage-driver", "overlay", *words]

    @contextmanager
    def _secrets(self) -> Iterator[dict[str, Path]]:
        """Return how this machine reaches its package index; mounted while pip runs, so never part of an image."""
        with tempfile.TemporaryDirectory(prefix="embedserve-build-") as folder:
            settings = Path(folder) / "pip.conf"
            settings.write_text(_pip_settings())
            secrets = {"pip": settings}
            if HOST_CERTIFICATES.exists():
                secrets["ca"] = HOST_CERTIFICATES
            yield secrets


def _pip_settings() -> str:
    """The machine's own pip settings: files first, environment variables over them, as in pip itself."""
    config = configparser.RawConfigParser()
    config.read(["/etc/pip.conf", Path.home() / ".pip/pip.conf", Path.home() / ".config/pip/pip.conf"])
    if not config.has_section("global"):
        config.add_section("global")
    for setting in PIP_SETTINGS:
        value = os.environ.get("PIP_" + setting.replace("-", "_").upper())
        if value:
            config.set("global", setting, value)
    if HOST_CERTIFICATES.exists():
        config.set("global", "cert", CERTIFICATES_IN_BUILD)
    text = io.StringIO()
    config.write(text)
    return text.getvalue()
