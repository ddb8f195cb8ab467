"""A TCP proxy that gives every connection the rate of one stream to a bucket.

    stream_proxy.py PORT TARGET MB_PER_S FILE

An emulator on the same machine answers at memory speed. Upload strategies differ because a bucket
limits each stream and not their sum; without the proxy no bench would show it. FILE holds the
number of bytes that came from the target.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress

CHUNK = 1 << 18


async def pump(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    bytes_per_s: float,
    count: Callable[[int], None],
) -> None:
    start = time.monotonic()
    passed = 0
    with suppress(OSError):
        while data := await reader.read(CHUNK):
            idle = time.monotonic() - start - passed / bytes_per_s
            if idle > 0.05:  # unused rate does not add up
                start += idle
            writer.write(data)
            await writer.drain()
            passed += len(data)
            count(len(data))
            await asyncio.sleep(max(0.0, start + passed / bytes_per_s - time.monotonic()))
        writer.write_eof()


async def serve(port: int, target: int, bytes_per_s: float, passed: str) -> None:
    answered = 0
    counter = os.open(passed, os.O_WRONLY | os.O_CREAT)

    def count(size: int) -> None:
        nonlocal answered
        answered += size
        # A fixed length: a reader in between still finds a whole number.
        os.pwrite(counter, b"%020d" % answered, 0)

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, ahead = await asyncio.open_connection("127.0.0.1", target, limit=CHUNK)
        await asyncio.gather(
            pump(reader, ahead, bytes_per_s, lambda _: None),
            pump(behind, writer, bytes_per_s, count),
        )
        ahead.close()
        writer.close()

    server = await asyncio.start_server(connect, "127.0.0.1", port, limit=CHUNK)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) * 1e6, sys.argv[4]))
