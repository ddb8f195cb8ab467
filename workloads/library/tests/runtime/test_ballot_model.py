"""Every interleaving of the stop protocol, on the production state machine.

The model: each rank's main thread alternates between a boundary and a step, each rank's watcher
advances one atomic action at a time, notices arrive at any moment at any subset of ranks, and (in
one model) ranks die at any moment. A step is a collective: it ends for a rank only when all ranks
have begun it.
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
    """Steps done; `inside` means that the next one has begun."""
    inside: bool = True
    left: str = ""
    """stopped, finished or dead."""


class State(NamedTuple):
    ranks: tuple[Rank, ...]
    store: Values = frozenset()
    deaths: int = 0

    def pruned(self) -> "State":
        return self

    def with_rank(self, index: int, rank: Rank, store: Values | None = None) -> "State":
        ranks = (*self.ranks[:index], rank, *self.ranks[index + 1 :])
        return self._replace(ranks=ranks, store=self.store if store is None else store)


class ModelStore(OneProcessStore):
    def __init__(self, values: Values) -> None:
        self._values = dict(values)

    def frozen(self) -> Values:
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
        stopped = {rank.step for rank in state.ranks if rank.left == "stopped"}
        assert len(stopped) <= 1, f"ranks stopped at different boundaries: {state}"
        for index, rank in enumerate(state.ranks):
            if rank.left == "dead":
                continue
            if not rank.noticed and not rank.left:
                yield state.with_rank(index, rank._replace(noticed=True))
            if state.deaths < self.deaths and not rank.left:
                yield state.with_rank(index, rank._replace(left="dead"))._replace(
                    deaths=state.deaths + 1
                )
            yield from self._watcher(state, index, rank)
            if not rank.left:
                yield from self._main(state, index, rank)

    def _machine(self, index: int, rank: Rank) -> Ballot:
        kept = {
            "bound_for": rank.bound_for,
            "phase": rank.phase,
            "stop_at": rank.stop_at,
        }
        return self.ballot(rank=index, world_size=self.world_size, **kept)

    def _watcher(self, state: State, index: int, rank: Rank) -> Iterator[State]:
        machine = self._machine(index, rank)
        store = ModelStore(state.store)
        if rank.left == "finished":
            machine.retire()
        machine.advance(store, asked="notice" if rank.noticed else "")
        after = rank._replace(phase=machine.phase, stop_at=machine.stop_at)
        moved = state.with_rank(index, after, store.frozen())
        if moved != state:
            yield moved

    def _main(self, state: State, index: int, rank: Rank) -> Iterator[State]:
        if rank.inside:
            begun = all(
                r.step > rank.step or (r.step == rank.step and r.inside) for r in state.ranks
            )
            if begun or not self.lockstep:
                yield state.with_rank(index, rank._replace(step=rank.step + 1, inside=False))
            return
        machine = self._machine(index, rank)
        verdict = machine.pass_boundary(Boundary(rank.step, 0))
        after = rank._replace(bound_for=machine.bound_for)
        if verdict is BallotResult.STOP:
            yield state.with_rank(index, after._replace(left="stopped"))
        elif verdict is BallotResult.GO:
            done = rank.step == self.steps
            yield state.with_rank(
                index, after._replace(left="finished") if done else after._replace(inside=True)
            )

    def check_end(self, state: State) -> None:
        endings = {rank.left for rank in state.ranks}
        # After a death survivors may wait for ever: StopAgreement's patience ends that.
        hung = f"hung, or some stopped and some finished: {state}"
        assert self.deaths or endings in ({"stopped"}, {"finished"}), hung


@pytest.mark.parametrize(
    ("model", "least"),
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
def test_every_interleaving_ends_with_all_ranks_at_one_boundary(model: Model, least: int) -> None:
    assert explore(model) > least


class ForgetsToFreeze(Ballot):
    @property
    def frozen(self) -> bool:
        return False


class StopsWhereItStands(Ballot):
    """The tutorial's way: leave at the next boundary once the flag is seen."""

    def pass_boundary(self, here: Boundary) -> BallotResult:
        if self.phase is not Phase.WATCH:
            return BallotResult.STOP
        return super().pass_boundary(here)


@pytest.mark.parametrize("broken", [ForgetsToFreeze, StopsWhereItStands])
def test_the_model_finds_a_broken_protocol(broken: type[Ballot]) -> None:
    with pytest.raises(AssertionError, match=r"different boundaries|hung"):
        explore(Model(world_size=2, steps=3, ballot=broken))
