"""A TCP proxy that gives every connection the rate of one stream to a bucket.

On one machine an emulator answers at memory speed, and what separates upload strategies, that a bucket
limits each stream and not their sum, would not be seen.
"""

import argparse
import asyncio
import time
from contextlib import suppress

CHUNK = 1 << 18


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, bytes_per_s: float) -> None:
    began, passed = time.monotonic(), 0
    with suppress(OSError):
        while data := await reader.read(CHUNK):
            idle = time.monotonic() - began - passed / bytes_per_s
            if idle > 0.05:  # what was not used is gone
                began += idle
            writer.write(data)
            await writer.drain()
            passed += len(data)
            await asyncio.sleep(max(0.0, began + passed / bytes_per_s - time.monotonic()))
        writer.write_eof()


async def serve(port: int, target: int, bytes_per_s: float) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, ahead = await asyncio.open_connection("127.0.0.1", target, limit=CHUNK)
        await asyncio.gather(pump(reader, ahead, bytes_per_s), pump(behind, writer, bytes_per_s))
        ahead.close()
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", port, limit=CHUNK)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--target", type=int, required=True)
    parser.add_argument("--mb-per-s", type=float, required=True)
    options = parser.parse_args()
    asyncio.run(serve(options.port, options.target, options.mb_per_s * 1e6))
