"""A node of a sharded gang: `holdfast train ranks --sharded` keeps the node's memory while its
ranks end and start again.

A state that is sharded over nodes needs every node. When one is lost the others' launchers end
their ranks and keep what the ranks have staged, wait in the next epoch for the replacement, and all
start their ranks again. Those restore each shard from their own node's memory or from the
neighbour's, and from the bucket where memory has no whole step.
"""

# Why it is so: infra/decisions/0115.

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any

from holdfast.checkpoint import Tuning
from holdfast.checkpoint.errors import CheckpointExit
from holdfast.checkpoint.parts import Keeper, PeerPlaces
from holdfast.checkpoint.stores import client_of
from holdfast.runtime import logs
from holdfast.runtime.shutdown import Shutdown
from holdfast.support.errors import InputError
from holdfast.support.values import between
from holdfast.training.errors import Expelled
from holdfast.training.gang.forked_ranks import ForkedRanks
from holdfast.training.gang.hearing import SILENT_S
from holdfast.training.gang.liveness import Lag, Watch
from holdfast.training.gang.member_addresses import MAX_RANKS, Address
from holdfast.training.gang.member_server import Control
from holdfast.training.gang.membership import Epoch, Member
from holdfast.training.gang.peer_client import Peers, of_members
from holdfast.training.gang.process_group import opening
from holdfast.training.gang.regroup import Regroup
from holdfast.training.gang.saves import open_store
from holdfast.training.tcp_gate import LOOPBACK, Gate, Tunnel, host_loopback_store, join_key
from holdfast.vocabulary import exit_codes
from holdfast.vocabulary.environment import (
    ENV_GANG_DOMAIN,
    ENV_LOCAL_RANK,
    ENV_LOCAL_WORLD_SIZE,
    ENV_PEERS,
)
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW

MEMORIES = 3
"""Of a rank: one that is kept, one that is copied, and one that is uploaded."""
CONNECT_S = 60.0
MAX_DOMAIN = 200
"""Characters: each rank gets those of all nodes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardedNode:
    command: Sequence[str]
    checkpoints: str
    """URL of the run's checkpoints, where the gang's epochs are too."""
    run: str
    nodes: tuple[Address, ...]
    """Of every place; the port above is used too."""
    place: int
    processes: int
    """Of each node."""
    copies: int = 1
    """Of each shard in another node's memory: 0 or 1."""
    wait_s: float = 1800.0
    """How long the gang waits for a lost node, until it gives its nodes back."""
    window_s: float = DEFAULT_WINDOW.pod_s

    def __post_init__(self) -> None:
        between("processes of a node", self.processes, 1, MAX_RANKS)
        between("seconds to wait for a lost node", self.wait_s, 0, 7 * 86_400)
        between("place is out of range", self.place, 0, len(self.nodes) - 1)
        fix = "--copies 0, or --nodes 2 and more: a copy is on another node"
        between("copies of each shard", self.copies, 0, min(1, len(self.nodes) - 1), fix=fix)


def run_sharded(node: ShardedNode, shutdown: Shutdown) -> int:
    """The exit code of the pod. Raises InputError where a port is taken or the program cannot be
    started.
    """
    launcher = _Launcher(node, shutdown)
    try:
        return launcher.work()
    except CheckpointExit as end:
        logs.error("gang", end.reason)
        return end.CODE
    finally:
        launcher.close()


