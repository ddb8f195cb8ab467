"""Launcher of a sharded gang's node: `holdfast train ranks --sharded` keeps the node's memory while
its ranks restart.

A state that is sharded over nodes needs every node. When one is lost, the launchers of the others
end their ranks, keep the staged shards, and wait in the next epoch for the replacement. Then all
start their ranks again. Each rank restores its shard from its node's memory or from the
neighbor's, or from the bucket if no whole step is in memory.

A gang with a least number of nodes does not wait: the next epoch has the nodes that remain, and
their ranks divide the state among themselves. A node that joins, and one that has a notice, end the
epoch at the boundary of a step, once its state is in the memory of all nodes.
"""

# Why it is so: infra/decisions/0115 and 0136.

import contextlib
import os
import secrets
import signal
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any

from holdfast.checkpoint import Tuning
from holdfast.checkpoint.errors import CheckpointExit, Preempted
from holdfast.checkpoint.peers import Keeper, PeerPlaces, check_folder, free_disk_bytes
from holdfast.checkpoint.stores import client_of
from holdfast.runtime import logs
from holdfast.runtime.shutdown import DRAIN_SIGNAL, Shutdown
from holdfast.training.errors import Expelled
from holdfast.training.gang.failure_detector import LOOK_S, SILENT_S
from holdfast.training.gang.forked_ranks import ForkedRanks
from holdfast.training.gang.liveness import Lag, Watch
from holdfast.training.gang.member_addresses import Address
from holdfast.training.gang.member_server import Control
from holdfast.training.gang.membership import Epoch, Member
from holdfast.training.gang.peer_client import Peers, select_members
from holdfast.training.gang.process_group import opening
from holdfast.training.gang.regroup import LEAVING, Regroup, find_leaving
from holdfast.training.gang.saves import open_store
from holdfast.training.sharded.epoch_end import (
    RESIZING,
    RESTORED,
    EpochEnd,
    LeavingNodes,
    find_exit_code,
)
from holdfast.training.sharded.settings import ShardedNode, check_shapes, describe_versions
from holdfast.training.sharded.shard_notes import FILE_BYTES, read_wrong_step
from holdfast.training.tcp_gate import LOOPBACK, Gate, Tunnel, host_loopback_store, join_key
from holdfast.vocabulary import exit_codes
from holdfast.vocabulary.environment import (
    ENV_CHECKPOINTS,
    ENV_GANG_DOMAIN,
    ENV_LOCAL_RANK,
    ENV_LOCAL_WORLD_SIZE,
    ENV_PEERS,
    ENV_RUN,
)

MEMORIES = 3
"""Staging memories of a rank: one with the last step, one that is copied, one that is uploaded."""
MEMORIES_WITH_FOLDER = 2
"""Staging memories of a rank whose last step is in a folder."""
CONNECT_S = 60.0
GATHER_S = 20.0
"""Seconds that a start, or a node that joins, waits for more nodes."""
FIRST_READY_PAUSE_S = 0.005
LONGEST_READY_PAUSE_S = 0.05
MAX_DOMAIN = 200
"""Longest failure domain, in characters: each rank gets those of all nodes."""


def run_sharded(node: ShardedNode, shutdown: Shutdown) -> int:
    """Runs the node to its end and returns the exit code of the pod.

    Raises InputError if a port is taken or the program cannot be started.
    """
    launcher = _Launcher(node, shutdown)
    try:
        return launcher.work()
    except Preempted as end:
        logs.info("gang", "this node has left the gang")
        return end.CODE
    except CheckpointExit as end:
        logs.error("gang", end.reason)
        return end.CODE
    finally:
        launcher.close()


