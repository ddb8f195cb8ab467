"""Members that look for the next epoch, over their real questions and answers; the others of the gang are gone."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

from holdfast.checkpoint.stores import LocalStorage
from holdfast.runtime.shutdown import Shutdown
from holdfast.training.elastic.asking import Peers
from holdfast.training.elastic.control import Control
from holdfast.training.elastic.crew import Crew
from holdfast.training.elastic.group import Group
from holdfast.training.elastic.membership import Epoch, Member, propose
from holdfast.training.elastic.regroup import Limits, Regroup
from holdfast.training.elastic.watch import Lag
from holdfast.training.errors import Expelled
from workloads.library.tests.training.elastic.gangs import free_ports
from workloads.library.tests.training.elastic.test_saves import committed, saves_in

pytestmark = pytest.mark.process

LIMITS = Limits(min_members=2, gather_s=0.0, hold_s=20.0)
FIRST = Epoch(number=1, members=tuple(Member(index=place, incarnation=f"p{place}") for place in range(3)))


class Survivor:
    def __init__(self, folder: Path, place: int, addresses: tuple[tuple[str, int], ...]) -> None:
        self.control = Control(FIRST.members[place], addresses[place][1], b"run")
        self.control.enter(FIRST, "member")
        self.peers, self.storage = Peers(addresses, b"run"), LocalStorage.open(str(folder))
        self.regroup = Regroup(
            self.storage, "run", self.control, self.peers, LIMITS, Lag(2.0), stop_asked=lambda: False
        )

    def next_epoch(self) -> Epoch:
        """As Crew looks for it."""
        try:
            return self.regroup.after(FIRST)
        except Expelled:
            return self.regroup.first()


def crew_of(survivor: Survivor, folder: Path, step: int) -> Crew:
    state = {"model": nn.Linear(4, 4)}
    cpu = torch.device("cpu")
    crew = Crew(
        state,
        cpu,
        control=survivor.control,
        peers=survivor.peers,
        regroup=survivor.regroup,
        group=Group(survivor.peers.addresses, survivor.control.me, cpu, key=b"run"),
        lag=Lag(2.0),
        silent_s=2.0,
        saves=saves_in(survivor.storage, folder),
        shutdown=Shutdown(),
        window_s=15.0,
        events=None,
    )
    crew.epoch, crew.step = FIRST, step
    return crew


@pytest.fixture
def survivors(tmp_path: Path) -> Iterator[list[Survivor]]:
    addresses = tuple(("127.0.0.1", port) for port in free_ports(3))
    found = [Survivor(tmp_path, place, addresses) for place in (1, 2)]
    yield found
    for each in found:
        each.control.close()


def test_members_whom_a_dead_lead_went_on_without_leave_the_old_epoch_together(
    tmp_path: Path, survivors: list[Survivor]
) -> None:
    """Each still offers the other a place in the epoch that is over, and only one of them has read that it is."""
    propose(LocalStorage.open(str(tmp_path)), "run", Epoch(number=2, members=FIRST.members[:1]))
    asked = [ThreadPoolExecutor(max_workers=1).submit(each.next_epoch) for each in survivors]
    found = [each.result(timeout=60) for each in asked]
    assert found == [Epoch(number=3, members=FIRST.members[1:])] * 2


def test_who_has_done_the_last_step_commits_it_although_a_lower_place_lives_that_was_left_out(
    tmp_path: Path, survivors: list[Survivor]
) -> None:
    """That one asks to come in, and would be waited for by whom it asks."""
    lower, last = survivors
    lower.control.enter(Epoch(number=2, members=FIRST.members[:1]), "waiting")
    crew = crew_of(last, tmp_path, step=5)
    ThreadPoolExecutor(max_workers=1).submit(crew.finish, 5, 30.0).result(timeout=60)
    assert committed(last.storage) == [5] and last.control.phase == "complete"
    crew.close()
