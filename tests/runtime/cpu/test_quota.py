from __future__ import annotations

import os
from pathlib import Path

import pytest

from embedserve_runtime.cpu.quota import count_usable_cpus, read_cpu_limit

V1 = {"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}
CASES: dict[str, tuple[dict[str, str], float | None]] = {
    "version 2, half a core": ({"cpu.max": "50000 100000\n"}, 0.5),
    "version 2, no limit": ({"cpu.max": "max 100000\n"}, None),
    "version 1, half a core": (V1, 0.5),
    "version 1, joint mount": ({f"cpu,cpuacct/{name[4:]}": text for name, text in V1.items()}, 0.5),
    "version 1, no limit": ({**V1, "cpu/cpu.cfs_quota_us": "-1\n"}, None),
    "no cgroup": ({}, None),
}


@pytest.mark.parametrize(("files", "want_limit"), CASES.values(), ids=CASES.keys())
def test_the_limit_is_read_from_either_version(
    tmp_path: Path, files: dict[str, str], want_limit: float | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert read_cpu_limit(tmp_path) == want_limit


@pytest.mark.parametrize(
    ("maximum", "want_cpus"), [("150000 100000", 2), ("1000 100000", 1), ("9900000 100000", 4)]
)
def test_threads_follow_the_quota_rounded_up_but_never_more_than_the_cores_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, maximum: str, want_cpus: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    (tmp_path / "cpu.max").write_text(maximum)
    assert count_usable_cpus(tmp_path) == want_cpus
