"""Launchers of a sharded gang end or go on after a rank has failed. Waits advance a simulated
clock.

All ranks of a gang end within a moment, and each launcher looks for the cause. The one whose rank
failed by itself must be gone before those that only lost a peer give up.
"""

import signal
from collections.abc import Iterable
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.checkpoint.peers import PeerPlaces
from holdfast.checkpoint.stores import Storage
from holdfast.training.gang.failure_detector import LOOK_S, SILENT_S
from holdfast.training.gang.member_server import Control
from holdfast.training.gang.membership import Epoch, Member
from holdfast.training.gang.peer_client import SURVEY_S, Peers, Survey
from holdfast.training.gang.regroup import LEAVING
from holdfast.training.sharded import epoch_end
from holdfast.training.sharded.epoch_end import (
    BLAMED_S,
    FAILED,
    RESIZING,
    EpochEnd,
    find_exit_code,
    was_killed,
)
from holdfast.training.sharded.settings import ShardedNode
from holdfast.vocabulary.exit_codes import (
    EXIT_BUG,
    EXIT_COMPLETE,
    EXIT_KILLED,
    EXIT_PREEMPTED,
    EXIT_RETRY,
)

PLACES = (("127.0.0.1", 29_500),) * 3
MEMBERS = tuple(Member(index=place, incarnation=f"p{place}") for place in range(3))
EPOCH = Epoch(number=4, members=MEMBERS)
SURVIVORS = (0, 2)
FAILING = 1
"""Place of the node whose rank fails by itself."""


class Gang:
    """Three nodes, of which one at a time looks for the cause, from the moment of the failure."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.statuses: dict[int, dict[str, Any]] = {}
        for member in MEMBERS:
            self.statuses[member.index] = {"incarnation": member.incarnation}
        self._ends_s: dict[int, float] = {}
        """Times at which the ports of nodes are closed, by place."""
        self._later_codes: list[int] = []

    def survey(self, places: list[int]) -> Survey:
        answers: dict[int, dict[str, Any]] = {}
        for place in places:
            if self.now_s < self._ends_s.get(place, self.now_s + 1):
                answers[place] = self.statuses[place]
        return Survey(answers=answers, unanswered=frozenset())

    def look(self, places: Iterable[int]) -> dict[int, dict[str, Any]]:
        return self.survey(list(places)).answers

    def get(self, timeout: float) -> int:
        """Returns the code of the next rank that ends, in place of the launcher's queue."""
        if self._later_codes:
            return self._later_codes.pop(0)
        self.now_s += timeout
        raise Empty

    def make_end(self, place: int, processes: int = 1) -> EpochEnd:
        """Returns the object that tells a node's launcher whether to end."""
        status = self.statuses[place]
        node = ShardedNode(
            command=["true"],
            checkpoints="c",
            run="r",
            nodes=PLACES,
            place=place,
            processes=processes,
            min_nodes=1,
        )
        return EpochEnd(
            node,
            cast(Control, SimpleNamespace(me=MEMBERS[place], shown=status)),
            cast(Peers, self),
            cast(Storage, None),
            status.update,
            now=lambda: self.now_s,
        )

    def goes_on(self, place: int, *codes: int, is_fixed: bool = False) -> bool:
        """Tells whether a node goes on with the others, after its ranks ended with these codes.

        `is_fixed` says whether the gang has a fixed size.
        """
        self.now_s = 0.0
        self._later_codes = list(codes[1:])
        end = self.make_end(place, len(codes))
        limits = {"wait_s": 2 * SILENT_S + 2.0, "silent_s": SILENT_S} if is_fixed else {}
        exits = cast(SimpleQueue[int | None], self)
        goes_on = end.await_cause(EPOCH, [codes[0]], exits, **limits)
        if not goes_on:
            self._ends_s[place] = self.now_s
        return goes_on


@pytest.mark.parametrize("is_fixed", [False, True], ids=["range", "fixed"])
@pytest.mark.parametrize("code", [-signal.SIGKILL, 128 + signal.SIGSEGV, 1, EXIT_BUG])
def test_only_the_node_whose_rank_failed_ends(code: int, is_fixed: bool) -> None:
    gang = Gang()
    assert not gang.goes_on(FAILING, code, is_fixed=is_fixed)
    for place in SURVIVORS:
        assert gang.goes_on(place, EXIT_RETRY, is_fixed=is_fixed)


def test_a_killed_rank_ends_its_node_at_once() -> None:
    gang = Gang()
    assert not gang.goes_on(FAILING, EXIT_RETRY, -signal.SIGKILL)
    assert gang.now_s == 0


def test_a_killed_rank_ends_its_node_while_others_are_slow() -> None:
    gang = Gang()

    def survey(places: list[int]) -> Survey:
        gang.now_s += SURVEY_S
        return Survey(answers={}, unanswered=frozenset(places))

    gang.survey = survey  # type: ignore[method-assign]
    assert not gang.goes_on(FAILING, -signal.SIGKILL)


