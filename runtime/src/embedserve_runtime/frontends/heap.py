"""Returns memory that the C library keeps after large answers to the operating system.

glibc maps large allocations one by one, but raises the size that counts as large to that of the largest one freed, up
to 32 MiB (`mallopt(3)`, M_MMAP_THRESHOLD); what is smaller comes from its arenas and stays there when it is freed.
After 100 answers of 11 MB that nobody read, a process of 141 MB kept 1,274, and 208 after a trim (glibc 2.36).
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from dataclasses import dataclass

CHECK_SECONDS = 30.0
"""Time between two checks. An engine that frees and takes the same memory for each batch has to get it anew from the
operating system after a trim, some 0.2 ms for each MiB: at this interval less than 1 % of its time."""
MIN_FREE_BYTES = 64 * 2**20
"""Free memory in the arenas from which a trim is worth its time."""


class _HeapInformation(ctypes.Structure):
    """`struct mallinfo2` of glibc (2.33 and later)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


@dataclass(frozen=True, slots=True)
class Heap:
    """Wraps the C library's heap.

    get_free_bytes: of all arenas. trim: returns whole free pages to the operating system.
    """

    get_free_bytes: Callable[[], int]
    trim: Callable[[], None]

    def trim_if_worthwhile(self) -> None:
        if self.get_free_bytes() >= MIN_FREE_BYTES:
            self.trim()


def find_heap() -> Heap | None:
    """Return the heap of this process; None where the C library is not a glibc that tells about it."""
    library = ctypes.CDLL(None)
    try:
        mallinfo2, malloc_trim = library.mallinfo2, library.malloc_trim
    except AttributeError:
        return None
    mallinfo2.restype = _HeapInformation

    def get_free_bytes() -> int:
        free: int = mallinfo2().fordblks
        return free

    return Heap(get_free_bytes, lambda: malloc_trim(ctypes.c_size_t(0)))


async def trim_heap_periodically() -> None:
    """Return free memory for as long as the task lives; in a thread, since a trim of a GiB takes 0.1 s."""
    heap = find_heap()
    while heap is not None:
        await asyncio.sleep(CHECK_SECONDS)
        await asyncio.to_thread(heap.trim_if_worthwhile)
