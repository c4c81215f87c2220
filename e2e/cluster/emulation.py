"""Runs programs for 64-bit ARM on this machine: qemu in user mode, registered with the kernel."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.debian import install_missing_packages
from e2e.cluster.progress import Progress
from e2e.cluster.shell import run

ARM64 = "arm64"
PACKAGES = ("binfmt-support", "debootstrap", "buildah", "ca-certificates", "qemu-user-static")
REGISTRY = Path("/proc/sys/fs/binfmt_misc")


def own_architecture() -> str:
    """Return the architecture of this machine, by Debian's name."""
    return {"x86_64": "amd64", "aarch64": ARM64}[platform.machine()]


def ensure_arm64(progress: Progress) -> None:
    """Nothing is left to do where the machine is one. The emulator is opened when it is registered, so that it is
    found in a container too."""
    if own_architecture() == ARM64:
        return
    install_missing_packages(progress, PACKAGES)
    if not (REGISTRY / "register").exists():
        run(["mount", "-t", "binfmt_misc", "binfmt_misc", REGISTRY])
    if not (REGISTRY / "qemu-aarch64").exists():
        run(["update-binfmts", "--enable", "qemu-aarch64"])


def printed(system: Path, words: Sequence[str], search: str) -> str:
    """Return what a command in the file system `system` prints, as the images' user and with `search` as PATH. Raises
    ClusterError unless it exits 0. It sees no /sys, as in `running`."""
    inside = 'mount -t proc proc "$0/proc" && exec chroot --userspec=65532:65532 "$0" env PATH="$1" "${@:2}"'
    command = ["unshare", "--mount", "bash", "-c", inside, str(system), search, *words]
    return run(command, timeout_s=1800)


@contextmanager
def running(system: Path, words: Sequence[str], model: Path) -> Iterator[subprocess.Popen[str]]:
    """A command in the file system `system`, with the folder `model` at /model, until the block is left.

    It sees no /sys: ONNX Runtime's reader of ARM processors dies on what is written there of others.
    """
    target = system / "model"
    target.mkdir()
    inside = 'mount -t proc proc "$0/proc" && mount --bind "$1" "$0/model" && shift && exec chroot "$0" "$@"'
    command = ["unshare", "--mount", "sh", "-c", inside, str(system), str(model), *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()
