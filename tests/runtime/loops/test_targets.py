"""For which processor loops are compiled, and where they are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from embedserve_runtime.loops.targets import X86, cache_folder, choose_target, list_targets

V3, V2 = (flags for _, flags in X86[:2])


@pytest.mark.parametrize(
    ("machine", "flags", "target"),
    [
        pytest.param("x86_64", V2 | V3 | {"avx512f"}, "x86-64-v3", id="no more than the level is used"),
        pytest.param("x86_64", V2 | V3 - {"fma"}, "x86-64-v2", id="a level with a part missing is none"),
        pytest.param("AMD64", frozenset[str](), "x86-64", id="nothing is known of it"),
        pytest.param("aarch64", frozenset({"asimd", "sve"}), "generic", id="ARM"),
    ],
)
def test_the_target_is_the_highest_level_that_the_machine_has(
    machine: str, flags: frozenset[str], target: str
) -> None:
    assert choose_target(machine, flags) == target
    assert target in list_targets(machine)


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"NUMBA_CACHE_DIR": "/image", "XDG_CACHE_HOME": "/user"}, "/image"),
        ({"XDG_CACHE_HOME": "/user"}, "/user/embedserve/loops"),
        ({}, Path.home() / ".cache/embedserve/loops"),
    ],
)
def test_code_is_kept_where_the_image_says_else_in_the_users_cache(
    environment: dict[str, str], folder: str | Path
) -> None:
    assert cache_folder(environment) == Path(folder)
