"""The interface between the runner and the place where a drill runs."""

# Why it is so: infra/decisions/0090.

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

Undo = tuple[str, Callable[[], object]]
"""A step of the rollback: its name and its action."""


class Target(Protocol):
    """Work that a drill prepares, hits, measures and restores."""

    def prepare(self) -> None:
        """Starts the work, or checks that it runs. Changes only objects of the drill itself."""
        ...

    def candidates(self) -> list[str]:
        """Returns the names of possible targets; the fault hits the first ones."""
        ...

    def measure(self, metric: str) -> float | None:
        """Returns the metric, or None while it has no value. May be called at any time."""
        ...

    def inject(self, victims: Sequence[str]) -> str:
        """Causes the fault and describes it in a few words."""
        ...

    def has_recovered(self) -> bool: ...

    def rollback(self) -> Iterable[Undo]:
        """Returns the steps that restore everything, also if nothing was started.

        Each step runs even if another one fails.
        """
        ...
