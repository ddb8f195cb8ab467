"""Calls that outlive a service that is away for a while."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
# Without a state: a retry must not draw from the stream of a training, and forked ranks must not
# pause for the same time.
_JITTER = random.SystemRandom()


@dataclass(frozen=True, kw_only=True, slots=True)
class Retry:
    """Repeats a call while it fails with one of `transient`; pauses double up to the longest, with
    jitter.
    """

    transient: tuple[type[Exception], ...]
    """Nothing else: a refusal stays one, however often the call is repeated."""
    give_up: Callable[[], bool]
    """Called after each failure; true raises it."""
    on_error: Callable[[Exception], object] = lambda _: None
    """Of each failure; may raise another one in its place."""
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
            # Jitter: those that lost the same service must not come back together.
            self.sleep(pause_s * _JITTER.uniform(0.5, 1.0))
            pause_s = min(self.longest_pause_s, pause_s * 2)
