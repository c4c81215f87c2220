"""Detects the processor's integer arithmetic, which decides how fast and how exact 8-bit products are on it."""

from __future__ import annotations

import platform
from collections.abc import Set as AbstractSet
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")

# The best first: the name that we give, and the flag of /proc/cpuinfo that it needs.
X86 = (
    ("amx-int8", "amx_int8"),
    ("avx512-vnni", "avx512_vnni"),
    ("avx-vnni", "avx_vnni"),
    ("avx512", "avx512bw"),
    ("avx2", "avx2"),
)
# As `platform.machine` names them.
X86_MACHINES = ("x86_64", "AMD64")
ARM_MACHINES = ("aarch64", "arm64")
ARM = (("i8mm", "i8mm"), ("dotprod", "asimddp"))
# Without these, products of 8 bit add two terms in 16 bit and may overflow there.
WIDE_SUMS = frozenset({"amx-int8", "avx512-vnni", "avx-vnni", "i8mm", "dotprod", "neon"})


def detect_instruction_set() -> str:
    """Return the name of this machine's instruction set for 8-bit products, such as `x86-64/avx512-vnni`."""
    return format_instruction_set(platform.machine(), read_cpu_flags())


def has_bfloat16_products() -> bool:
    """Return whether ONNX Runtime can multiply in bfloat16 on this machine: on ARM cores with BFMMLA."""
    return platform.machine() in ARM_MACHINES and "bf16" in read_cpu_flags()


def read_cpu_flags() -> frozenset[str]:
    """Read the feature flags of this machine's CPU, as the kernel names them."""
    return parse_cpu_flags(_cpu_info())


def parse_cpu_flags(cpu_info: str) -> frozenset[str]:
    """Parse the flags of the first processor: the line `flags` on x86, `Features` on ARM.

    cpu_info: content of /proc/cpuinfo.
    """
    for line in cpu_info.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def format_instruction_set(machine: str, flags: AbstractSet[str]) -> str:
    """Format the best instruction set that the flags have, such as `arm64/i8mm`; other machines by their name alone."""
    if machine in X86_MACHINES:
        return f"x86-64/{next((name for name, flag in X86 if flag in flags), 'sse')}"
    if machine in ARM_MACHINES:
        return f"arm64/{next((name for name, flag in ARM if flag in flags), 'neon')}"
    return machine


def can_accumulate_exactly(instructions: str) -> bool:
    """Return whether an instruction set sums 8-bit products without overflow, whatever the weights are."""
    return instructions.rpartition("/")[2] in WIDE_SUMS


def compute_max_static_weight(instructions: str) -> int:
    """Return the largest 8-bit weight whose products cannot overflow: 127, or 63 if two terms are added in 16 bit."""
    return 127 if can_accumulate_exactly(instructions) else 63


def _cpu_info() -> str:
    try:
        return CPU_INFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
