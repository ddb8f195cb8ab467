"""Faults of the nodes of a sharded gang.

A node is lost, alone or with others or at a named point; it is frozen; or its memory is wrong.
"""

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from holdfast.checkpoint.peers.storage import list_offers
from holdfast.vocabulary.exit_codes import EXIT_COMPLETE, EXIT_PREEMPTED, EXIT_RETRY
from workloads.library.tests.bench.gangs.fault_kinds import (
    COPY,
    DAMAGED,
    FULL,
    IN_AN_EPOCH_CHANGE,
    LIAR,
    NODES,
    OLDER,
    TOGETHER,
    Blow,
)
from workloads.library.tests.processes import alive, each, family
from workloads.library.tests.training.elastic import sharded_gangs
from workloads.library.tests.training.elastic.gangs import Commits
from workloads.library.tests.training.elastic.sharded_gangs import ShardedGang

SILENT_S = 300.0
STUCK_S = 1800.0
"""Limits for a stuck gang: seconds without output, and seconds until an awaited condition."""
LATER_STEPS = 6
"""Steps after which a point that was not reached will not be reached any more."""
ZOMBIE_S = 5.0
REFUSED = "are free; training goes on"
FULL_NODE = "workloads.library.tests.bench.gangs.full_node"
COMES_BACK = {-signal.SIGKILL, 128 + signal.SIGKILL, EXIT_PREEMPTED, EXIT_RETRY}
"""Exit codes of nodes that come back; 137 is that of a node whose rank alone was killed."""


class Over(Exception):
    """The gang has ended."""


class Stuck(Exception):
    """The gang does not reach a condition; the message names it."""


