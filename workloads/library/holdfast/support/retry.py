"""Retries of calls to a service that may be unavailable for a while."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
# A generator without state: a retry must not advance the random stream of a training, and forked
# ranks must not pause for the same time.
_JITTER = random.SystemRandom()


@dataclass(frozen=True, kw_only=True, slots=True)
class Retry:
    """Repeats a call while it fails with a transient error.

    Pauses double up to the longest, with jitter.
    """

    transient: tuple[type[Exception], ...]
    """The errors to retry. A refusal is not one: repeating the call does not change it."""
    give_up: Callable[[], bool]
    """A function that is called after each failure; if it returns True, the error is raised."""
    on_error: Callable[[Exception], object] = lambda _: None
    """A function that is called with each error; it may raise another one instead."""
    first_pause_s: float = 0.05
    longest_pause_s: float = 2.0
    sleep: Callable[[float], object] = time.sleep

    def __call__(self, operation: Callable[[], T]) -> T:
        pause_s = self.first_pause_s
        while True:
            try:
                return operation()
            except self.transient as error:
                self.on_error(error)
                if self.give_up():
                    raise
            # Jitter: clients that lost the same service must not return at the same time.
            self.sleep(pause_s * _JITTER.uniform(0.5, 1.0))
            pause_s = min(self.longest_pause_s, pause_s * 2)