class _Launcher:
    def __init__(self, node: ShardedNode, shutdown: Shutdown) -> None:
        self._node = node
        self._shutdown = shutdown
        self._folder_bytes = -1
        if node.copies_folder:
            check_folder(node.copies_folder)
            self._folder_bytes = free_disk_bytes(node.copies_folder)
        self._memories: list[list[int]] = []
        """Descriptors of the staging memories, by local rank."""
        descriptors: list[int] = []
        count = MEMORIES_WITH_FOLDER if node.copies_folder else MEMORIES
        for _ in range(node.processes):
            memories = [os.memfd_create("holdfast-staging") for _ in range(count)]
            self._memories.append(memories)
            descriptors += memories
        # Forked before this process has threads.
        client = client_of(node.checkpoints)
        self._notes: list[int] = []
        """Descriptor of each rank's notes of what it computed."""
        for _ in range(node.processes):
            notes = os.memfd_create("holdfast-notes")
            os.ftruncate(notes, FILE_BYTES)
            self._notes.append(notes)
        # A gang that resizes starts its ranks again at once, and would wait for the import.
        self._ranks = ForkedRanks(
            node.command,
            [*descriptors, *self._notes],
            client=client,
            preloads_compiler=node.resizes,
        )
        me = Member(index=node.place, incarnation=secrets.token_hex(8))
        key = join_key(node.run)
        _, port = node.nodes[node.place]
        with opening(port):
            self._control = Control(me, port, key)
        with opening(port + 1):
            self._gate = Gate(port + 1, key, timeout=timedelta(seconds=CONNECT_S))
        self._showing = threading.Lock()
        self._keeper = Keeper(node.run, self._memories, node.copies_folder)
        self._show(
            keeper=self._keeper.port,
            domain=os.environ.get(ENV_GANG_DOMAIN, "")[:MAX_DOMAIN],
            shape=node.describe_shape(),
            versions=describe_versions(),
        )
        self._peers = Peers(node.nodes, key)
        storage = open_store(
            node.checkpoints,
            Tuning(),
            self._peers,
            hold_s=node.wait_s,
        )
        self._epoch_end = EpochEnd(node, self._control, self._peers, storage, self._show)
        self._leaving_nodes = LeavingNodes(self._peers)
        self._lag = Lag(120.0)
        # A notice ends this node only. A gang that waits for all nodes meets again with this one's
        # replacement, so until then it serves its memory as a member.
        self._regroup = Regroup(
            storage,
            node.run,
            self._control,
            self._peers,
            self._lag,
            min_members=node.fewest,
            gather_s=GATHER_S,
            hold_s=node.wait_s,
            stop_asked=lambda: node.resizes and shutdown.requested,
            leaves_at_once=node.resizes,
        )
        self._exit_codes: SimpleQueue[int | None] = SimpleQueue()
        """Exit codes of the ranks; None if another node was lost."""
        self._watch = Watch(
            me,
            self._peers,
            lambda: self._exit_codes.put(None),
            silent_s=SILENT_S,
            only_lead_asks_all=True,
        )

    def work(self) -> int:
        """Runs the ranks in one epoch after the other and returns the exit code of the node."""
        threading.Thread(target=self._forward_notice, daemon=True).start()
        # Checked before joining: a mismatched node would block the running ones forever.
        statuses = self._peers.look(range(len(self._node.nodes)))
        check_shapes(self._node, self._control.shown, statuses.values())
        if self._node.resizes:
            # A gang that is at work stops for this node's first start.
            self._ranks.wait_until_ready()
        epoch = self._regroup.join()
        start = time.monotonic()
        while True:
            # An epoch with fewer nodes means that the gang has waited long enough.
            if epoch.ending:
                logs.error(
                    "gang",
                    f"only {len(epoch.members)} of {len(self._node.nodes)} nodes remain, for too"
                    " long",
                )
                if self._node.copies:
                    self._epoch_end.store_before_exit(epoch)
                return exit_codes.EXIT_RETRY
            with self._watch.over(epoch):
                code = self._run_epoch(epoch, start)
            if code is not None and not self._is_leaving(code):
                return code
            start = time.monotonic()
            self._log_epoch_end(epoch)
            self._ranks.end()
            self._keeper.end_uploaders()
            self._control.lose(epoch)
            try:
                if self._is_leaving(exit_codes.EXIT_PREEMPTED):
                    raise Preempted(0)
                epoch = self._regroup.find_next(epoch, detector=self._watch.detector)
            except Preempted:
                self._epoch_end.serve_memory(epoch, self._shutdown)
                raise
            except Expelled:
                epoch = self._regroup.join()

    def close(self) -> None:
        self._ranks.end()
        self._watch.close()
        self._gate.close()
        self._control.close()

    def _show(self, **entries: int | str) -> None:
        """Adds entries to the status that other nodes read."""
        with self._showing:  # the notice comes in a thread
            self._control.shown = {**self._control.shown, **entries}

    def _is_leaving(self, code: int) -> bool:
        """Tells whether this node leaves a gang that goes on, and has ended with `code`."""
        has_notice = self._node.resizes and self._shutdown.requested
        return has_notice and code in (exit_codes.EXIT_PREEMPTED, exit_codes.EXIT_RETRY)

    def _log_epoch_end(self, epoch: Epoch) -> None:
        if self._is_leaving(exit_codes.EXIT_PREEMPTED):
            action = "this node leaves, and serves its memory until the others have it"
        elif self._node.resizes:
            action = "this node keeps its memory and goes on with those that remain or join"
        else:
            action = "this node keeps its memory and waits"
        is_at_step = self._epoch_end.is_at_step(epoch, self._watch.silent)
        reason = "ends at a step" if is_at_step else "lost a node"
        logs.warning("gang", f"epoch {epoch.number} {reason}: {action}")

    def _run_epoch(self, epoch: Epoch, start: float) -> int | None:
        """Runs the ranks in this epoch.

        Returns the exit code of the node, or None if another node was lost.
        """
        self._epoch = epoch
        self._keeper.epoch = epoch.number
        self._exit_codes = SimpleQueue()
        leads = epoch.lead == self._control.me
        if leads:
            # A new store for each epoch: in the last one ranks would find keys of dead ranks.
            self._gate.store = host_loopback_store(timedelta(seconds=CONNECT_S))
        self._show(ready=epoch.number)
        statuses = self._await_statuses(epoch)
        if statuses is None:
            return None
        if leads:
            return self._run_ranks(
                epoch,
                self._gate.store.port,
                statuses,
                start,
            )
        host, control_port = self._node.nodes[epoch.lead.index]
        tunnel = Tunnel((host, control_port + 1), join_key(self._node.run))
        try:
            return self._run_ranks(
                epoch,
                tunnel.port,
                statuses,
                start,
            )
        finally:
            tunnel.close()

    def _run_ranks(
        self,
        epoch: Epoch,
        store_port: int,
        statuses: list[dict[str, Any]],
        start: float,
    ) -> int | None:
        exit_queue = self._exit_codes
        environments = list[dict[str, str]]()
        leaving = self._find_leaving_keepers(epoch)
        for rank in range(self._node.processes):
            environment = self._make_environment(epoch, rank, store_port, statuses, leaving)
            environments.append(environment)
        self._ranks.start(environments, exit_queue)
        logs.info(
            "gang",
            f"epoch {epoch.number}: ranks started after {time.monotonic() - start:.2f} s",
        )
        if self._shutdown.requested:  # the notice came while no rank was running
            self._ranks.signal(signal.SIGTERM)
        codes: list[int] = []
        while len(codes) < self._node.processes:
            try:
                code = exit_queue.get(timeout=LOOK_S if self._node.resizes else None)
            except Empty:
                self._observe(epoch)
                continue
            if code is None:
                return None
            codes.append(code)
            if code and not self._shutdown.requested:
                return self._judge_failure(codes, exit_queue)
        if any(codes):
            return exit_codes.combine_exit_codes(codes, noticed=True)
        self._await_others(epoch)
        return exit_codes.EXIT_COMPLETE

    def _observe(self, epoch: Epoch) -> None:
        """Shows whether the ranks have restored, and on the lead lets nodes join.

        A node that computed wrong leaves as with a notice: no step is lost.
        """
        if not self._shutdown.requested and self._has_miscomputed():
            logs.error("gang", "this node computed wrong: it leaves the gang")
            os.kill(os.getpid(), signal.SIGTERM)
        if self._keeper.uploader_count < self._node.processes:
            return
        self._show(**{RESTORED: epoch.number})
        is_asked = self._control.shown.get(RESIZING) == epoch.number
        if epoch.lead != self._control.me or is_asked or self._shutdown.requested:
            return
        joiners = self._control.get_joiners()
        if not joiners:
            return
        # Nodes join one by one, and all ranks start again each time: wait for more.
        is_complete = len(joiners) + len(epoch.members) >= len(self._node.nodes)
        if is_complete or self._control.get_join_wait_s() >= GATHER_S:
            indices = ", ".join(map(str, sorted(joiners)))
            logs.info("gang", f"epoch {epoch.number}: node {indices} joins at the next step")
            self._show(**{RESIZING: epoch.number})
            self._ranks.signal(DRAIN_SIGNAL)

    def _has_miscomputed(self) -> bool:
        return any(read_wrong_step(notes) is not None for notes in self._notes)

    def _judge_failure(self, codes: list[int], exit_queue: SimpleQueue[int | None]) -> int | None:
        """Returns the exit code of the node after a rank failed, or None if another node was lost.

        A rank fails together with its peers, and the loss of a node is noticed a moment later. If
        no node was lost, this node has failed.
        """
        # A program may take a lost peer for a bug, but not for bad input.
        if exit_codes.EXIT_BAD_INPUT not in codes and self._is_another_lost(codes, exit_queue):
            return None
        self._ranks.end()
        return find_exit_code(codes, noticed=self._shutdown.requested)

    def _is_another_lost(self, codes: list[int], exit_queue: SimpleQueue[int | None]) -> bool:
        """Tells whether a rank of this node failed because another node ends or was lost."""
        if self._node.resizes:
            return self._epoch_end.await_cause(self._epoch, codes, exit_queue)
        wait_s = 2 * SILENT_S + 2.0
        if exit_codes.EXIT_PREEMPTED in codes:
            # A rank that stops for another node's notice does so before that node's end.
            wait_s = 2 * SILENT_S + self._node.window_s
        # A gang of fixed size waits for the lost node anyway: certainty is worth some seconds.
        return self._epoch_end.await_cause(
            self._epoch,
            codes,
            exit_queue,
            wait_s=wait_s,
            silent_s=SILENT_S,
            stop_asked=lambda: self._shutdown.requested,
        )

    def _await_others(self, epoch: Epoch) -> None:
        """Waits until all nodes are complete: one that exits now would look lost to the others."""
        self._control.enter(epoch, "complete")
        other_members = [member for member in epoch.members if member != self._control.me]
        detector = self._regroup.make_detector([member.index for member in other_members])
        while True:
            statuses = select_members(other_members, detector.survey())
            phases = {status.get("phase") for status in statuses.values()}
            if not detector.unanswered and phases <= {"complete"}:
                return
            self._control.wait(0.1)

    def _await_statuses(self, epoch: Epoch) -> list[dict[str, Any]] | None:
        """Waits until all nodes are ready. Returns their statuses by node, or None if a node was
        lost.
        """
        deadline = time.monotonic() + self._lag.bound_s
        # Members that enter the epoch together are ready within milliseconds of each other.
        pause_s = FIRST_READY_PAUSE_S
        while time.monotonic() < deadline:
            statuses = self._peers.look_at_members([*epoch.members])
            if epoch.lead in statuses:
                check_shapes(self._node, self._control.shown, [statuses[epoch.lead]])
            # Such a member starts no ranks in this epoch.
            if self._node.resizes and (find_leaving(statuses) or self._shutdown.requested):
                return None
            ready = list[dict[str, Any]]()
            for member in epoch.members:  # sorted by node
                status = statuses.get(member, {})
                if status.get("ready") == epoch.number:
                    ready.append(status)
            if len(ready) == len(epoch.members):
                return ready
            with contextlib.suppress(Empty):
                if self._exit_codes.get(timeout=pause_s) is None:
                    return None
            pause_s = min(2 * pause_s, LONGEST_READY_PAUSE_S)
        return None

    def _make_environment(
        self,
        epoch: Epoch,
        rank: int,
        store_port: int,
        statuses: list[dict[str, Any]],
        leaving: tuple[Address, ...],
    ) -> dict[str, str]:
        """Returns the variables of a rank: those of torchrun's agent, so that init_process_group()
        needs no arguments, where the run's checkpoints are, and the addresses of other nodes'
        memory.
        """
        node = self._node
        size = self._node.processes
        position = epoch.members.index(self._control.me)
        ranks, world_size = epoch.divide_ranks(self._control.me, size)
        environment = {
            "RANK": str(ranks[rank]),
            ENV_LOCAL_RANK: str(rank),
            "GROUP_RANK": str(position),
            "WORLD_SIZE": str(world_size),
            ENV_LOCAL_WORLD_SIZE: str(size),
            "MASTER_ADDR": LOOPBACK,
            "MASTER_PORT": str(store_port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            # Part of the keys of the ranks' store: an epoch never reads the values of another.
            "TORCHELASTIC_RESTART_COUNT": str(epoch.number),
            ENV_CHECKPOINTS: node.checkpoints,
            ENV_RUN: node.run,
        }
        if not node.copies:
            return environment
        keepers = list[Address]()
        domains = list[str]()
        for status in statuses:
            keepers.append(self._find_keeper(status))
            domain = str(status.get("domain", ""))
            domains.append(domain[:MAX_DOMAIN])
        places = PeerPlaces(
            run=node.run,
            epoch=epoch.number,
            place=position,
            keepers=tuple(keepers),
            ranks_per_node=size,
            memories=tuple(self._memories[rank]),
            domains=tuple(domains),
            leaving=leaving,
            min_nodes=node.fewest,
            max_nodes=len(node.nodes),
            folder_bytes=self._folder_bytes,
            node=node.place,
            notes=self._notes[rank],
        )
        environment[ENV_PEERS] = places.encode()
        return environment

    def _find_keeper(self, status: Mapping[str, Any]) -> Address:
        host, _ = self._node.nodes[int(status["index"])]
        return host, int(status["keeper"])

    def _find_leaving_keepers(self, epoch: Epoch) -> tuple[Address, ...]:
        """Returns the keepers of nodes that have left and still serve their memory."""
        if not self._node.resizes:
            return ()
        return tuple(map(self._find_keeper, self._leaving_nodes.find(epoch)))

    def _forward_notice(self) -> None:
        """Waits for the notice and forwards it to the ranks. Runs in a thread."""
        self._shutdown.wait()
        if self._node.resizes:
            self._show(**{LEAVING: 1})  # before the ranks stop: the others then know why
            self._ranks.forward_notice(self._shutdown, self._node.window_s)
            return
        if not self._ranks.running:  # this node waits for another one and has nothing to lose
            os._exit(exit_codes.EXIT_PREEMPTED)
        self._ranks.forward_notice(self._shutdown, self._node.window_s)
