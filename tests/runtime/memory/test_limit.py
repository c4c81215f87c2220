"""The memory limit of the container, from files of both versions of cgroups."""

from __future__ import annotations

from pathlib import Path

import pytest

from embedserve_runtime.memory.limit import read_memory_limit

GIB = 2**30
UNLIMITED = "9223372036854771712\n"
# /proc/self/cgroup, the files of the tree, and the limit.
CASES: dict[str, tuple[str, dict[str, str], int | None]] = {
    "version 2, in a container": ("0::/\n", {"memory.max": f"{GIB}\n"}, GIB),
    "version 2, no limit": ("0::/\n", {"memory.max": "max\n"}, None),
    "version 2, a group of its own": (
        "0::/a/b\n",
        {"a/b/memory.max": f"{GIB}\n", "a/memory.max": "max\n"},
        GIB,
    ),
    "version 2, the group around has less": (
        "0::/a/b\n",
        {"a/b/memory.max": f"{GIB}\n", "a/memory.max": f"{GIB // 2}\n"},
        GIB // 2,
    ),
    "version 1, in a container that sees the host's path": (
        "4:memory:/kubepods/pod1\n2:cpu,cpuacct:/x\n",
        {"memory/memory.limit_in_bytes": f"{GIB}\n"},
        GIB,
    ),
    "version 1, a group of its own": (
        "4:memory:/a\n0::/\n",
        {"memory/a/memory.limit_in_bytes": f"{GIB}\n", "memory/memory.limit_in_bytes": UNLIMITED},
        GIB,
    ),
    "version 1, no limit": ("4:memory:/a\n", {"memory/a/memory.limit_in_bytes": UNLIMITED}, None),
    "no cgroup": ("", {}, None),
}


@pytest.mark.parametrize(("own", "files", "want"), CASES.values(), ids=CASES.keys())
def test_the_limit_is_the_least_of_the_process_s_groups(
    tmp_path: Path, own: str, files: dict[str, str], want: int | None
) -> None:
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(text)
    assert read_memory_limit(tmp_path / "root", tmp_path / "own") == want


def test_without_the_list_of_groups_the_root_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(f"{GIB}\n")
    assert read_memory_limit(tmp_path, tmp_path / "missing") == GIB
