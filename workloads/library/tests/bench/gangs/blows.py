"""What a node of a sharded gang may meet: a loss, alone or with others, at a point, frozen, or with
a memory that is wrong.
"""

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from holdfast.checkpoint.peers.storage import whole_offers
from holdfast.vocabulary.exit_codes import EXIT_COMPLETE, EXIT_PREEMPTED, EXIT_RETRY
from workloads.library.tests.bench.gangs.kinds import (
    COPY,
    DAMAGED,
    IN_AN_EPOCH_CHANGE,
    NODES,
    SPOILT,
    TOGETHER,
    Blow,
)
from workloads.library.tests.processes import alive, each, family
from workloads.library.tests.training.elastic import sharded_gangs
from workloads.library.tests.training.elastic.gangs import Commits
from workloads.library.tests.training.elastic.sharded_gangs import ShardedGang

SILENT_S = 300.0
STUCK_S = 1800.0
"""A gang is stuck that writes nothing for so long, or goes on for so long without coming to what is
awaited.
"""
LATER_STEPS = 6
"""After so many no point is reached any more that was not."""
ZOMBIE_S = 5.0
REFUSED = "are free; training goes on"
FULL_NODE = "workloads.library.tests.bench.gangs.full_node"
COMES_BACK = {-signal.SIGKILL, 128 + signal.SIGKILL, EXIT_PREEMPTED, EXIT_RETRY}
"""137: of a node whose rank alone was killed."""


class Over(Exception):
    """The gang has ended."""


class Stuck(Exception):
    """What it has not come to."""


