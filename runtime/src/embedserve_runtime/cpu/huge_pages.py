"""Memory of this process in huge pages. One short text reads all weights of a model once and does little with each, so
that looking up the pages of the weights shows in its time."""

from __future__ import annotations

import ctypes
import logging
import mmap
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

log = logging.getLogger(__name__)

# `MADV_COLLAPSE`, from Linux 6.1 on; older kernels refuse it.
COLLAPSE = 25
# Of the pages that become one: what was free of them is memory from then on.
MIN_SHARE = 0.95
# /proc/self/pagemap has this number of bytes for each page; the highest bit is set where there is memory.
ENTRY_BYTES = 8
PRESENT = np.uint64(1 << 63)
SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")
# Anonymous, private and writable: begin and end.
ANONYMOUS = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0 *(?:\[heap\])?$", re.MULTILINE)

# Begin and size; whether the kernel did it.
Advise = Callable[[int, int], bool]


def use_huge_pages(is_ended: Callable[[], bool]) -> None:
    """Move what is in memory now to huge pages, until `is_ended` says that it is of no use any more.

    It takes a second for some GB, and requests are slower meanwhile. Nothing happens where the kernel knows no huge
    pages, or is set to use none.
    """
    size = read_huge_page_size()
    if size is None:
        return
    madvise = ctypes.CDLL(None).madvise

    def advise(begin: int, length: int) -> bool:
        refused: int = madvise(ctypes.c_void_p(begin), ctypes.c_size_t(length), COLLAPSE)
        return not refused

    begun = time.perf_counter()
    try:
        moved = collapse_blocks(size, advise, is_ended)
    except OSError as error:
        log.info("no huge pages", extra={"error": str(error)})
        return
    log.info("huge pages in use", extra={"bytes": moved, "seconds": round(time.perf_counter() - begun, 3)})


def read_huge_page_size(settings: Path = SETTINGS) -> int | None:
    """Return the size of a huge page in bytes; None where the kernel has none or is set not to use them."""
    try:
        if "[never]" in (settings / "enabled").read_text():
            return None
        return int((settings / "hpage_pmd_size").read_text())
    except (OSError, ValueError):
        return None


def find_blocks(maps: str, size: int) -> Iterator[int]:
    """Iterate the addresses of anonymous memory at which a huge page could begin.

    maps: content of /proc/self/maps. size: of a huge page, in bytes.
    """
    for match in ANONYMOUS.finditer(maps):
        begin, end = (int(bound, 16) for bound in match.groups())
        yield from range(-(-begin // size) * size, end - size + 1, size)


def collapse_blocks(size: int, advise: Advise, is_ended: Callable[[], bool] = lambda: False) -> int:
    """Collapse filled memory into huge pages of `size` bytes, and return how many bytes are in them now.

    is_ended: is asked before each page, and ends it. Raises OSError where the memory of the process cannot be looked
    at.
    """
    moved, pages = 0, size // mmap.PAGESIZE
    with Path("/proc/self/pagemap").open("rb", buffering=0) as table:
        for begin in find_blocks(Path("/proc/self/maps").read_text(), size):
            if is_ended():
                break
            table.seek(begin // mmap.PAGESIZE * ENTRY_BYTES)
            entries = np.frombuffer(table.read(pages * ENTRY_BYTES), np.uint64)
            if np.count_nonzero(entries & PRESENT) >= MIN_SHARE * pages and advise(begin, size):
                moved += size
    return moved
