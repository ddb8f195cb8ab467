"""crc32c of memory without copying it."""

import ctypes

import google_crc32c

# The C function keeps the interpreter lock: a step of this size lets other threads run in between.
_STEP = 8 << 20


def crc32c(data: memoryview) -> str:
    """8 hex digits. google_crc32c takes no memoryview; a ctypes array over the same memory it does take."""
    if data.readonly:
        return f"{int(google_crc32c.value(bytes(data))):08x}"
    value = 0
    for start in range(0, len(data), _STEP):
        length = min(_STEP, len(data) - start)
        value = google_crc32c.extend(value, (ctypes.c_ubyte * length).from_buffer(data, start))  # pyright: ignore[reportArgumentType]
    return f"{value:08x}"