def test_a_killed_rank_ends_its_node_after_others_have_lost_the_epoch() -> None:
    gang = Gang()
    gang.statuses[0]["lost"] = EPOCH.number
    assert not gang.goes_on(FAILING, -signal.SIGKILL)
    assert gang.goes_on(FAILING, 1)


def test_a_killed_rank_does_not_end_its_node_at_a_stop() -> None:
    gang = Gang()
    gang.statuses[0][RESIZING] = EPOCH.number
    assert gang.goes_on(FAILING, -signal.SIGKILL)


def test_a_rank_that_is_complete_has_not_failed() -> None:
    gang = Gang()
    assert not gang.goes_on(FAILING, 1)
    gang.now_s = 0.0
    codes = [EXIT_COMPLETE, EXIT_RETRY]
    end = gang.make_end(SURVIVORS[0], len(codes))
    assert end.await_cause(EPOCH, codes, cast(SimpleQueue[int | None], gang))


def test_all_nodes_end_if_none_blames_another() -> None:
    gang = Gang()
    for place in (FAILING, *SURVIVORS):
        assert not gang.goes_on(place, 1)


def test_a_node_whose_ranks_cannot_be_ended_is_not_awaited_for_ever() -> None:
    gang = Gang()
    gang.statuses[FAILING][FAILED] = EPOCH.number
    assert not gang.goes_on(SURVIVORS[0], EXIT_RETRY)
    assert gang.now_s > BLAMED_S


def test_a_node_with_a_notice_looks_for_no_cause() -> None:
    gang = Gang()
    exits = cast(SimpleQueue[int | None], gang)
    end = gang.make_end(FAILING)
    assert not end.await_cause(EPOCH, [EXIT_PREEMPTED], exits, stop_asked=lambda: True)
    assert gang.now_s == 0


def test_ranks_that_end_before_the_cause_is_known_are_not_waited_for() -> None:
    gang = Gang()
    stopping = gang.statuses[0]

    def survey(places: list[int]) -> Survey:
        if gang.now_s:
            stopping[RESIZING] = EPOCH.number
        return Gang.survey(gang, places)

    gang.survey = survey  # type: ignore[method-assign]
    assert gang.goes_on(2, EXIT_RETRY, EXIT_RETRY)
    assert gang.now_s == LOOK_S


def test_ranks_that_hang_after_a_loss_are_not_waited_for() -> None:
    gang = Gang()
    gang.statuses[0]["lost"] = EPOCH.number
    exits = cast(SimpleQueue[int | None], gang)
    assert gang.make_end(2, processes=2).await_cause(EPOCH, [EXIT_RETRY], exits)
    assert gang.now_s == 0


def test_a_known_stop_at_a_step_is_not_asked_for_again() -> None:
    gang = Gang()
    gang.statuses[0][LEAVING] = 1
    end = gang.make_end(2)
    assert end.await_cause(EPOCH, [EXIT_PREEMPTED], cast(SimpleQueue[int | None], gang))
    gang.statuses.clear()
    assert end.is_at_step(EPOCH, silent=())


def test_a_node_that_has_just_started_keeps_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server answers before its memory has a port, and the others give up at that moment."""
    gang = Gang()
    for place in SURVIVORS:
        gang.statuses[place]["keeper"] = 4000 + place
    stored: list[PeerPlaces] = []

    def store_newest(_storage: Storage, places: PeerPlaces, _within_s: float) -> int:
        stored.append(places)
        return 0

    monkeypatch.setattr(epoch_end, "store_newest", store_newest)
    gang.make_end(0).store_before_exit(EPOCH)
    (places,) = stored
    assert [port for _, port in places.keepers] == [4000, 4002]


@pytest.mark.parametrize("code", [0, 1, EXIT_RETRY, 255, -signal.SIGABRT, 128 + signal.SIGTERM])
def test_code_that_a_lost_peer_explains_is_no_kill(code: int) -> None:
    assert not was_killed([code])


@pytest.mark.parametrize(
    ("codes", "exit_code"),
    [
        ([EXIT_RETRY, 1], 1),
        ([-signal.SIGKILL, EXIT_RETRY], EXIT_KILLED),
        ([EXIT_RETRY, EXIT_BUG, 1], EXIT_BUG),
        ([EXIT_COMPLETE, EXIT_RETRY], EXIT_RETRY),
        ([EXIT_RETRY, EXIT_PREEMPTED], EXIT_PREEMPTED),
    ],
)
def test_ranks_that_lost_a_peer_do_not_hide_the_failure(codes: list[int], exit_code: int) -> None:
    assert find_exit_code(codes, noticed=False) == exit_code


def test_a_node_that_fails_after_a_notice_is_preempted() -> None:
    assert find_exit_code([1, EXIT_RETRY], noticed=True) == EXIT_PREEMPTED
