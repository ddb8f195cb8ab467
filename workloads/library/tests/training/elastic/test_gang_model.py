"""Explores every interleaving of an elastic gang's protocol: epochs, flags in the all-reduce, and
the repair after a loss.

In the model each member meets the others of its epoch, copies the furthest state among them, and
sums steps with them. A collective ends for a member once all have begun it, and may fail at any
moment once one of them is lost. So survivors of a death differ by a step. The lead proposes what
the product's own `successor` returns; the storage accepts the first proposal of each number. A
lead's patience may end at any moment: a member that it leaves behind acts like a frozen one. With
`rejoins` such a member asks to join those that it can see, which may not know yet that their epoch
is over.
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
REENTRY = 100
"""Number of sums of a member that enters an epoch for the second time: it takes part in none of
those that the others have begun.
"""


class Place(NamedTuple):
    phase: str = "meet"
    """asking, meet, met, compute, reduce, lost, finish, or one of GONE."""
    epoch: int = 1
    """Epoch that expelled it, in phase `asking`; 0 if it is new."""
    step: int = 0
    sums: int = 0
    """Number of sums begun in this epoch."""
    without: frozenset[int] = frozenset()
    """Members that leave at this boundary, in phase `lost`."""


class Contribution(NamedTuple):
    """What a member brings to a collective."""

    collective: str
    epoch: int
    number: int
    """Number of the collective in the epoch."""
    place: int
    value: int
    """The member's step, or its flag."""


class Report(NamedTuple):
    epoch: int
    place: int


