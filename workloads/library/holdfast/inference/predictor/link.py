"""The worker's end of the wire to its predicting process: a request may be sent while another is answered.

Both ends could wait in a send for each other, each with a full pipe: so this one never waits
in a send. What does not fit goes out while an answer is awaited.
"""

import select
import socket
import time
from typing import Any

from holdfast.inference.predictor import frames

_READ_BYTES = 1024 * 1024


class Link:
    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._unsent, self._unread = bytearray(), bytearray()

    def send(self, frame: bytes) -> None:
        """Never waits. No error for an end that is gone: what it answered before can still be received."""
        self._unsent += frame
        self._push()

    def receive(self, timeout_s: float | None) -> dict[str, Any]:
        """The next answer. EOFError when the other end is gone, TimeoutError when it takes too long."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while (answer := frames.pop_message(self._unread)) is None:
            self._pump(until)
        return answer

    def close(self) -> None:
        self._end.close()

    def _pump(self, until: float | None) -> None:
        poll = select.poll()
        poll.register(self._end, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        left_s = None if until is None else until - time.monotonic()
        ready = poll.poll(None if left_s is None else max(0.0, left_s) * 1000)
        if not ready:
            raise TimeoutError
        if ready[0][1] & ~select.POLLOUT:
            self._pull()
        self._push()

    def _push(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._end.send(self._unsent)]
        except BlockingIOError:
            return
        except ConnectionError:
            self._unsent.clear()

    def _pull(self) -> None:
        try:
            data = self._end.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            raise EOFError from None
        if not data:
            raise EOFError
        self._unread += data
