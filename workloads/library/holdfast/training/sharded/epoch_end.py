"""Finds out why an epoch of a sharded gang ends, and keeps its memory until the others have it."""

# Why it is so: infra/decisions/0198.

import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from queue import Empty, SimpleQueue
from typing import Any

from holdfast.checkpoint.errors import Damaged, Fenced, StorageError
from holdfast.checkpoint.gangs import store_newest
from holdfast.checkpoint.peers import PeerPlaces
from holdfast.checkpoint.stores import Storage
from holdfast.runtime import logs
from holdfast.runtime.shutdown import Shutdown
from holdfast.support.errors import InputError
from holdfast.training.gang.failure_detector import LOOK_S, SILENT_S, FailureDetector
from holdfast.training.gang.member_addresses import Address
from holdfast.training.gang.member_server import Control
from holdfast.training.gang.membership import Epoch, Member
from holdfast.training.gang.peer_client import Peers, parse_epoch, select_members
from holdfast.training.gang.regroup import LEAVING
from holdfast.training.sharded.settings import ShardedNode
from holdfast.vocabulary.exit_codes import (
    EXIT_COMPLETE,
    EXIT_PREEMPTED,
    EXIT_RETRY,
    combine_exit_codes,
)

RESIZING = "resizing"
"""Entry of a status: number of the epoch that the lead ends at a step, to let nodes join."""
RESTORED = "restored"
"""Entry of a status: number of the epoch in which all ranks of the node have restored."""
FAILED = "failed"
"""Entry of a status: number of the epoch in which a rank failed, and not for want of a peer."""
STORED = "stored"
"""Entry of a status: this node has tried to write what the nodes hold to the store."""
STORE_S = 60.0
"""Longest time that a commit waits for the manifests, which one node writes."""
STOPPING_S = 3.0
"""Longest time that ranks which have stopped at a step take to exit."""
BLAMED_S = 60.0
"""Longest time for which nodes that lost a peer wait for the end of the one that failed. Its other
ranks may hang in the driver of a broken GPU, where no signal ends them.
"""
_BLAMELESS_CODES = (EXIT_COMPLETE, EXIT_PREEMPTED, EXIT_RETRY)
"""Exit codes of ranks that did not fail by themselves."""
_FATAL_SIGNALS = frozenset(
    {
        signal.SIGKILL,
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGILL,
        signal.SIGFPE,
    }
)
"""Signals that end a process by its own fault, or for want of memory. SIGABRT is not one of them:
collectives abort a process that has lost a peer.
"""


