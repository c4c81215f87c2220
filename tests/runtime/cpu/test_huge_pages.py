from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import pytest

from embedserve_runtime.cpu.huge_pages import collapse_blocks, find_blocks, read_huge_page_size

SIZE = 2**21


def test_only_filled_memory_is_put_into_huge_pages() -> None:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with mmap.mmap(-1, 3 * SIZE, flags=flags) as filled, mmap.mmap(-1, 3 * SIZE, flags=flags) as sparse:
        filled.write(b"\1" * 3 * SIZE)
        sparse.write(b"\1" * (SIZE // 2))
        advised: list[int] = []

        def advise(begin: int, size: int) -> bool:
            assert size == SIZE
            advised.append(begin)
            return len(advised) > 1  # the kernel may refuse some

        moved = collapse_blocks(SIZE, advise)
        assert moved == (len(advised) - 1) * SIZE
        for memory, want in ((filled, 2), (sparse, 0)):
            begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            within = range(begin, begin + 3 * SIZE - SIZE + 1)
            assert sum(block in within for block in advised) in ({want, want + 1} if want else {0})


def test_it_ends_when_it_is_of_no_use_any_more() -> None:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with mmap.mmap(-1, 3 * SIZE, flags=flags) as filled:
        filled.write(b"\1" * 3 * SIZE)
        advised: list[int] = []

        def advise(begin: int, _: int) -> bool:
            advised.append(begin)
            return True

        assert collapse_blocks(SIZE, advise, lambda: bool(advised)) == SIZE
        assert len(advised) == 1


def test_blocks_lie_in_anonymous_memory_of_the_process() -> None:
    maps = """\
00200000-00800000 r--p 00000000 00:00 0
00900000-00f00000 rw-p 00000000 00:00 0                  [heap]
01000000-01400000 rw-p 00000000 08:01 77                 /some/file
01500000-01600000 rw-p 00000000 00:00 0
02000000-02400000 rw-p 00000000 00:00 0
7ffc0000000-7ffc0800000 rw-p 00000000 00:00 0            [stack]
"""
    assert [*find_blocks(maps, SIZE)] == [0xA00000, 0xC00000, 0x2000000, 0x2200000]


@pytest.mark.parametrize(
    ("enabled", "want"),
    [("always [madvise] never\n", SIZE), ("always madvise [never]\n", None), (None, None)],
)
def test_a_kernel_that_is_set_to_use_none_is_left_alone(
    tmp_path: Path, enabled: str | None, want: int | None
) -> None:
    if enabled is not None:
        (tmp_path / "enabled").write_text(enabled)
        (tmp_path / "hpage_pmd_size").write_text(f"{SIZE}\n")
    assert read_huge_page_size(tmp_path) == want
