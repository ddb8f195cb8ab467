"""The saves that were handed over and are not through, and the staging memories that they hold."""

import math
import time
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Flight:
    """A save that was handed over."""

    step: int
    memory: int
    began: float


class Flights:
    def __init__(self, memories: int) -> None:
        self._memories = memories
        self._flights: dict[int, Flight] = {}

    def add(self, save: int, flight: Flight) -> None:
        self._flights[save] = flight

    def __getitem__(self, save: int) -> Flight:
        return self._flights[save]

    def free_memory(self, in_flight: Collection[int]) -> int:
        """-1: every one is still being uploaded. What is not in flight is forgotten."""
        self._flights = {save: self._flights[save] for save in in_flight}
        taken = {flight.memory for flight in self._flights.values()}
        return next((memory for memory in range(self._memories) if memory not in taken), -1)

    def oldest_s(self, in_flight: Collection[int]) -> float:
        return time.monotonic() - min((self._flights[save].began for save in in_flight), default=math.inf)

    def oldest(self, in_flight: Collection[int]) -> str:
        step = min((self._flights[save].step for save in in_flight), default=0)
        return f"the upload of step {step} is not through after {self.oldest_s(in_flight):.0f} s"
