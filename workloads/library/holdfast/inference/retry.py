"""Calls that outlive a database or a queue that is away for a while."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import psycopg

from holdfast.inference.results.connect import TRANSIENT, raise_if_permanent

_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.05, 2.0
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Retry:
    """Repeats a call while it fails with a transient error; delays double from 0.05 s to 2 s, with jitter."""

    give_up: Callable[[], bool]
    """Asked after each failure; true raises it."""
    on_error: Callable[[Exception], None]
    sleep: Callable[[float], object] = time.sleep

    def __call__(self, operation: Callable[[], _T]) -> _T:
        delay_s = _FIRST_DELAY_S
        while True:
            try:
                return operation()
            except TRANSIENT as error:
                if isinstance(error, psycopg.Error):
                    raise_if_permanent(error)
                self.on_error(error)
                if self.give_up():
                    raise
            # Jitter: workers that lost the same database must not come back as one.
            self.sleep(delay_s * random.uniform(0.5, 1.0))
            delay_s = min(_LONGEST_DELAY_S, delay_s * 2)
