"""The Debian packages that the cluster is made of; only missing ones are installed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.cluster.progress import Progress
from e2e.cluster.shell import attempt, run

PACKAGES = (
    "buildah",
    "ca-certificates",
    "conntrack",
    "containerd",
    "containernetworking-plugins",
    "debootstrap",
    "etcd-server",
    "gcc",
    "iproute2",
    "iptables",
    "libc6-dev",
    "mount",
    "runc",
    "util-linux",
)

POLICY = Path("/usr/sbin/policy-rc.d")


def install_missing_packages(progress: Progress, packages: Sequence[str] = PACKAGES) -> None:
    missing = [package for package in packages if not _installed(package)]
    if not missing:
        return
    if os.geteuid() != 0:
        raise ClusterError("the cluster needs root: " + ", ".join(missing) + " must be installed")
    with progress.step(f"installing Debian packages: {', '.join(missing)}", "first run only, under a minute"):
        run(["apt-get", "update", "-qq"], timeout_s=600)
        with _no_service_starts():
            run(
                ["apt-get", "install", "--yes", "-qq", "--no-install-recommends", *missing],
                environment={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                timeout_s=1200,
            )


def _installed(package: str) -> bool:
    status = attempt(["dpkg-query", "--show", "--showformat=${db:Status-Status}", package])
    return status.returncode == 0 and status.stdout == "installed"


@contextmanager
def _no_service_starts() -> Iterator[None]:
    """Debian starts etcd and containerd on installation; the cluster runs its own, so forbid that."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()
