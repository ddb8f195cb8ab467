"""Who leads a gang, and what the lead may commit: epochs over real questions and answers, a fence
in a real folder.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from torch import nn

from holdfast.checkpoint import Tuning
from holdfast.checkpoint.errors import CheckpointExit, Fenced, NotDurable, StorageError, Superseded
from holdfast.checkpoint.format.commit import survey
from holdfast.checkpoint.gangs import fence
from holdfast.checkpoint.stores import LocalStorage
from holdfast.runtime.shutdown import Shutdown
from holdfast.training.elastic.gang_member import GangMember
from holdfast.training.errors import CutOff, Expelled, GroupLost
from holdfast.training.gang.liveness import Lag
from holdfast.training.gang.member_server import Control
from holdfast.training.gang.membership import Epoch, Member, newest_number, propose
from holdfast.training.gang.peer_client import Peers
from holdfast.training.gang.process_group import Group
from holdfast.training.gang.regroup import Regroup
from holdfast.training.gang.saves import GangSaves
from holdfast.vocabulary.exit_codes import EXIT_BAD_INPUT, EXIT_RETRY
from workloads.library.tests.training.elastic.gangs import free_ports
from workloads.library.tests.training.elastic.test_elastic_gang import one_node

pytestmark = pytest.mark.process

STEPS = 20
WAIT_S = 120.0
"""Longer than an upload or an answer takes on a busy machine."""
LIMITS = {
    "min_members": 2,
    "gather_s": 0.0,
    "hold_s": 20.0,
}
FIRST = Epoch(
    number=1, members=tuple(Member(index=place, incarnation=f"p{place}") for place in range(3))
)


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage.open(str(tmp_path))


class Flaky(LocalStorage):
    """Refuses the next `refusals` fences."""

    refusals = 0

    def put(self, name: str, data: memoryview, crc32c: str) -> None:
        if "epoch" in name and self.refusals:
            self.refusals -= 1
            raise StorageError("503")
        super().put(name, data, crc32c)


def saves_in(storage: LocalStorage, folder: Path) -> GangSaves:
    torch.manual_seed(1)
    state = {"model": nn.Linear(4, 4)}
    return GangSaves(
        str(folder),
        storage,
        "run",
        state,
        gang="ours",
        every=1,
        keep=3,
        tuning=Tuning(),
        events=None,
        stop_asked=lambda: False,
    )


def list_commits(storage: LocalStorage) -> list[int]:
    return sorted(entry.step for entry in survey(storage, "run").values() if entry.commit)


def test_lead_without_the_fence_takes_it_at_a_later_save(tmp_path: Path) -> None:
    storage = Flaky.open(str(tmp_path))
    storage.refusals = 3
    saves = saves_in(storage, tmp_path)
    saves.lead(0)
    saves.after_step(1)
    with pytest.raises(NotDurable) as end:
        saves.make_durable(1, WAIT_S)
    assert "503" in end.value.reason
    assert list_commits(storage) == []
    saves.make_durable(2, WAIT_S)
    assert list_commits(storage) == [2]
    # A zombie without a fence would go on here.
    fence.take(storage, "run")
    with pytest.raises(Superseded):
        saves.make_durable(3, WAIT_S)
    saves.follow()
    assert list_commits(storage) == [2]


@pytest.fixture
def survivors(storage: LocalStorage) -> Iterator[list[Regroup]]:
    addresses = tuple(("127.0.0.1", port) for port in free_ports(3))
    peers = Peers(addresses, b"run")

    def never() -> bool:
        return False

    with ExitStack() as closing:
        regroups: list[Regroup] = []
        for place in (1, 2):
            control = Control(FIRST.members[place], addresses[place][1], b"run")
            closing.callback(control.close)
            control.enter(FIRST, "member")
            regroups.append(
                Regroup(storage, "run", control, peers, Lag(WAIT_S), stop_asked=never, **LIMITS)
            )
        yield regroups


def next_epoch(survivor: Regroup) -> Epoch:
    """Finds the next epoch like GangMember."""
    try:
        return survivor.find_next(FIRST)
    except Expelled:
        return survivor.join()


def test_members_expelled_by_a_dead_lead_leave_the_old_epoch_together(
    storage: LocalStorage, survivors: list[Regroup]
) -> None:
    """Each survivor still offers the other a place in the epoch that is over, and only one of them
    has read that it is over.
    """
    propose(storage, "run", Epoch(number=2, members=FIRST.members[:1]))
    futures = [
        ThreadPoolExecutor(max_workers=1).submit(next_epoch, regroup) for regroup in survivors
    ]
    epochs = [regroup.result(timeout=60) for regroup in futures]
    assert epochs == [Epoch(number=3, members=FIRST.members[1:])] * 2


def test_lead_that_loses_the_last_sum_does_not_wait_for_finished_members(
    survivors: list[Regroup],
) -> None:
    lower, last = survivors
    last.control.shown["finished"] = FIRST.number
    lower._min_members = 2
    lower.lag.bound_s = 10.0
    assert lower.find_next(FIRST) == Epoch(number=2, members=FIRST.members[1:2])
    assert not lower._late_report_epoch, "it waited for one that reports nothing"


def test_finished_member_commits_even_if_an_expelled_lower_one_is_alive(
    tmp_path: Path, storage: LocalStorage, survivors: list[Regroup]
) -> None:
    """The expelled member asks to join, and the members that it asks would wait for it."""
    lower, last = survivors
    lower.control.enter(Epoch(number=2, members=FIRST.members[:1]), "waiting")
    group = Group(last.peers.addresses, last.control.me, torch.device("cpu"), key=b"run")
    crew = GangMember(
        last,
        group,
        saves_in(storage, tmp_path),
        Shutdown(),
        silent_s=2.0,
        window_s=15.0,
    )
    crew.epoch = FIRST
    crew.step = 5
    ThreadPoolExecutor(max_workers=1).submit(crew.finish, 5, WAIT_S).result(timeout=WAIT_S)
    assert list_commits(storage) == [5]
    assert last.control.phase == "complete"
    crew.close()


# Connecting when the lead, which hosts the store, is frozen: its kernel still accepts, and nothing
# answers.

HOST = """
import sys, time
from datetime import timedelta
from holdfast.training.tcp_gate import Gate
gate = Gate(int(sys.argv[1]), b"run", timeout=timedelta(seconds=10))
print("up", flush=True)
time.sleep(3600)
"""


@pytest.mark.timeout(120)
def test_a_lead_that_is_frozen_while_others_connect_holds_no_member() -> None:
    addresses = tuple(("127.0.0.1", port) for port in free_ports(2))
    command = [
        sys.executable,
        "-c",
        HOST,
        str(addresses[0][1] + 1),
    ]
    lead = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert lead.stdout
    assert lead.stdout.readline() == "up\n"
    lead.send_signal(signal.SIGSTOP)
    group = Group(addresses, FIRST.members[1], torch.device("cpu"), key=b"run")
    try:
        with pytest.raises(GroupLost):
            group.open(Epoch(number=1, members=FIRST.members[:2]), 2.0)
    finally:
        lead.kill()
        lead.communicate()


# A lead whose right to commit is gone: taken by its own gang, beyond a torn network, or by another
# Job of that name.


@pytest.fixture
def doing(tmp_path: Path) -> Iterator[int]:
    """Returns a gang's steps: each is done once the next is requested; the first is under way."""

    def steps() -> Iterator[int]:
        with one_node(tmp_path, every=1) as gang:
            for step in gang.steps(STEPS):
                yield step
                gang.reduce()

    begun = steps()
    next(begun)
    return begun


