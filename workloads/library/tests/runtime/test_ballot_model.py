"""A model check of the stop protocol: every interleaving of the production state machine.

Each rank's main thread alternates between a boundary and a step, each rank's watcher does one
atomic action at a time, notices reach any subset of ranks at any moment, and in one model ranks die
at any moment. A step is a collective: it ends for a rank only when all ranks have started it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from holdfast.runtime.ballot import BEFORE_ALL, Ballot, BallotResult, Boundary, Phase
from holdfast.runtime.stop import OneProcessStore
from workloads.library.tests.interleavings import explore

Values = frozenset[tuple[str, str]]


class Rank(NamedTuple):
    bound_for: Boundary = BEFORE_ALL
    phase: Phase = Phase.WATCH
    stop_at: Boundary | None = None
    noticed: bool = False
    step: int = 0
    """The number of finished steps; `inside` means that the next one has started."""
    inside: bool = True
    ending: str = ""
    """One of stopped, finished and dead; empty while the rank runs."""


class State(NamedTuple):
    ranks: tuple[Rank, ...]
    store: Values = frozenset()
    deaths: int = 0

    def prune(self) -> "State":
        return self

    def with_rank(self, index: int, rank: Rank, store: Values | None = None) -> "State":
        ranks = (*self.ranks[:index], rank, *self.ranks[index + 1 :])
        return self._replace(
            ranks=ranks,
            store=self.store if store is None else store,
        )


class ModelStore(OneProcessStore):
    def __init__(self, values: Values) -> None:
        self._values = dict(values)

    def copy(self) -> Values:
        return frozenset(self._values.items())


@dataclass(frozen=True, kw_only=True)
class Model:
    world_size: int
    steps: int
    lockstep: bool = True
    deaths: int = 0
    ballot: type[Ballot] = Ballot

    def start(self) -> State:
        return State(ranks=tuple(Rank() for _ in range(self.world_size)))

    def moves(self, state: State) -> Iterator[State]:
        stop_steps = {rank.step for rank in state.ranks if rank.ending == "stopped"}
        assert len(stop_steps) <= 1, f"ranks stopped at different boundaries: {state}"
        for index, rank in enumerate(state.ranks):
            if rank.ending == "dead":
                continue
            if not rank.noticed and not rank.ending:
                yield state.with_rank(index, rank._replace(noticed=True))
            if state.deaths < self.deaths and not rank.ending:
                survivors = state.with_rank(index, rank._replace(ending="dead"))
                yield survivors._replace(deaths=state.deaths + 1)
            yield from self._watcher(state, index, rank)
            if not rank.ending:
                yield from self._main(state, index, rank)

    def _machine(self, index: int, rank: Rank) -> Ballot:
        return self.ballot(
            rank=index,
            world_size=self.world_size,
            bound_for=rank.bound_for,
            phase=rank.phase,
            stop_at=rank.stop_at,
        )

    def _watcher(
        self,
        state: State,
        index: int,
        rank: Rank,
    ) -> Iterator[State]:
        machine = self._machine(index, rank)
        store = ModelStore(state.store)
        if rank.ending == "finished":
            machine.retire()
        machine.advance(store, reason="notice" if rank.noticed else "")
        next_rank = rank._replace(phase=machine.phase, stop_at=machine.stop_at)
        next_state = state.with_rank(index, next_rank, store.copy())
        if next_state != state:
            yield next_state

    def _main(
        self,
        state: State,
        index: int,
        rank: Rank,
    ) -> Iterator[State]:
        if rank.inside:
            if not self.lockstep or self._have_all_started(state, rank.step):
                yield state.with_rank(index, rank._replace(step=rank.step + 1, inside=False))
            return
        machine = self._machine(index, rank)
        verdict = machine.pass_boundary(Boundary(rank.step, 0))
        next_rank = rank._replace(bound_for=machine.bound_for)
        if verdict is BallotResult.STOP:
            yield state.with_rank(index, next_rank._replace(ending="stopped"))
        elif verdict is BallotResult.GO and rank.step == self.steps:
            yield state.with_rank(index, next_rank._replace(ending="finished"))
        elif verdict is BallotResult.GO:
            yield state.with_rank(index, next_rank._replace(inside=True))

    def _have_all_started(self, state: State, step: int) -> bool:
        for rank in state.ranks:
            if rank.step < step or (rank.step == step and not rank.inside):
                return False
        return True

    def check_end(self, state: State) -> None:
        endings = {rank.ending for rank in state.ranks}
        # After a death survivors may wait for ever: StopAgreement's patience ends that.
        if not self.deaths:
            message = f"hung, or some stopped and some finished: {state}"
            assert endings in ({"stopped"}, {"finished"}), message


@pytest.mark.parametrize(
    ("model", "state_count"),
    [
        (Model(world_size=1, steps=3), 20),
        (Model(world_size=2, steps=3), 20),
        (Model(world_size=2, steps=3, lockstep=False), 20),
        (Model(world_size=2, steps=2, deaths=1), 100),  # after a death survivors agree or wait
        pytest.param(Model(world_size=3, steps=2), 10_000, marks=pytest.mark.process),
        pytest.param(
            Model(world_size=3, steps=1, lockstep=False), 10_000, marks=pytest.mark.process
        ),
    ],
    ids=str,
)
def test_every_interleaving_ends_with_all_ranks_at_one_boundary(
    model: Model, state_count: int
) -> None:
    assert explore(model) > state_count


class ForgetsToFreeze(Ballot):
    @property
    def is_frozen(self) -> bool:
        return False


class StopsAtNextBoundary(Ballot):
    """Stops at the next boundary once the flag is set, as tutorials do."""

    def pass_boundary(self, here: Boundary) -> BallotResult:
        if self.phase is not Phase.WATCH:
            return BallotResult.STOP
        return super().pass_boundary(here)


@pytest.mark.parametrize("ballot", [ForgetsToFreeze, StopsAtNextBoundary])
def test_the_model_finds_a_broken_protocol(ballot: type[Ballot]) -> None:
    with pytest.raises(AssertionError, match=r"different boundaries|hung"):
        explore(Model(world_size=2, steps=3, ballot=ballot))