class State(NamedTuple):
    places: tuple[Place, ...]
    epochs: tuple[Epoch, ...]
    begun: frozenset[Contribution] = frozenset()
    reported: frozenset[Report] = frozenset()
    deaths: int = 0
    notices: int = 0
    impatient: int = 0
    """Number of times that a lead continued without a living member."""
    late: int = 0
    """Number of times that a collective failed because a member was slow."""

    def prune(self) -> "State":
        """Returns the state without parts that no living member can read."""
        oldest_epoch = 1 << 30
        oldest_sums = 0
        places = list[Place]()
        for place in self.places:
            if place.phase in GONE:
                places.append(Place(phase=place.phase, epoch=0, step=place.step))
                continue
            places.append(place)
            oldest = min((oldest_epoch, oldest_sums), (place.epoch, place.sums))
            oldest_epoch, oldest_sums = oldest
        begun = set[Contribution]()
        for contribution in self.begun:
            if (contribution.epoch, contribution.number) >= (oldest_epoch, oldest_sums):
                begun.add(contribution)
        reported = {report for report in self.reported if report.epoch >= oldest_epoch}
        return self._replace(
            places=tuple(places),
            begun=frozenset(begun),
            reported=frozenset(reported),
        )

    def with_place(self, index: int, place: Place) -> "State":
        places = list(self.places)
        places[index] = place
        return self._replace(places=tuple(places))

    def values(self, collective: str, epoch: int, number: int) -> dict[int, int]:
        """Returns the values that members bring to a collective, by place."""
        values = dict[int, int]()
        for contribution in self.begun:
            if contribution[:3] == (collective, epoch, number):
                values[contribution.place] = contribution.value
        return values


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
                after = state._replace(deaths=state.deaths + 1)
                yield after.with_place(index, place._replace(phase="dead"))
            move: Callable[[State, int, Place], Iterator[State]] = getattr(self, f"_{place.phase}")
            yield from move(state, index, place)

    def _asking(self, state: State, index: int, place: Place) -> Iterator[State]:
        alive = list[int]()
        epochs_at_work = list[int]()
        for other_index, other in enumerate(state.places):
            if other.phase in GONE or other_index == index:
                continue
            alive.append(other_index)
            if other.phase != "asking":
                epochs_at_work.append(other.epoch)
        if epochs_at_work:
            newest = state.epochs[max(epochs_at_work) - 1]
            is_newer = newest.number > place.epoch
            if MEMBERS[index] in newest.members and (is_newer or not self.remembers):
                entered = Place(
                    epoch=newest.number,
                    step=place.step,
                    sums=0 if is_newer else REENTRY,
                )
                yield state.with_place(index, entered)
        elif not alive:
            # It restores the newest checkpoint.
            yield state.with_place(index, place._replace(phase="alone"))
        elif index < min(alive):
            members = []
            for member in sorted([index, *alive]):
                members.append(MEMBERS[member])
            epoch = Epoch(number=len(state.epochs) + 1, members=tuple(members))
            after = state._replace(epochs=(*state.epochs, epoch))
            yield self._enter(after, index, epoch)

    def _meet(self, state: State, index: int, place: Place) -> Iterator[State]:
        contribution = Contribution("meet", place.epoch, place.sums, index, place.step)
        after = state._replace(begun=state.begun | {contribution})
        yield after.with_place(index, place._replace(phase="met"))

    def _met(self, state: State, index: int, place: Place) -> Iterator[State]:
        steps = state.values("meet", place.epoch, place.sums)
        members = self._members(state, place)
        if steps.keys() == members:
            # If no member has a state, the lead restores the checkpoint.
            counts = [step for step in steps.values() if step != NO_STATE] or [0]
            assert max(counts) - min(counts) <= 1, f"survivors differ by more than a step: {state}"
            step = source(steps) if self.repairs else place.step
            yield state.with_place(index, place._replace(phase="compute", step=step))
        yield from self._fails(state, index, place)

    def _compute(self, state: State, index: int, place: Place) -> Iterator[State]:
        if place.step == self.steps:
            yield state.with_place(index, place._replace(phase="finish"))
            return
        calls = self._calls(state, index, place)
        sums = place.sums + 1
        choices = (False, True) if state.notices < self.notices else (False,)
        for has_notice in choices:
            flag = place.step * 10 + 2 * calls + int(has_notice)
            contribution = Contribution("step", place.epoch, sums, index, flag)
            after = state._replace(
                begun=state.begun | {contribution},
                notices=state.notices + has_notice,
            )
            yield after.with_place(index, place._replace(phase="reduce", sums=sums))

    def _reduce(self, state: State, index: int, place: Place) -> Iterator[State]:
        flags = state.values("step", place.epoch, place.sums)
        steps = {flag // 10 for flag in flags.values()}
        assert len(steps) == 1, f"one sum of two different steps: {state}"
        if flags.keys() == self._members(state, place):
            leaving = frozenset(member for member, flag in flags.items() if flag % 2)
            done = place._replace(step=place.step + 1)
            if index in leaving:
                yield state.with_place(index, done._replace(phase="left"))
            elif leaving or any(flag % 10 // 2 for flag in flags.values()):
                yield state.with_place(index, done._replace(phase="lost", without=leaving))
            else:
                yield state.with_place(index, done._replace(phase="compute"))
        yield from self._fails(state, index, place)

    def _calls(self, state: State, index: int, place: Place) -> bool:
        """Returns whether it is the lead and calls for a regrouping: the same for all members, as
        the call is part of the sum.
        """
        has_joiner = any(other.phase == "asking" for other in state.places)
        return has_joiner and state.epochs[place.epoch - 1].lead.index == index

    def _lost(self, state: State, index: int, place: Place) -> Iterator[State]:
        epoch = state.epochs[place.epoch - 1]
        living = list[Member]()
        for member in epoch.members:
            is_alive = state.places[member.index].phase not in GONE
            if is_alive and member.index not in place.without:
                living.append(member)
        lead = state.places[living[0].index]
        report = Report(place.epoch, index)
        if living[0].index == index:
            yield from self._lead(state, index, place, living)
        elif report not in state.reported:
            yield state._replace(reported=state.reported | {report})
        elif lead.epoch > place.epoch and (lead.phase != "asking" or self.remembers):
            yield self._enter(state, index, state.epochs[lead.epoch - 1])

    def _lead(
        self,
        state: State,
        index: int,
        place: Place,
        living: list[Member],
    ) -> Iterator[State]:
        epoch = state.epochs[place.epoch - 1]
        reported = frozenset(
            report.place for report in state.reported if report.epoch == epoch.number
        )
        joiners = []
        for m in MEMBERS:
            if state.places[m.index].phase == "asking":
                joiners.append(m)
        # A member that finished, was expelled or is in a newer epoch never reports: if all silent
        # ones are such members, patience always ends.
        patience_ends = True
        for member in living:
            if member.index == index or member.index in reported:
                continue
            silent = state.places[member.index]
            if silent.phase not in ("finish", "asking") and silent.epoch <= epoch.number:
                patience_ends = False
        may_lose_patience = patience_ends or state.impatient < self.impatient
        choices = (True, False) if may_lose_patience else (True,)
        for patient in choices:
            proposal = successor(
                epoch,
                MEMBERS[index],
                living=living,
                reported=reported,
                joiners=joiners,
                patient=patient,
                holding=patient,
                min_members=self.min_nodes,
            )
            if proposal is None:
                continue
            if len(state.epochs) > epoch.number and self.create_only:
                yield self._enter(state, index, state.epochs[epoch.number])
                continue
            is_impatient = not patient and not patience_ends
            after = state._replace(
                epochs=(*state.epochs[: epoch.number], proposal),
                impatient=state.impatient + is_impatient,
            )
            yield self._enter(after, index, proposal)

    def _enter(self, state: State, index: int, epoch: Epoch) -> State:
        place = state.places[index]
        if MEMBERS[index] not in epoch.members:
            newcomer = Place(phase="asking", epoch=epoch.number, step=NO_STATE)
            expelled = place._replace(phase="expelled", without=frozenset())
            return state.with_place(index, newcomer if self.rejoins else expelled)
        phase = "done" if epoch.ending else "meet"
        return state.with_place(index, Place(phase=phase, epoch=epoch.number, step=place.step))

    def _finish(self, state: State, index: int, place: Place) -> Iterator[State]:
        """Ends the training if this member is the lowest living one of the epoch, which commits, or
        if that one has committed.
        """
        skipped_phases = GONE | {"asking"} if self.skips_askers else GONE
        living = list[int]()
        for member in state.epochs[place.epoch - 1].members:
            is_skipped = state.places[member.index].phase in skipped_phases
            if member.index == index or not is_skipped:
                living.append(member.index)
        lowest = living[0]
        if lowest == index or state.places[lowest].phase == "done":
            yield state.with_place(index, place._replace(phase="done"))

    def _fails(self, state: State, index: int, place: Place) -> Iterator[State]:
        indices = self._members(state, place) - {index}
        after = state.with_place(index, place._replace(phase="lost", without=frozenset()))
        if any(self._leaves_collective(state.places[other], place) for other in indices):
            yield after
        elif state.late < self.late:
            yield after._replace(late=state.late + 1)

    def _leaves_collective(self, other: Place, place: Place) -> bool:
        """Returns whether `other` is lost, in a newer epoch, or has closed its group."""
        if other.phase in GONE or other.epoch > place.epoch:
            return True
        return other.epoch == place.epoch and other.phase in ("lost", "finish")

    def _members(self, state: State, place: Place) -> set[int]:
        return {member.index for member in state.epochs[place.epoch - 1].members}

    def check_end(self, state: State) -> None:
        phases = [place.phase for place in state.places]
        assert GONE.issuperset(phases), f"stuck: {state}"
        finished = [place for place in state.places if place.phase == "done"]
        if self.min_nodes == 1:
            is_complete = all(place.step == self.steps for place in finished)
            assert is_complete, f"ended before the last step: {state}"
            has_losses = "dead" in phases or "left" in phases
            assert finished or has_losses, f"no member remains although none was lost: {state}"
        newest = state.epochs[-1]
        survivors = []
        for m in newest.members:
            if state.places[m.index].phase == "expelled":
                survivors.append(m)
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
        Model(
            rejoins=True,
            impatient=1,
            late=1,
            steps=1,
        ),
        Model(
            rejoins=True,
            impatient=1,
            late=1,
            deaths=0,
        ),
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
        (
            Model(
                rejoins=True,
                impatient=1,
                late=1,
                deaths=0,
                remembers=False,
            ),
            "no end",
        ),
        (
            Model(
                rejoins=True,
                impatient=1,
                deaths=0,
                skips_askers=False,
            ),
            "stuck",
        ),
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