class EpochEnd:
    """Asks the other launchers why an epoch ends, and what they still need of this node."""

    def __init__(
        self,
        node: ShardedNode,
        control: Control,
        peers: Peers,
        storage: Storage,
        show: Callable[..., None],
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`show` adds entries to this node's status."""
        self._node = node
        self._control = control
        self._peers = peers
        self._storage = storage
        self._show = show
        self._now = now
        self._stopped_epoch = 0
        """Number of the newest epoch that is known to end at a step."""

    def is_at_step(self, epoch: Epoch, silent: Collection[int]) -> bool:
        """Tells whether a member has asked all to stop at a step, to leave or to admit others.

        `silent` are members that are not asked: an unreachable machine takes a second each time.
        """
        if not self._node.resizes:
            return False
        # All members wait for this one, so it does not ask what it knows already.
        if self._stopped_epoch == epoch.number:
            return True
        members = [member for member in epoch.members if member.index not in silent]
        statuses = self._peers.look_at_members(members).values()
        return any(_asks_for_stop(status, epoch) for status in statuses)

    def await_cause(
        self,
        epoch: Epoch,
        codes: list[int],
        exit_queue: SimpleQueue[int | None],
        *,
        wait_s: float = 2 * SILENT_S,
        silent_s: float = LOOK_S,
        stop_asked: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Tells, after a rank of this node has ended, whether the others go on without some node,
        or with more. Waits for the node's other ranks if all stopped at a step.

        `codes` are those of the ranks that have ended; further ones are added. `wait_s` is the time
        for which a node that may have failed looks for another one, and `silent_s` the silence
        after which a member counts as lost: a rank that failed is evidence too, so less is needed
        than while all work.
        """
        deadline = self._now() + wait_s
        members = [member for member in epoch.members if member != self._control.me]
        indices = [member.index for member in members]
        detector = FailureDetector(
            self._peers,
            indices,
            silent_s=silent_s,
            now=self._now,
        )
        is_another_blamed = False
        while True:
            self._show_failure(epoch, codes)
            statuses = detector.survey()
            if self._is_stop_asked(epoch, statuses):
                self._await_exits(codes, exit_queue)
                return True
            # The others may have given this node up, or be slow: the cause is here nevertheless.
            if was_killed(codes):
                return False
            if any(_has_ended(member, statuses.get(member.index), epoch) for member in members):
                return True
            if detector.silent:
                return True
            if stop_asked():
                return False
            # Ranks that lost a peer end at the same moment as that peer. Their launchers must wait
            # until the peer's launcher has closed its port, or all would give up together.
            is_another_blamed |= self._blames_another(epoch, statuses)
            patience_s = BLAMED_S if is_another_blamed else 0.0
            if self._now() > deadline + patience_s:
                return False
            if not _add_code(codes, exit_queue):
                return True

    def _show_failure(self, epoch: Epoch, codes: list[int]) -> None:
        if any(code not in _BLAMELESS_CODES for code in codes):
            self._show(**{FAILED: epoch.number})

    def _blames_another(self, epoch: Epoch, statuses: Mapping[int, Mapping[str, Any]]) -> bool:
        """Tells whether this node has only lost a peer, and another one says that it has failed."""
        if self._control.shown.get(FAILED) == epoch.number:
            return False
        return any(status.get(FAILED) == epoch.number for status in statuses.values())

    def _await_exits(self, codes: list[int], exit_queue: SimpleQueue[int | None]) -> None:
        """Waits for the other ranks of the node, which have stopped at a step."""
        deadline = self._now() + STOPPING_S
        while len(codes) < self._node.processes and self._now() < deadline:
            if not _add_code(codes, exit_queue):
                return

    def _is_stop_asked(self, epoch: Epoch, statuses: Mapping[int, Mapping[str, Any]]) -> bool:
        lets_nodes_join = self._control.shown.get(RESIZING) == epoch.number
        is_asked = any(_asks_for_stop(status, epoch) for status in statuses.values())
        if lets_nodes_join or is_asked:
            self._stopped_epoch = epoch.number
            return True
        return False

    def serve_memory(self, epoch: Epoch, shutdown: Shutdown) -> None:
        """Keeps this node's memory until the others have restored, or the window ends.

        If all leave, the one with the lowest number writes what they hold to the store.
        """
        while shutdown.seconds_left(self._node.window_s) > 0:
            statuses = self._peers.look(range(len(self._node.nodes)))
            if has_restored(statuses, epoch.number):
                return
            all_leave = all(status.get(LEAVING) for status in statuses.values())
            if all_leave and any(status.get(STORED) for status in statuses.values()):
                return
            if all_leave and min(statuses, default=-1) == self._control.me.index:
                self._store_memory(statuses)
                self._show(**{STORED: epoch.number})
            time.sleep(LOOK_S)

    def store_before_exit(self, epoch: Epoch) -> None:
        """Writes what the nodes hold to the store on the lead; the others serve it until then."""
        if epoch.lead == self._control.me:
            statuses = self._peers.look(range(len(self._node.nodes)))
            self._store_memory(statuses)
            self._show(**{STORED: epoch.number})
            return
        detector = FailureDetector(self._peers, [epoch.lead.index], silent_s=SILENT_S)
        while not detector.silent:
            status = detector.survey().get(epoch.lead.index)
            if status and status.get(STORED) == epoch.number:
                return
            time.sleep(LOOK_S)

    def _store_memory(self, statuses: Mapping[int, Mapping[str, Any]]) -> None:
        keepers = list[Address]()
        for index, status in sorted(statuses.items()):
            if "keeper" not in status:  # it has just started
                continue
            host, _ = self._node.nodes[index]
            keepers.append((host, int(status["keeper"])))
        places = PeerPlaces(
            run=self._node.run,
            epoch=0,
            place=0,
            keepers=keepers,
            ranks_per_node=self._node.processes,
            memories=(),
        )
        try:
            step = store_newest(self._storage, places, STORE_S)
        except (StorageError, Damaged, Fenced, InputError) as error:
            logs.error("save", f"what the nodes hold in memory is not stored: {error}")
            return
        if step:
            logs.info("save", f"stored step {step} from the memory of nodes before they end")


class LeavingNodes:
    """Finds the nodes that have left the gang and still serve their memory."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        # A node that was lost before this one started may still serve its memory.
        self._candidates = set(range(len(peers.addresses)))
        """Nodes that may hold a part of the state: an unreachable one has lost it."""

    def find(self, epoch: Epoch) -> list[dict[str, Any]]:
        """Returns the statuses of the nodes that are not in `epoch` and serve their memory."""
        members = {member.index for member in epoch.members}
        absent = sorted(self._candidates - members)
        survey = self._peers.survey(absent)
        slow = survey.unanswered | survey.unknown
        self._candidates = members | survey.answers.keys() | slow
        statuses = [status for _, status in sorted(survey.answers.items())]
        return [status for status in statuses if status.get(LEAVING)]


def has_restored(statuses: Mapping[int, dict[str, Any]], number: int) -> bool:
    """Tells whether the ranks of an epoch after `number` have restored on all its nodes."""
    newest: Epoch | None = None
    for status in statuses.values():
        epoch = parse_epoch(status)
        if epoch and epoch.number > number and (not newest or epoch.number > newest.number):
            newest = epoch
    if newest is None:
        return False
    members = select_members(newest.members, statuses)
    if len(members) < len(newest.members):
        return False
    return {status.get(RESTORED) for status in members.values()} == {newest.number}


def find_exit_code(codes: Iterable[int], *, noticed: bool) -> int:
    """Returns the exit code of a node that fails: that of its ranks that failed by themselves.

    Theirs counts as a failure, and that of a lost peer does not: a bug would start again forever.
    """
    codes = list(codes)
    causes = [code for code in codes if code not in (EXIT_COMPLETE, EXIT_RETRY)]
    return combine_exit_codes(causes or codes, noticed=noticed)


def was_killed(codes: Iterable[int]) -> bool:
    """Tells whether a signal has ended a rank that no lost peer explains.

    `codes` are exit codes: -n, or 128 + n behind a shell, for signal n.
    """
    for code in codes:
        number = -code if code < 0 else code - 128
        if number in _FATAL_SIGNALS:
            return True
    return False


def _add_code(codes: list[int], exit_queue: SimpleQueue[int | None]) -> bool:
    """Adds the code of a rank that ends within LOOK_S. Returns False if a node was lost."""
    try:
        code = exit_queue.get(timeout=LOOK_S)
    except Empty:
        return True
    if code is None:
        return False
    codes.append(code)
    return True


def _asks_for_stop(status: Mapping[str, Any], epoch: Epoch) -> bool:
    """Tells whether a member has asked all to stop at a step of the epoch."""
    return bool(status.get(LEAVING)) or status.get(RESIZING) == epoch.number


def _has_ended(member: Member, status: Mapping[str, Any] | None, epoch: Epoch) -> bool:
    """Tells whether a member says that the epoch is over, or was replaced."""
    if status is None:
        return False
    return status.get("incarnation") != member.incarnation or status.get("lost") == epoch.number