def test_a_former_lead_that_takes_the_fence_late_does_not_end_the_gang(
    storage: LocalStorage, doing: Iterator[int]
) -> None:
    """The lead was frozen after its last look at the gang, before it took the fence."""
    gang = fence.newest_gang(storage, "run")
    assert gang
    late = fence.take(storage, "run", gang=gang)
    assert list(doing)[-1] == STEPS - 1
    assert survey(storage, "run")[STEPS].commit
    with pytest.raises(Fenced):
        fence.check(storage, "run", late)


# If the member's own gang has gone on without it, a code that fails the Job would end the half that
# works. If another Job of the same name has the run, that Job keeps it.
@pytest.mark.parametrize(
    ("is_own_gang", "error", "code"),
    [(True, CutOff, EXIT_RETRY), (False, Superseded, EXIT_BAD_INPUT)],
)
def test_cut_off_member_exits_for_a_restart_unless_another_job_has_the_run(
    storage: LocalStorage,
    doing: Iterator[int],
    is_own_gang: bool,
    error: type[CheckpointExit],
    code: int,
) -> None:
    # A member that cannot be reached forms the epoch after the newest.
    number = newest_number(storage, "run") + 1
    propose(storage, "run", Epoch(number=number, members=(Member(index=0, incarnation="beyond"),)))
    fence.take(
        storage,
        "run",
        gang=(fence.newest_gang(storage, "run") or "") if is_own_gang else "other places",
    )
    with pytest.raises(error) as end:
        list(doing)
    assert end.value.code == code