class Blows:
    """Strikes a gang; each blow returns the number of nodes that it cost."""

    def __init__(self, gang: ShardedGang) -> None:
        self._gang = gang
        self.commits = Commits(gang.checkpoints)
        self.wrong: list[str] = []
        self.unreached = 0
        self.spoiled = 0
        """The step of the version that was spoiled last."""
        self._restores = 0
        self._start = 0
        """State at the last loss: the number of restores, and the newest start with a version in
        memory.
        """
        self._orphans: list[psutil.Process] = []
        self._came_back: set[int] = set()
        """Places that ended by themselves since the blow began."""
        gang.start(*range(NODES))

    def strike(self, blow: Blow) -> int:
        self._came_back.clear()
        if blow.kind in TOGETHER:
            places = []
            for distance in TOGETHER[blow.kind]:
                places.append(_shift(blow.place, distance))
            return self._replace(places)
        if blow.kind in DAMAGED:
            return self._damage(blow)
        strikes = {
            "stopped": self._freeze,
            "zombie": self._wake_zombie,
            FULL: self._fill,
            OLDER: self._damage_newest,
            LIAR: self._lie,
        }
        return strikes.get(blow.kind, self._kill_at_point)(blow)

    def _kill_at_point(self, blow: Blow) -> int:
        """Loses two nodes; the replacement of one dies at the point.

        A point of an epoch change is that of the epoch which the second loss begins.
        """
        place = blow.place
        changes = blow.kind in IN_AN_EPOCH_CHANGE
        other = _shift(place, 2)
        self._lose([place] if changes else [place, other])
        self._gang.start(place, kill_at=f"{blow.kind}:{blow.count}")
        if changes:
            self.settle()
            if place in self._came_back:  # the point was reached when it joined
                return 2
            self._lose([other])
        self._gang.start(other)
        if not self._dies(place):
            self.unreached += 1
        self._replace([place])
        return 3

    def _get_launcher(self, place: int) -> int:
        """Returns the process ID of a node's launcher."""
        return self._gang.processes[place].pid

    def _list_processes(self, place: int) -> list[psutil.Process]:
        """Returns a node's launcher and the processes that it started."""
        return family(self._get_launcher(place))

    def _freeze(self, blow: Blow) -> int:
        """Stops all processes of a node until the other nodes have lost it."""
        tree = self._list_processes(blow.place)
        self._mark()
        each(tree, psutil.Process.suspend)
        try:
            self._until_lost(_shift(blow.place, 1))
        finally:
            each(tree, psutil.Process.resume)
        return 1

    def _wake_zombie(self, blow: Blow) -> int:
        """Freezes an uploader during an upload until the gang has committed in another epoch."""
        self.wait(self._is_uploading, pause_s=0.005)
        zombies: list[psutil.Process] = []
        for process in self._list_processes(blow.place):
            command = " ".join(process.cmdline())
            if "uploader_process" in command:
                zombies.append(process)
        each(zombies, psutil.Process.suspend)
        self._orphans += zombies
        newest = self.commits.newest_start
        self._lose([blow.place])
        self._gang.start(blow.place)
        self.wait(lambda: self.commits.newest_start > newest)
        each(zombies, psutil.Process.resume)
        deadline = time.monotonic() + ZOMBIE_S

        def is_over() -> bool:
            is_late = time.monotonic() > deadline
            return is_late or not any(map(alive, zombies))

        self.wait(is_over)
        return 1

    def _fill(self, blow: Blow) -> int:
        """Replaces a node by one with full memory; then loses it and the node that copies to it."""
        before = _shift(blow.place, -1)
        log = self._gang.folder / f"log-{before}"
        log_size = log.stat().st_size
        self._lose([blow.place])
        self._gang.start(blow.place, module=FULL_NODE)
        self.settle()

        def has_refused() -> bool:
            new_text = log.read_text()[log_size:]
            return REFUSED in new_text or self._is_past(LATER_STEPS)

        self.wait(has_refused)
        return 1 + self._replace([before, blow.place])

    def _damage_newest(self, blow: Blow) -> int:
        launcher = self._get_launcher(blow.place)

        def damage() -> None:
            memory = self._find_spoiled_memory(blow.place, launcher)
            sharded_gangs.damage([memory])

        return self._spoil_newest_version(_shift(blow.place, 1), damage)

    def _lie(self, blow: Blow) -> int:
        """Makes a member keep another shard under the name of the newest."""
        other = _shift(blow.place, 2)

        def lie() -> None:
            sharded_gangs.lie(self._gang, self.spoiled, blow.place, to=other)

        return self._spoil_newest_version(blow.place, lie)

    def _spoil_newest_version(self, place: int, spoil: Callable[[], None]) -> int:
        """Spoils the newest of two versions and loses a node while the ranks sleep.

        The ranks sleep so that no newer version follows.
        """
        spoiled = False
        while not spoiled:
            self.wait(lambda: len(self.list_copies()) > 1)
            ranks: list[psutil.Process] = []
            for node in self._gang.processes:
                _, *ranks_of_node = self._list_processes(node)
                ranks += ranks_of_node
            each(ranks, psutil.Process.suspend)
            try:
                copies = self.list_copies()
                spoiled = len(copies) > 1
                if spoiled:
                    self.spoiled = max(copies)
                    spoil()
                    self._lose([place])
            finally:
                each(ranks, psutil.Process.resume)
        self._gang.start(place)
        return 1

    def _replace(self, places: Sequence[int]) -> int:
        self._lose(places)
        self._gang.start(*places)
        return len(places)

    def _lose(self, places: Sequence[int]) -> None:
        """Kills nodes at one moment, except processes that are frozen."""
        self._mark()
        victims: list[psutil.Process] = []
        for place in places:
            for process in self._list_processes(place):
                if process not in self._orphans:
                    victims.append(process)
        each(victims, psutil.Process.suspend)
        each(victims, psutil.Process.kill)
        for place in places:
            launcher = self._gang.processes[place]
            launcher.wait(SILENT_S)

    def _damage(self, blow: Blow) -> int:
        """Loses a node and damages the memory of another when no rank writes there any more."""
        neighbor = _shift(blow.place, DAMAGED[blow.kind])
        self._lose([neighbor])
        self._until_lost(blow.place, spare=neighbor)
        launcher = self._get_launcher(blow.place)
        if blow.kind == COPY:
            sharded_gangs.damage_copies(launcher)
        else:
            memories = sharded_gangs.staging_memories(launcher)
            sharded_gangs.damage(memories)
        self._gang.start(neighbor)
        return 1

    def _find_spoiled_memory(self, place: int, launcher: int) -> Path:
        newest: dict[str, Any] = {"start": -1}
        for version in self._gang.held()[place]:
            is_spoiled = version["memory"] >= 0 and version["step"] == self.spoiled
            if is_spoiled and version["start"] > newest["start"]:
                newest = version
        memories = sharded_gangs.staging_memories(launcher)
        return memories[newest["memory"]]

    def _is_uploading(self) -> bool:
        for step in self._gang.checkpoints.glob("*/step-*"):
            commit = step / "COMMIT.json"
            if not commit.exists() and any(step.iterdir()):
                return True
        return False

    def _until_lost(self, place: int, *, spare: int = -1) -> None:
        """Waits until a node's launcher has ended its ranks; `spare` is not replaced yet."""
        peers = self._gang.peers

        def has_lost_gang() -> bool:
            states = peers.look([place])
            state: dict[str, Any] | None = states.get(place)
            if state is None:
                return False
            epoch = state["epoch"]
            # No epoch: on a slow machine the other nodes have continued without it.
            return not epoch or state["lost"] == epoch["number"]

        self.wait(has_lost_gang, spare=spare)

    def _dies(self, place: int) -> bool:
        """Tells whether a process of a node ends before the gang is well past any point."""
        earlier: set[psutil.Process] = set()
        has_died = False

        def is_over() -> bool:
            nonlocal has_died
            living = set(filter(alive, self._list_processes(place)))
            # It may have died before it was seen alive.
            has_ended = self._gang.processes[place].poll() is not None
            has_died = has_ended or bool(earlier - living)
            earlier.update(living)
            return has_died or self._is_past(LATER_STEPS)

        self.wait(is_over, spare=place)
        return has_died

    def list_copies(self) -> list[int]:
        """Returns steps of the newest start for which the next node has every rank's shard."""
        versions_by_place = self._gang.held()
        copies: list[set[tuple[int, int, int]]] = []
        for place in range(NODES):
            copies_of_rank: set[tuple[int, int, int]] = set()
            for version in versions_by_place[_shift(place, 1)]:
                if version["rank"] == place:
                    copies_of_rank.add(_identify(version))
            copies.append(copies_of_rank)
        steps: list[int] = []
        for start, step, _ in set.intersection(*copies):
            if start > self._start:
                steps.append(step)
        return steps

    def settle(self) -> None:
        """Waits until the gang has restored and a version of its new start is whole."""
        self.wait(lambda: self._is_past(1))

    def _is_past(self, steps: int) -> bool:
        restores = self._gang.of("restore")
        if len(restores) <= self._restores:
            return False
        offers = list_offers(
            self._gang.places(),
            above=restores[-1]["step"] + steps,
            start=self._start + 1,
        )
        return bool(offers)

    def _mark(self) -> None:
        self._restores = len(self._gang.of("restore"))
        self._start = 0
        for versions in self._gang.held().values():
            for version in versions:
                self._start = max(self._start, version["start"])

    def wait(self, condition: Callable[[], bool], *, spare: int = -1, pause_s: float = 0.1) -> None:
        """Waits for a condition and replaces nodes that end meanwhile; raises Over or Stuck."""
        start = time.monotonic()
        while not condition():
            self.commits.note()
            codes = self._exit_codes()
            has_loss = set(codes.values()) - {EXIT_COMPLETE}
            # A lost node of a complete gang has nothing to come back to.
            if self._gang.of("exit") and (len(codes) == NODES or has_loss):
                raise Over
            for place, code in codes.items():
                self._handle_exit(place, code, spare)
            waited_s = time.monotonic() - start
            if self._gang.silent_s > SILENT_S or waited_s > STUCK_S:
                raise Stuck(condition.__qualname__)
            time.sleep(pause_s)
        if self._gang.of("exit"):
            raise Over

    def _handle_exit(self, place: int, code: int, spare: int) -> None:
        """Notes a wrong exit code, and starts the node again unless it is `spare`."""
        if code == EXIT_COMPLETE:
            return
        if code not in COMES_BACK:
            logs = self._gang.logs()
            self.wrong.append(f"place {place} ended with {code}\n{logs}")
        if place != spare:
            self._came_back.add(place)
            self._gang.start(place)

    def _exit_codes(self) -> dict[int, int]:
        codes: dict[int, int] = {}
        for place, process in self._gang.processes.items():
            code = process.poll()
            if code is not None:
                codes[place] = code
        return codes

    def close(self) -> None:
        each(self._orphans, psutil.Process.kill)


def _shift(place: int, distance: int) -> int:
    """Returns the place that is `distance` further around the ring of nodes."""
    return (place + distance) % NODES


def _identify(version: dict[str, Any]) -> tuple[int, int, int]:
    return version["start"], version["step"], version["attempt"]
