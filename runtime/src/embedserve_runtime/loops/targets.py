"""For which processor loops are compiled, and where the code is kept."""

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
HERE = Path(__file__).parent


def target_of(machine: str, flags: AbstractSet[str]) -> str:
    """The best that the machine has. flags: as `cpu.features.flags_in` reads them."""
    if machine not in X86_MACHINES:
        return GENERIC
    return next(name for name, needed in X86 if needed <= flags)


def targets_of(machine: str) -> tuple[str, ...]:
    """All that an image for such machines may meet."""
    return tuple(name for name, _ in X86) if machine in X86_MACHINES else (GENERIC,)


def folder_of(environment: Mapping[str, str]) -> Path:
    """Where compiled code is kept: NUMBA_CACHE_DIR, which an image sets, else the user's cache."""
    if named := environment.get("NUMBA_CACHE_DIR"):
        return Path(named)
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "embedserve" / "loops"


def stamp(versions: str) -> str:
    """Return the stamp of code that was compiled from these sources: loops call those of other files, so all files of
    the room count."""
    digest = hashlib.sha256(versions.encode())
    for file in sorted(HERE.glob("*.py")):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()
