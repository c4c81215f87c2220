from __future__ import annotations

import platform
from pathlib import Path

import pytest

from embedserve_runtime.cpu import features
from embedserve_runtime.cpu.features import (
    can_accumulate_exactly,
    compute_max_static_weight,
    detect_instruction_set,
    format_instruction_set,
    has_bfloat16_products,
    parse_cpu_flags,
)

X86 = "processor\t: 0\nmodel name\t: x\nflags\t\t: fpu avx2 avx512bw avx512_vnni\n\nprocessor\t: 1\nflags\t\t: fpu\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd asimddp i8mm\nCPU implementer\t: 0x41\n"


@pytest.mark.parametrize(
    ("machine", "flags", "want_name", "want_exact"),
    [
        pytest.param("x86_64", {"avx2", "avx512bw", "avx512_vnni"}, "x86-64/avx512-vnni", True, id="Zen 4"),
        pytest.param("x86_64", {"amx_int8", "avx512_vnni"}, "x86-64/amx-int8", True, id="Sapphire Rapids"),
        pytest.param("x86_64", {"avx2", "avx_vnni"}, "x86-64/avx-vnni", True, id="Alder Lake"),
        pytest.param("x86_64", {"avx2", "avx512bw"}, "x86-64/avx512", False, id="Skylake"),
        pytest.param("x86_64", {"avx2"}, "x86-64/avx2", False, id="Haswell"),
        pytest.param("AMD64", set(), "x86-64/sse", False, id="older"),
        pytest.param("aarch64", {"asimddp", "i8mm"}, "arm64/i8mm", True, id="Neoverse V1"),
        pytest.param("arm64", {"asimddp"}, "arm64/dotprod", True, id="Neoverse N1"),
        pytest.param("aarch64", {"asimd"}, "arm64/neon", True, id="Cortex-A72"),
        pytest.param("riscv64", set(), "riscv64", False, id="another one"),
    ],
)
def test_a_machine_is_named_by_its_best_integer_arithmetic(
    machine: str, flags: set[str], want_name: str, want_exact: bool
) -> None:
    name = format_instruction_set(machine, flags)
    assert (name, can_accumulate_exactly(name)) == (want_name, want_exact)
    assert compute_max_static_weight(name) == (127 if want_exact else 63)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param(X86, {"fpu", "avx2", "avx512bw", "avx512_vnni"}, id="x86"),
        pytest.param(ARM, {"fp", "asimd", "asimddp", "i8mm"}, id="ARM"),
        pytest.param("", set(), id="nothing"),
    ],
)
def test_flags_are_those_of_the_first_processor(text: str, want: set[str]) -> None:
    assert parse_cpu_flags(text) == want


@pytest.mark.parametrize(
    ("machine", "text", "want"),
    [
        pytest.param("aarch64", ARM.replace("i8mm", "i8mm bf16"), True, id="Neoverse V1"),
        pytest.param("aarch64", ARM, False, id="Neoverse N1"),
        pytest.param("x86_64", X86.replace("avx512_vnni", "avx512_bf16"), False, id="Zen 4"),
    ],
)
def test_products_in_bfloat16_are_those_of_arm(
    machine: str, text: str, want: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(features, "CPU_INFO", tmp_path / "cpuinfo")
    assert has_bfloat16_products() is want


def test_the_name_is_that_of_the_machine_that_the_process_runs_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(X86)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(features, "CPU_INFO", tmp_path / "cpuinfo")
    assert detect_instruction_set() == "x86-64/avx512-vnni"
