"""Clients that ask at a fixed rate, whatever the answers do, and count every one. POST, which no client library repeats by itself."""

import asyncio
import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field

INFER_PATH = "/v2/models/model/infer"
_TEXT = {
    "name": "text",
    "datatype": "BYTES",
    "shape": [1],
    "data": ["a request that comes while a server loses its machine"],
}
INFER_BODY = json.dumps({"inputs": [_TEXT]}).encode()
_TIMEOUT_S = 30.0


@dataclass
class Load:
    """Open loop: a slow server does not slow the clients down."""

    host: str
    port: int
    path: str
    body: bytes
    codes: "Counter[str]" = field(default_factory=Counter)
    """HTTP code, or the class of the error."""
    seconds: list[float] = field(default_factory=list[float])
    """Of answers with 200."""
    _idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(
        default_factory=list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
    )

    @property
    def asked(self) -> int:
        return self.codes.total()

    @property
    def failed(self) -> int:
        return self.asked - self.codes["200"]

    @contextlib.contextmanager
    def asking(self, rate: float) -> Generator[None]:
        """`rate` a second from a thread of its own; left after the last answer."""
        ended = threading.Event()
        thread = threading.Thread(target=lambda: asyncio.run(self.run(rate, ended)), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    async def run(self, rate: float, until: "asyncio.Event | threading.Event") -> None:
        """`rate` a second until `until` is set, then to the last answer."""
        began, count, tasks = time.monotonic(), 0, set[asyncio.Task[None]]()
        while not until.is_set():
            due = int((time.monotonic() - began) * rate) - count
            for _ in range(due):
                task = asyncio.create_task(self._one())
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            count += due
            await asyncio.sleep(1 / rate)
        await asyncio.gather(*tasks)
        for _, writer in self._idle:
            writer.close()

    async def _one(self) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                code = await self._asked()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError) as error:
            code = type(error).__name__
        self.codes[code] += 1
        if code == "200":
            self.seconds.append(time.monotonic() - began)

    async def _asked(self) -> str:
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection(self.host, self.port)
        try:
            head = f"POST {self.path} HTTP/1.1\r\nHost: {self.host}\r\nContent-Length: {len(self.body)}\r\n\r\n"
            writer.write(head.encode() + self.body)
            answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            length = int(answer.partition("content-length:")[2].split("\r\n")[0] or 0)
            await reader.readexactly(length)
        except BaseException:
            writer.close()
            raise
        if "connection: close" in answer:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        else:
            self._idle.append((reader, writer))
        return answer.split()[1]
