"""Every state that a model of a protocol can reach: none breaks a rule, and from each an end can be
reached.
"""

import gc
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Protocol, Self, TypeVar


class Explored(Protocol):
    """A state: hashable and never changed."""

    @property
    def deaths(self) -> int: ...

    def prune(self) -> Self:
        """Returns the state without what can have no effect any more."""
        ...


S = TypeVar("S", bound=Explored)


class Protocolled(Protocol[S]):
    def start(self) -> S: ...

    def moves(self, state: S) -> Iterator[S]:
        """Yields what may follow. Raises AssertionError for a state that must not be."""
        ...

    def check_end(self, state: S) -> None:
        """Raises AssertionError where nothing follows and the end is not a good one."""
        ...


def explore(model: Protocolled[S]) -> int:
    """Visits every reachable state, and returns how many there are. Raises AssertionError where a
    rule is broken, and where no end can be reached without another death.
    """
    # States have no reference cycles, and a collector that walks over all of them takes a fifth of
    # the time.
    gc.disable()
    try:
        return _explore(model)
    finally:
        gc.enable()


def _explore(model: Protocolled[S]) -> int:
    states = {model.start()}
    todo = [model.start()]
    before: dict[S, list[S]] = defaultdict(list)
    ends: list[S] = []
    while todo:
        state = todo.pop()
        following = {after.prune() for after in model.moves(state)} - {state}
        if not following:
            model.check_end(state)
            ends.append(state)
        for after in following:
            if after.deaths == state.deaths:
                before[after].append(state)
        fresh = following - states
        states |= fresh
        todo.extend(fresh)
    endless = states - reaching(ends, before)
    assert not endless, f"no end: {next(iter(endless))}"
    return len(states)


def reaching(ends: list[S], before: Mapping[S, list[S]]) -> set[S]:
    reached = set(ends)
    todo = list(ends)
    while todo:
        fresh = set(before.get(todo.pop(), ())) - reached
        reached |= fresh
        todo.extend(fresh)
    return reached
