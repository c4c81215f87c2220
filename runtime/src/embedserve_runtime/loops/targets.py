"""Chooses the processor that loops are compiled for, and the folder where their code is cached."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

from embedserve_runtime.cpu.features import X86_MACHINES

# LLVM's names, the best first, and the flags of /proc/cpuinfo that they need. A level, not the machine itself: what one
# machine has compiled runs on all that have the level, and gives the same bits there.
X86 = (
    ("x86-64-v3", frozenset({"avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"})),
    ("x86-64-v2", frozenset({"sse4_2", "ssse3", "popcnt", "cx16"})),
    ("x86-64", frozenset[str]()),
)
# Any 64-bit ARM has NEON; for others the name is LLVM's too.
GENERIC = "generic"
ROOM = Path(__file__).parent


def choose_target(machine: str, flags: AbstractSet[str]) -> str:
    """Return the best target that the machine supports. flags: as `cpu.features.flags_in` reads them."""
    if machine not in X86_MACHINES:
        return GENERIC
    return next(name for name, needed in X86 if needed <= flags)


def list_targets(machine: str) -> tuple[str, ...]:
    """Return every target that an image for such machines may run on."""
    return tuple(name for name, _ in X86) if machine in X86_MACHINES else (GENERIC,)


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder where compiled code is cached: NUMBA_CACHE_DIR, which an image sets, else the user's cache."""
    if named := environment.get("NUMBA_CACHE_DIR"):
        return Path(named)
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "embedserve" / "loops"


def source_stamp(versions: str) -> str:
    """Return a digest of all files in this room and of `versions`: loops call those of other files, so all of them
    count."""
    digest = hashlib.sha256(versions.encode())
    for file in sorted(ROOM.glob("*.py")):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()