class _Launcher:
    def __init__(self, node: ShardedNode, shutdown: Shutdown) -> None:
        self._node = node
        self._shutdown = shutdown
        self._memories = [
            [os.memfd_create("holdfast-staging") for _ in range(MEMORIES)]
            for _ in range(node.processes)
        ]
        # First, before this process has threads.
        memories = []
        for own in self._memories:
            for memory in own:
                memories.append(memory)
        self._ranks = ForkedRanks(node.command, memories, client=client_of(node.checkpoints))
        me = Member(index=node.place, incarnation=secrets.token_hex(8))
        key = join_key(node.run)
        port = node.nodes[node.place][1]
        with opening(port):
            self._control = Control(me, port, key)
        with opening(port + 1):
            self._gate = Gate(port + 1, key, timeout=timedelta(seconds=CONNECT_S))
        domain = os.environ.get(ENV_GANG_DOMAIN, "")[:MAX_DOMAIN]
        shape = f"{len(node.nodes)} nodes of {node.processes} processes"
        self._keeper = Keeper(node.run, self._memories)
        self._control.shown |= {
            "keeper": self._keeper.port,
            "domain": domain,
            "shape": shape,
        }
        self._peers = Peers(node.nodes, key)
        storage = open_store(node.checkpoints, Tuning(), self._peers, hold_s=node.wait_s)
        self._lag = Lag(120.0)
        # A notice to this node ends this node: the others' memory is needed.
        self._regroup = Regroup(
            storage,
            node.run,
            self._control,
            self._peers,
            self._lag,
            min_members=len(node.nodes),
            gather_s=20.0,
            hold_s=node.wait_s,
            stop_asked=lambda: False,
        )
        self._ended: SimpleQueue[int | None] = SimpleQueue()
        """Exit codes of ranks; None: another node is lost."""
        self._watch = Watch(
            me,
            self._peers,
            lambda: self._ended.put(None),
            silent_s=SILENT_S,
            only_lead_asks_all=True,
        )

    def work(self) -> int:
        threading.Thread(target=self._forward_notice, daemon=True).start()
        # Before it joins: those who are at work must not wait for one that they can never start
        # with.
        self._check_alike(self._peers.look([*range(len(self._node.nodes))]).values())
        epoch = self._regroup.first()
        while True:
            # No epoch is complete with fewer: then the gang has waited long enough.
            if epoch.ending:
                logs.error(
                    "gang",
                    f"{len(epoch.members)} of {len(self._node.nodes)} nodes are left, for too long",
                )
                return exit_codes.EXIT_RETRY
            began = time.monotonic()
            with self._watch.over(epoch):
                code = self._in_epoch(epoch, began)
            if code is not None:
                return code
            logs.warning(
                "gang", f"epoch {epoch.number} has lost a node: this one keeps its memory and waits"
            )
            self._ranks.end()
            self._keeper.end_uploaders()
            self._control.lose(epoch)
            try:
                epoch = self._regroup.after(epoch, heard=self._watch.hearing)
            except Expelled:
                epoch = self._regroup.first()

    def close(self) -> None:
        self._ranks.end()
        self._watch.close()
        self._gate.close()
        self._control.close()

    def _check_alike(self, others: Iterable[Mapping[str, Any]]) -> None:
        own = self._control.shown["shape"]
        differs = next((other["shape"] for other in others if other.get("shape", own) != own), "")
        if differs:
            raise InputError(
                "nodes of the sharded gang were started with other numbers",
                got=f"{own} here, {differs} at another node",
                allowed="the same --nodes and --processes on all nodes",
                fix=(
                    "start this node as the others; for another size end all of them first: the"
                    " state then comes from the bucket"
                ),
            )

    def _in_epoch(self, epoch: Epoch, began: float) -> int | None:
        """The exit code of this node; None where another node is gone."""
        self._keeper.epoch = epoch.number
        self._ended = ended = SimpleQueue[int | None]()
        if epoch.lead == self._control.me:
            # A new one: in that of the epoch before ranks would find what dead ones have written.
            self._gate.store = host_loopback_store(timedelta(seconds=CONNECT_S))
        self._control.shown = self._control.shown | {"ready": epoch.number}
        statuses = self._statuses(epoch)
        if statuses is None:
            return None
        tunnel = None
        port = self._gate.store.port
        if epoch.lead != self._control.me:
            host, above = self._node.nodes[epoch.lead.index]
            tunnel = Tunnel((host, above + 1), join_key(self._node.run))
            port = tunnel.port
        try:
            variables = []
            for rank in range(self._node.processes):
                variables.append(self._variables(epoch, rank, port, statuses))
            self._ranks.start(variables, ended)
            logs.info(
                "gang",
                f"epoch {epoch.number}: ranks started after {time.monotonic() - began:.2f} s",
            )
            return self._code(epoch, ended)
        finally:
            if tunnel:
                tunnel.close()

    def _code(self, epoch: Epoch, ended: SimpleQueue[int | None]) -> int | None:
        codes: list[int] = []
        while len(codes) < self._node.processes:
            code = ended.get()
            if code is None:
                return None
            codes.append(code)
            if code and not self._shutdown.requested:
                return self._after_failure(codes, ended)
        if any(codes):
            return exit_codes.of_ranks(codes, noticed=True)
        self._await_others(epoch)
        return exit_codes.EXIT_COMPLETE

    def _after_failure(self, codes: list[int], ended: SimpleQueue[int | None]) -> int | None:
        """A rank fails with its peers: whether a node is lost shows in a moment. If none is, this
        node has failed.
        """
        if exit_codes.EXIT_BAD_INPUT not in codes:  # to a program a lost peer may look like a bug
            # One that stops for another node's notice is ahead of that node's end.
            noticed = exit_codes.EXIT_PREEMPTED in codes
            ends = time.monotonic() + 2 * SILENT_S + (self._node.window_s if noticed else 2.0)
            while (left := ends - time.monotonic()) > 0 and not self._shutdown.requested:
                with contextlib.suppress(Empty):
                    if ended.get(timeout=min(left, 0.2)) is None:
                        return None
        self._ranks.end()
        return exit_codes.of_ranks(codes, noticed=self._shutdown.requested)

    def _await_others(self, epoch: Epoch) -> None:
        """One that went now would look lost to those whose ranks are still ending."""
        self._control.enter(epoch, "complete")
        others = [member for member in epoch.members if member != self._control.me]
        hearing = self._regroup.hearing([member.index for member in others])
        while True:
            found = of_members(others, hearing.survey())
            if not hearing.unanswered and all(
                each.get("phase") == "complete" for each in found.values()
            ):
                return
            self._control.wait(0.1)

    def _statuses(self, epoch: Epoch) -> list[dict[str, Any]] | None:
        """By place; None where a node is lost before it has answered."""
        ends = time.monotonic() + self._lag.bound_s
        while time.monotonic() < ends:
            found = self._peers.answers([*epoch.members])
            self._check_alike(found[member] for member in found if member == epoch.lead)
            ready = {
                member.index: status
                for member, status in found.items()
                if status.get("ready") == epoch.number
            }
            if len(ready) == len(self._node.nodes):
                return [ready[place] for place in range(len(ready))]
            with contextlib.suppress(Empty):
                if self._ended.get(timeout=0.05) is None:
                    return None
        return None

    def _variables(
        self,
        epoch: Epoch,
        rank: int,
        port: int,
        statuses: list[dict[str, Any]],
    ) -> dict[str, str]:
        """As torchrun's agent sets them, so that init_process_group() needs no arguments."""
        node = self._node
        size = self._node.processes
        found = {
            "RANK": str(node.place * size + rank),
            ENV_LOCAL_RANK: str(rank),
            "GROUP_RANK": str(node.place),
            "WORLD_SIZE": str(len(node.nodes) * size),
            ENV_LOCAL_WORLD_SIZE: str(size),
            "MASTER_ADDR": LOOPBACK,
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            # What ranks store is named by it: an epoch never reads the answers of another.
            "TORCHELASTIC_RESTART_COUNT": str(epoch.number),
        }
        if node.copies:
            places = PeerPlaces(
                run=node.run,
                epoch=epoch.number,
                place=node.place,
                keepers=tuple(
                    (host, int(each["keeper"]))
                    for (host, _), each in zip(node.nodes, statuses, strict=True)
                ),
                ranks_per_node=size,
                memories=tuple(self._memories[rank]),
                domains=tuple(str(each.get("domain", ""))[:MAX_DOMAIN] for each in statuses),
            )
            found[ENV_PEERS] = places.encode()
        return found

    def _forward_notice(self) -> None:
        """Thread of the notice."""
        self._shutdown.wait()
        if not self._ranks.running:  # this node waits for another one: nothing of it is at stake
            os._exit(exit_codes.EXIT_PREEMPTED)
        self._ranks.forward_notice(self._shutdown, self._node.window_s)
