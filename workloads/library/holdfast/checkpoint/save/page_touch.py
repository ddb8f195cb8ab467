"""Touches the pages of new memory, so that the first save does not wait for page faults.

It runs in a thread of the trainer and does not use PyTorch. The first tensor operation
registers destructors, and holds a lock of the C library meanwhile. A DataLoader worker that is
forked at that moment inherits the held lock, and waits for it forever.
"""

import ctypes
import mmap
import sys

_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_MADV_POPULATE_READ = 22
"""Advice of Linux 5.14 and newer, which the module mmap does not name."""
_PIECE_BYTES = 64 << 20
"""The most that one call touches. A longer call would keep a fork or a new mapping waiting."""


def touch_pages(memory: mmap.mmap, address: int) -> None:
    """Reads each page of `memory`, which is mapped at `address`.

    It does not write, since a memory that outlives its process may hold the only copy of a state.
    """
    for start in range(0, len(memory), _PIECE_BYTES):
        end = min(start + _PIECE_BYTES, len(memory))
        if not _populate(address + start, end - start):
            # An old kernel: this holds the interpreter for some milliseconds.
            bytes(memory[start : end : mmap.PAGESIZE])


def _populate(address: int, length: int) -> bool:
    """Returns whether the kernel could do it."""
    if _LIBC is None:
        return False
    place = ctypes.c_void_p(address)
    code = _LIBC.madvise(place, ctypes.c_size_t(length), _MADV_POPULATE_READ)
    return code == 0