class Blows:
    """Each returns how many nodes it has cost."""

    def __init__(self, gang: ShardedGang) -> None:
        self._gang = gang
        self.commits = Commits(gang.checkpoints)
        self.wrong: list[str] = []
        self.unreached = 0
        self.spoilt = 0
        """Step of the version that was spoilt last."""
        self._restores = 0
        self._start = 0
        """When a node was lost last: how many there had been, and the newest start of which a
        version was in memory.
        """
        self._orphans: list[psutil.Process] = []
        self._came_back: set[int] = set()
        """Places that had ended by themselves since a blow began."""
        gang.start(*range(NODES))

    def strike(self, blow: Blow) -> int:
        self._came_back.clear()
        if blow.kind in TOGETHER:
            return self._replace([(blow.place + by) % NODES for by in TOGETHER[blow.kind]])
        if blow.kind in DAMAGED:
            return self._damaged(blow)
        name = blow.kind.replace(" ", "_") if blow.kind in SPOILT else "point"
        return getattr(self, f"_{name}")(blow)

    def _point(self, blow: Blow) -> int:
        """Two are lost, and the replacement of one dies at the point, or at that of the epoch that
        the second begins.
        """
        place = blow.place
        changes = blow.kind in IN_AN_EPOCH_CHANGE
        other = (place + 2) % NODES
        self._lose([place] if changes else [place, other])
        self._gang.start(place, kill_at=f"{blow.kind}:{blow.count}")
        if changes:
            self.settled()
            if place in self._came_back:  # where it joined
                return 2
            self._lose([other])
        self._gang.start(other)
        self.unreached += not self._dies(place)
        self._replace([place])
        return 3

    def _stopped(self, blow: Blow) -> int:
        """All of a node, until the others have lost it."""
        tree = family(self._gang.processes[blow.place].pid)
        self._mark()
        each(tree, psutil.Process.suspend)
        try:
            self._until_lost((blow.place + 1) % NODES)
        finally:
            each(tree, psutil.Process.resume)
        return 1

    def _zombie(self, blow: Blow) -> int:
        """An uploader that has begun an upload wakes when the gang has committed in another epoch."""
        self.wait(self._uploading, pause_s=0.005)
        tree = family(self._gang.processes[blow.place].pid)
        zombies = [one for one in tree if "uploader_process" in " ".join(one.cmdline())]
        each(zombies, psutil.Process.suspend)
        self._orphans += zombies
        newest = self.commits.newest_start
        self._lose([blow.place])
        self._gang.start(blow.place)
        self.wait(lambda: self.commits.newest_start > newest)
        each(zombies, psutil.Process.resume)
        ends = time.monotonic() + ZOMBIE_S
        self.wait(lambda: not any(alive(one) for one in zombies) or time.monotonic() > ends)
        return 1

    def _full(self, blow: Blow) -> int:
        """A node has no room, then it is lost together with the one whose copies it refused."""
        before = (blow.place - 1) % NODES
        log = self._gang.folder / f"log-{before}"
        read = log.stat().st_size
        self._lose([blow.place])
        self._gang.start(blow.place, module=FULL_NODE)
        self.settled()
        self.wait(lambda: REFUSED in log.read_text()[read:] or self._past(LATER_STEPS))
        return 1 + self._replace([before, blow.place])

    def _newest_damaged(self, blow: Blow) -> int:
        launcher = self._gang.processes[blow.place].pid
        damaged = lambda: sharded_gangs.damage([self._spoilt_memory(blow.place, launcher)])  # noqa: E731
        return self._with_two_versions((blow.place + 1) % NODES, damaged)

    def _liar(self, blow: Blow) -> int:
        """A member keeps another shard under the name of the newest."""
        other = (blow.place + 2) % NODES
        return self._with_two_versions(
            blow.place, lambda: sharded_gangs.lie(self._gang, self.spoilt, blow.place, to=other)
        )

    def _with_two_versions(self, lost: int, spoil: Callable[[], None]) -> int:
        """The newest is spoilt and a node is lost, while the ranks sleep: so none comes after it."""
        spoilt = False
        while not spoilt:
            self.wait(lambda: len(self.copied()) > 1)
            launchers = [process.pid for process in self._gang.processes.values()]
            ranks = []
            for launcher in launchers:
                for one in family(launcher)[1:]:
                    ranks.append(one)
            each(ranks, psutil.Process.suspend)
            try:
                spoilt = len(self.copied()) > 1
                if spoilt:
                    self.spoilt = max(self.copied())
                    spoil()
                    self._lose([lost])
            finally:
                each(ranks, psutil.Process.resume)
        self._gang.start(lost)
        return 1

    # What blows are made of.

    def _replace(self, places: Sequence[int]) -> int:
        self._lose(places)
        self._gang.start(*places)
        return len(places)

    def _lose(self, places: Sequence[int]) -> None:
        """At one moment, but for the processes that are frozen."""
        self._mark()
        trees = [one for place in places for one in family(self._gang.processes[place].pid)]
        each([one for one in trees if one not in self._orphans], psutil.Process.kill)
        for place in places:
            self._gang.processes[place].wait(SILENT_S)

    def _damaged(self, blow: Blow) -> int:
        """Once no rank writes there any more."""
        lost = (blow.place + DAMAGED[blow.kind]) % NODES
        self._lose([lost])
        self._until_lost(blow.place, spare=lost)
        launcher = self._gang.processes[blow.place].pid
        if blow.kind == COPY:
            sharded_gangs.damage_copies(launcher)
        else:
            sharded_gangs.damage(sharded_gangs.staging_memories(launcher))
        self._gang.start(lost)
        return 1

    def _spoilt_memory(self, place: int, launcher: int) -> Path:
        own = [
            one
            for one in self._gang.held()[place]
            if one["memory"] >= 0 and one["step"] == self.spoilt
        ]
        return sharded_gangs.staging_memories(launcher)[
            max(own, key=lambda one: one["start"])["memory"]
        ]

    def _uploading(self) -> bool:
        steps = self._gang.checkpoints.glob("*/step-*")
        return any(not (step / "COMMIT.json").exists() and any(step.iterdir()) for step in steps)

    def _until_lost(self, place: int, *, spare: int = -1) -> None:
        """That node's launcher has ended its ranks; `spare` is not replaced yet."""
        peers = self._gang.peers

        def lost() -> bool:
            found: dict[str, Any] | None = peers.look([place]).get(place)
            # Without an epoch: on a slow machine the others went on without it meanwhile.
            return found is not None and (
                not found["epoch"] or found["lost"] == found["epoch"]["number"]
            )

        self.wait(lost, spare=spare)

    def _dies(self, place: int) -> bool:
        """Whether a process of that node ends by itself before the gang is well past any point."""
        known = set[psutil.Process]()
        gone = False

        def ended() -> bool:
            nonlocal gone
            tree = {one for one in family(self._gang.processes[place].pid) if alive(one)}
            gone = bool(known - tree)
            known.update(tree)
            return gone or self._past(LATER_STEPS)

        self.wait(ended, spare=place)
        return gone

    def copied(self) -> list[int]:
        """Steps of the versions by the newest start of which every rank's shard is on the next
        node.
        """
        held = self._gang.held()
        versions = []
        for place in range(NODES):
            versions.append(
                {
                    (one["start"], one["step"], one["attempt"])
                    for one in held[(place + 1) % NODES]
                    if one["rank"] == place
                }
            )
        return [step for start, step, _ in set.intersection(*versions) if start > self._start]

    def settled(self) -> None:
        """The gang has restored since the last loss, and a version of its new start is whole."""
        self.wait(lambda: self._past(1))

    def _past(self, steps: int) -> bool:
        found = self._gang.of("restore")
        if len(found) <= self._restores:
            return False
        above = found[-1]["step"] + steps
        return bool(
            whole_offers(
                self._gang.places(),
                NODES,
                above=above,
                start=self._start + 1,
            )
        )

    def _mark(self) -> None:
        self._restores = len(self._gang.of("restore"))
        self._start = max(
            (one["start"] for held in self._gang.held().values() for one in held), default=0
        )

    def wait(self, condition: Callable[[], bool], *, spare: int = -1, pause_s: float = 0.1) -> None:
        """Keeps the gang's places filled meanwhile. Raises Over, Stuck."""
        began = time.monotonic()
        while not condition():
            self.commits.note()
            ended = {
                place: code
                for place, p in self._gang.processes.items()
                if (code := p.poll()) is not None
            }
            lost = any(code != EXIT_COMPLETE for code in ended.values())
            # which has nothing to come back to
            if self._gang.of("exit") and (len(ended) == NODES or lost):
                raise Over
            for place, code in ended.items():
                if code not in (*COMES_BACK, EXIT_COMPLETE):
                    self.wrong.append(f"place {place} ended with {code}\n{self._gang.logs()}")
                if code != EXIT_COMPLETE and place != spare:
                    self._came_back.add(place)
                    self._gang.start(place)
            if self._gang.silent_s > SILENT_S or time.monotonic() - began > STUCK_S:
                raise Stuck(condition.__qualname__)
            time.sleep(pause_s)
        if self._gang.of("exit"):
            raise Over

    def close(self) -> None:
        each(self._orphans, psutil.Process.kill)
