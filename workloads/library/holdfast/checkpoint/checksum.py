"""crc32c of memory without copying it."""

import ctypes

import google_crc32c

# The C function keeps the interpreter lock: a step of this size lets other threads run in between.
_STEP = 8 << 20


class Crc32c:
    """A checksum that grows with its data. Memory must be writable: google_crc32c takes no memoryview, but a
    ctypes array over the same memory."""

    def __init__(self) -> None:
        self._value = 0

    def extend(self, data: memoryview) -> None:
        # An empty buffer has no address for ctypes; the loop is then not entered.
        for start in range(0, len(data), _STEP):
            length = min(_STEP, len(data) - start)
            chunk = (ctypes.c_ubyte * length).from_buffer(data, start)
            self._value = google_crc32c.extend(self._value, chunk)  # pyright: ignore[reportArgumentType]

    def hex(self) -> str:
        return f"{self._value:08x}"


def crc32c(data: memoryview) -> str:
    """8 hex digits."""
    running = Crc32c()
    running.extend(data)
    return running.hex()
