"""What the runner asks of a place where drills run."""

# Why it is so: infra/decisions/0090.

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

Undo = tuple[str, Callable[[], object]]
"""A step of the rollback: its name, and what it does."""


class Target(Protocol):
    """`measure` may be called at any time, and returns None for not yet and for never."""

    def prepare(self) -> None:
        """Start the work, or look whether it is there. Changes nothing that the drill did not make."""
        ...

    def candidates(self) -> list[str]:
        """Names of what the fault may hit, in the order in which it would."""
        ...

    def measure(self, metric: str) -> float | None: ...

    def inject(self, victims: Sequence[str]) -> str:
        """The fault; what was done, in a few words."""
        ...

    def recovered(self) -> bool: ...

    def rollback(self) -> Iterable[Undo]:
        """Steps that put everything back, each tried whatever becomes of the others, also when
        nothing began.
        """
        ...
