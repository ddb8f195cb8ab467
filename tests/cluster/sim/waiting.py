"""Wait for a condition, never for a time."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(what: str, probe: Callable[[], T | None], timeout_s: float = 120.0) -> T:
    """The first truthy answer of `probe`; after `timeout_s` an error that names the last answer."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = probe()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:.0f} s: {what}; last answer {answer!r}")
        time.sleep(0.1)
