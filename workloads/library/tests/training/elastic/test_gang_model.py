"""Every interleaving of an elastic gang's protocol: epochs, flags on the sum, and the repair after
a loss.

The model: each member meets the others of its epoch, takes the furthest state among them, and adds
up steps with them. A collective ends for a member once all have begun it, and fails, at any moment,
once one of them is gone. So survivors of a death differ by a step. What the lead proposes is the
product's own `successor`; the storage keeps the first proposal of each number. A lead's patience
may end at any moment: whoever it leaves behind is what a frozen member is. With `rejoins` who was
left behind asks to come in: those that it can see, who may not know yet that their epoch is over.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from holdfast.training.gang.membership import Epoch, Member
from holdfast.training.gang.regroup import successor
from workloads.library.tests.interleavings import explore

pytestmark = pytest.mark.process

MEMBERS = tuple(Member(index=place, incarnation=f"p{place}") for place in range(3))
GONE = frozenset({"dead", "left", "done", "expelled", "alone"})
NO_STATE = -1
AGAIN = 100
"""Sums of a place that is in an epoch for the second time: none of those that the others have begun
is meant for it.
"""


class Place(NamedTuple):
    phase: str = "meet"
    """asking, meet, met, compute, reduce, lost, finish, or one of GONE."""
    epoch: int = 1
    """Epoch that expelled it, in phase `asking`; 0 if it is new."""
    step: int = 0
    sums: int = 0
    """Begun in this epoch."""
    without: frozenset[int] = frozenset()
    """Members that leave at this boundary, in phase `lost`."""


class State(NamedTuple):
    places: tuple[Place, ...]
    epochs: tuple[Epoch, ...]
    begun: frozenset[tuple[str, int, int, int, int]] = frozenset()
    """(collective, its epoch, its number in the epoch, place, value): the step of a member, or a
    flag.
    """
    reported: frozenset[tuple[int, int]] = frozenset()
    """(epoch, place)."""
    deaths: int = 0
    notices: int = 0
    impatient: int = 0
    """Times that a lead went on without somebody alive."""
    late: int = 0
    """Times that a collective failed because a member was slow."""

    def prune(self) -> "State":
        """Returns the state without parts that no living member can read."""
        alive = [place for place in self.places if place.phase not in GONE]
        oldest = min(((place.epoch, place.sums) for place in alive), default=(1 << 30, 0))
        settled = (Place(phase=place.phase, epoch=0, step=place.step) for place in self.places)
        return self._replace(
            places=tuple(
                g if g.phase in GONE else p for g, p in zip(settled, self.places, strict=True)
            ),
            begun=frozenset(b for b in self.begun if (b[1], b[2]) >= oldest),
            reported=frozenset(r for r in self.reported if r[0] >= oldest[0]),
        )

    def with_place(self, index: int, place: Place) -> "State":
        return self._replace(places=(*self.places[:index], place, *self.places[index + 1 :]))

    def values(self, collective: str, epoch: int, number: int) -> dict[int, int]:
        return {
            place: value
            for c, e, n, place, value in self.begun
            if (c, e, n) == (collective, epoch, number)
        }


def source(steps: dict[int, int]) -> int:
    return max(0, *steps.values())


@dataclass(frozen=True, kw_only=True)
class Model:
    steps: int = 2
    deaths: int = 1
    notices: int = 0
    impatient: int = 0
    late: int = 0
    newcomer: bool = False
    rejoins: bool = False
    remembers: bool = True
    """Says whether a member that asks to join knows which epoch expelled it."""
    skips_askers: bool = True
    """Says whether members that ask to join are skipped at the end, when the lowest member commits.
    """
    min_nodes: int = 1
    repairs: bool = True
    create_only: bool = True

    def start(self) -> State:
        members = MEMBERS[:2] if self.newcomer else MEMBERS
        places = [Place(phase="meet") for _ in members]
        if self.newcomer:
            places.append(Place(phase="asking", epoch=0, step=NO_STATE))
        return State(places=tuple(places), epochs=(Epoch(number=1, members=members),))

    def moves(self, state: State) -> Iterator[State]:
        for index, place in enumerate(state.places):
            if place.phase in GONE:
                continue
            if state.deaths < self.deaths:
                yield state.with_place(index, place._replace(phase="dead"))._replace(
                    deaths=state.deaths + 1
                )
            move: Callable[[State, int, Place], Iterator[State]] = getattr(self, f"_{place.phase}")
            yield from move(state, index, place)

    def _asking(self, state: State, index: int, place: Place) -> Iterator[State]:
        alive = [(o, p) for o, p in enumerate(state.places) if p.phase not in GONE and o != index]
        at_work = [(-p.epoch, o) for o, p in alive if p.phase != "asking"]
        if at_work:
            newest = state.epochs[-min(at_work)[0] - 1]
            if MEMBERS[index] in newest.members and (
                newest.number > place.epoch or not self.remembers
            ):
                met_before = AGAIN if newest.number <= place.epoch else 0
                yield state.with_place(
                    index, Place(epoch=newest.number, step=place.step, sums=met_before)
                )
        elif not alive:
            # it takes up the newest checkpoint
            yield state.with_place(index, place._replace(phase="alone"))
        elif index < min(o for o, _ in alive):
            members = tuple(MEMBERS[place] for place in sorted([index, *(o for o, _ in alive)]))
            epoch = Epoch(number=len(state.epochs) + 1, members=members)
            yield self._enters(state._replace(epochs=(*state.epochs, epoch)), index, epoch)

    def _meet(self, state: State, index: int, place: Place) -> Iterator[State]:
        begun = state.begun | {("meet", place.epoch, place.sums, index, place.step)}
        yield state.with_place(index, place._replace(phase="met"))._replace(begun=begun)

    def _met(self, state: State, index: int, place: Place) -> Iterator[State]:
        steps = state.values("meet", place.epoch, place.sums)
        members = self._members(state, place)
        if steps.keys() == members:
            # nobody: the checkpoint
            counts = [step for step in steps.values() if step != NO_STATE] or [0]
            assert max(counts) - min(counts) <= 1, f"survivors differ by more than a step: {state}"
            step = source(steps) if self.repairs else place.step
            yield state.with_place(index, place._replace(phase="compute", step=step))
        yield from self._fails(state, index, place)

    def _compute(self, state: State, index: int, place: Place) -> Iterator[State]:
        if place.step == self.steps:
            yield state.with_place(index, place._replace(phase="finish"))
            return
        for noticed in (False, True) if state.notices < self.notices else (False,):
            called = self._calls(state, index, place)
            flag = place.step * 10 + 2 * called + int(noticed)
            begun = state.begun | {("step", place.epoch, place.sums + 1, index, flag)}
            after = state._replace(begun=begun, notices=state.notices + noticed)
            yield after.with_place(index, place._replace(phase="reduce", sums=place.sums + 1))

    def _reduce(self, state: State, index: int, place: Place) -> Iterator[State]:
        flags = state.values("step", place.epoch, place.sums)
        assert len({flag // 10 for flag in flags.values()}) == 1, (
            f"one sum of two different steps: {state}"
        )
        if flags.keys() == self._members(state, place):
            leaving = frozenset(p for p, flag in flags.items() if flag % 2)
            done = place._replace(step=place.step + 1)
            if index in leaving:
                yield state.with_place(index, done._replace(phase="left"))
            elif leaving or any(flag % 10 // 2 for flag in flags.values()):
                yield state.with_place(index, done._replace(phase="lost", without=leaving))
            else:
                yield state.with_place(index, done._replace(phase="compute"))
        yield from self._fails(state, index, place)

    def _calls(self, state: State, index: int, place: Place) -> bool:
        """Returns whether it is the lead and calls for a regrouping: one for all of this sum, since
        it rides on it.
        """
        has_joiner = any(other.phase == "asking" for other in state.places)
        return has_joiner and state.epochs[place.epoch - 1].lead.index == index

    def _lost(self, state: State, index: int, place: Place) -> Iterator[State]:
        epoch = state.epochs[place.epoch - 1]
        stayers = [m for m in epoch.members if m.index not in place.without]
        living = [m for m in stayers if state.places[m.index].phase not in GONE]
        lead = state.places[living[0].index]
        if living[0].index == index:
            yield from self._leads(state, index, place, living)
        elif (place.epoch, index) not in state.reported:
            yield state._replace(reported=state.reported | {(place.epoch, index)})
        elif lead.epoch > place.epoch and (lead.phase != "asking" or self.remembers):
            yield self._enters(state, index, state.epochs[lead.epoch - 1])

    def _leads(
        self,
        state: State,
        index: int,
        place: Place,
        living: list[Member],
    ) -> Iterator[State]:
        epoch = state.epochs[place.epoch - 1]
        reported = frozenset(p for e, p in state.reported if e == epoch.number)
        asking = [m for m in MEMBERS if state.places[m.index].phase == "asking"]
        silent = {m.index for m in living if m.index != index} - reported
        # Who has done the last step, was left out or has gone on never reports: there, patience
        # always ends.
        silent_places = [state.places[p] for p in silent]
        free = all(o.phase in ("finish", "asking") or o.epoch > epoch.number for o in silent_places)
        for patient in (True, False) if free or state.impatient < self.impatient else (True,):
            proposal = successor(
                epoch,
                MEMBERS[index],
                living=living,
                reported=reported,
                joiners=asking,
                patient=patient,
                holding=patient,
                min_members=self.min_nodes,
            )
            if proposal is None:
                continue
            if len(state.epochs) > epoch.number and self.create_only:
                yield self._enters(state, index, state.epochs[epoch.number])
            else:
                epochs = (*state.epochs[: epoch.number], proposal)
                after = state._replace(
                    epochs=epochs, impatient=state.impatient + (not patient and not free)
                )
                yield self._enters(after, index, proposal)

    def _enters(self, state: State, index: int, epoch: Epoch) -> State:
        place = state.places[index]
        if MEMBERS[index] not in epoch.members:
            newcomer = Place(phase="asking", epoch=epoch.number, step=NO_STATE)
            expelled = place._replace(phase="expelled", without=frozenset())
            return state.with_place(index, newcomer if self.rejoins else expelled)
        phase = "done" if epoch.ending else "meet"
        return state.with_place(index, Place(phase=phase, epoch=epoch.number, step=place.step))

    def _finish(self, state: State, index: int, place: Place) -> Iterator[State]:
        """The lowest living member of the epoch has committed; the others have seen that, or it is
        gone.
        """
        past = GONE | {"asking"} if self.skips_askers else GONE
        members = (m.index for m in state.epochs[place.epoch - 1].members)
        living = [m for m in members if m == index or state.places[m].phase not in past]
        if living[0] == index or state.places[living[0]].phase == "done":
            yield state.with_place(index, place._replace(phase="done"))

    def _fails(self, state: State, index: int, place: Place) -> Iterator[State]:
        members = self._members(state, place)
        peers = [state.places[p] for p in members - {index}]
        after = state.with_place(index, place._replace(phase="lost", without=frozenset()))
        if any(
            o.phase in GONE or o.epoch > place.epoch or self._has_closed(o, place) for o in peers
        ):
            yield after
        elif state.late < self.late:
            yield after._replace(late=state.late + 1)

    def _has_closed(self, other: Place, place: Place) -> bool:
        return other.epoch == place.epoch and other.phase in ("lost", "finish")

    def _members(self, state: State, place: Place) -> set[int]:
        return {member.index for member in state.epochs[place.epoch - 1].members}

    def check_end(self, state: State) -> None:
        phases = [place.phase for place in state.places]
        assert GONE.issuperset(phases), f"stuck: {state}"
        finished = [place for place in state.places if place.phase == "done"]
        if self.min_nodes == 1:
            assert all(place.step == self.steps for place in finished), (
                f"ended before the last step: {state}"
            )
            spent = sum(phase in ("dead", "left") for phase in phases)
            assert finished or spent, f"nobody is left although nobody was lost: {state}"
        newest = state.epochs[-1]
        survivors = [m for m in newest.members if state.places[m.index].phase == "expelled"]
        assert not survivors, f"a member of the newest epoch was left behind: {state}"


@pytest.mark.parametrize(
    "model",
    [
        Model(),
        Model(steps=3),
        Model(notices=1),
        Model(newcomer=True),
        Model(min_nodes=2),
        Model(deaths=2, notices=1),
        Model(notices=1, impatient=1),
        Model(newcomer=True, notices=1, impatient=1),
        Model(rejoins=True, impatient=1, late=1, steps=1),
        Model(rejoins=True, impatient=1, late=1, deaths=0),
    ],
    ids=str,
)
def test_interleavings_with_three_members_end_well(model: Model) -> None:
    assert explore(model) > 500


@pytest.mark.parametrize(
    ("broken", "failure"),
    [
        (Model(repairs=False), "two different steps"),
        (
            Model(create_only=False, impatient=1),
            "two different steps|stuck|left behind|more than a step",
        ),
        (Model(rejoins=True, impatient=1, late=1, deaths=0, remembers=False), "no end"),
        (Model(rejoins=True, impatient=1, deaths=0, skips_askers=False), "stuck"),
    ],
    ids=[
        "no-repair",
        "storage-that-replaces",
        "back-into-an-old-epoch",
        "an-asker-that-is-to-commit",
    ],
)
def test_the_model_finds_a_broken_protocol(broken: Model, failure: str) -> None:
    with pytest.raises(AssertionError, match=failure):
        explore(broken)
