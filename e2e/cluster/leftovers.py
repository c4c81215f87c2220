"""Find and remove what the node's processes leave behind: pods' processes, mounts and control groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from e2e.cluster.layout import CGROUP, Layout
from e2e.cluster.polling import wait_until
from e2e.cluster.process_table import list_commands
from e2e.cluster.processes import ProcessIdentity, end_process
from e2e.cluster.shell import run

CGROUPS = Path("/sys/fs/cgroup")


def end_pod_processes(layout: Layout) -> None:
    """End the shims first, so that none restarts or waits for a child, then whatever ran inside the pods."""
    for identity in (*_shims(layout), *_processes_in_pods()):
        end_process(identity, grace_s=2)


def unmount_all(layout: Layout) -> None:
    """Everything mounted under the state folders, the innermost first."""
    unmount_under(layout.state, layout.containerd_state)


def unmount_under(*roots: Path) -> None:
    """Everything mounted under some folders, the innermost first."""
    points = [point for point in _mount_points() if any(point.is_relative_to(root) for root in roots)]
    for point in sorted(points, key=lambda point: len(point.parts), reverse=True):
        run(["umount", "--lazy", point])


def create_cgroup(name: str = CGROUP) -> None:
    """The group that a kubelet puts all pods under, so that they can be told from any other's."""
    for hierarchy in _hierarchies():
        (hierarchy / name).mkdir(exist_ok=True)


def remove_cgroup() -> None:
    for hierarchy in _hierarchies():
        top = hierarchy / CGROUP
        if not top.exists():
            continue
        for group in sorted((path for path in top.rglob("*") if path.is_dir()), reverse=True):
            _remove_empty(group)
        _remove_empty(top)


def leftover_processes(layout: Layout) -> tuple[ProcessIdentity, ...]:
    return (*_shims(layout), *_processes_in_pods())


def _remove_empty(group: Path) -> None:
    """A group stays busy for a moment after its last process has ended."""

    def is_removed() -> bool:
        try:
            group.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    wait_until(f"control group {group} is empty", is_removed, timeout_s=10, every_s=0.05)


def _hierarchies() -> Iterator[Path]:
    """Each mounted hierarchy: one a controller with cgroup v1, the root itself with v2 alone."""
    if (CGROUPS / "cgroup.procs").exists():
        yield CGROUPS
        return
    visited: set[Path] = set()
    for path in sorted(CGROUPS.iterdir()):
        # "cpu,cpuacct" style links lead to the same hierarchy.
        real = path.resolve()
        if real not in visited and (real / "cgroup.procs").exists():
            visited.add(real)
            yield real


def _processes_in_pods() -> Iterator[ProcessIdentity]:
    reported: set[int] = set()
    for hierarchy in _hierarchies():
        for procs in (hierarchy / CGROUP).rglob("cgroup.procs"):
            for word in procs.read_text().split():
                identity = ProcessIdentity.of(int(word))
                if identity is not None and identity.pid not in reported:
                    reported.add(identity.pid)
                    yield identity


def _shims(layout: Layout) -> Iterator[ProcessIdentity]:
    """Shims outlive containerd on purpose; ours are told by the socket that they report to."""
    sockets = str(layout.containerd_state).encode() + b"/"
    for number, words in list_commands():
        if b"containerd-shim" in words[0] and any(word.startswith(sockets) for word in words):
            identity = ProcessIdentity.of(number)
            if identity is not None:
                yield identity


def _mount_points() -> Iterator[Path]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        # Blanks in a path are written as octal escapes.
        yield Path(line.split()[4].encode().decode("unicode_escape"))
