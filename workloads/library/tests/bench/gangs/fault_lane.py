"""Sharded gangs that lose nodes again and again, for a kill matrix of copies in memory.

Nodes are lost alone or together, at any moment or where one of their processes reaches a named
point. Each lost node is replaced at once. After each blow the gang must restore and copy again, and
every start and the end must have the bits of an undisturbed run. Every blow leaves one JSON line in
the results, which the lanes share.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from workloads.library.tests.bench.gangs.fault_kinds import (
    COPY,
    FULL,
    LIAR,
    NODES,
    OLDER,
    STAGED,
    STORE,
    UNCOMMITTED,
    Blow,
)
from workloads.library.tests.bench.gangs.faults import REFUSED, SILENT_S, Blows, Over, Stuck
from workloads.library.tests.bench.kill_lane import Records
from workloads.library.tests.fork_server import ForkServer, serve_modules
from workloads.library.tests.training.elastic.sharded_gangs import CHILD, ShardedGang

SETTINGS = {
    "steps": 20,
    "every": 4,
    "peer_steps": 1,
    "pace_s": 0.2,
}
MODULES = ("holdfast.commands", "holdfast.training.sharded.launcher", CHILD, "torch._dynamo")
KEEPS = ("one", "two others", STAGED)
"""Kinds of blows after which no step that was copied may be lost."""
COPIED = {
    "one": 1,
    "two others": 1,
    STORE: 1,
    COPY: 1,
    FULL: 1,
    STAGED: 1,
}
"""Versions that must be copied before a blow of the kind; other kinds may strike before that."""
MEMORY = "memory"
COPIES = "the copy of what was staged"
VERSION = "an older version in memory"
BUCKET = "bucket"
INSTEAD = "bucket, since memory does not verify"
CLEAN = "ends with 75 and begins clean"
WITHOUT = "no room: training goes on without a copy"
FALLBACKS = (MEMORY, COPIES, VERSION, BUCKET, INSTEAD, CLEAN, WITHOUT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Findings since the previous record of the same gang."""

    wrong: list[str]
    zombies: list[str]
    starts: int
    """The number of starts that were compared."""
    stuck: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Struck(Found):
    """The result of one blow."""

    kind: str
    kills: int
    reached: bool
    """False if the blow has a named point that was not reached."""
    taken: list[str]
    """The fall-backs that the gang took."""


def judge_gangs(
    blows: Sequence[Found], gangs: Sequence[Found]
) -> tuple[dict[str, Any], dict[str, bool]]:
    """Returns the figures and the goals that all matrices of gangs share."""
    starts = 0
    wrong = list[str]()
    zombies = list[str]()
    for record in (*blows, *gangs):
        starts += record.starts
        wrong += [text[:2000] for text in record.wrong]
        zombies += record.zombies
    stuck = [gang.stuck[:2000] for gang in gangs if gang.stuck]
    figures = {
        "gangs": len(gangs),
        "starts_compared": starts,
        "wrong": len(wrong),
        "commits_by_zombies": len(zombies),
        "stuck": len(stuck),
        "examples": [*wrong[:3], *zombies[:3], *stuck[:3]],
    }
    goals = {
        "wrong_0": bool(gangs) and not wrong,
        "stuck_0": bool(gangs) and not stuck,
        "commits_by_zombies_0": bool(gangs) and not zombies,
    }
    return figures, goals


@dataclass(kw_only=True)
class Lane:
    folder: Path
    reference: dict[int, str]
    """The digest of the state, by step."""
    results: Records
    server: ForkServer | None = None
    """The fork server of the nodes; None: one of its own."""

    def play(self, blows: Iterator[Blow]) -> None:
        """Strikes gangs; blows for gangs without a commit come first in a gang."""
        early = list[Blow]()
        waiting = list[Blow]()
        with serve_modules(MODULES, self.server) as server:
            for number in count(1):
                folder = self.folder / f"{self.folder.name}-{number}"
                gang = ShardedGang(folder, server, nodes=NODES, wait_s=SILENT_S, **SETTINGS)
                with closing(gang):
                    if not self._strike_until_over(gang, blows, early, waiting):
                        return

    def _strike_until_over(
        self,
        gang: ShardedGang,
        blows: Iterator[Blow],
        early: list[Blow],
        waiting: list[Blow],
    ) -> bool:
        """Strikes a gang until it ends; returns False if no blow remains.

        A blow during which a gang ends is repeated in the next gang.
        """
        play = Play(gang, self.reference)
        stuck = ""
        blow = None
        try:
            play.settle()
            while early and not gang.committed():
                self.results.add(play.strike_and_record(early.pop()))
            play.wait(gang.committed)
            while blow := waiting.pop() if waiting else next(blows, None):
                if blow.kind == UNCOMMITTED:
                    early.append(blow)
                else:
                    self.results.add(play.strike_and_record(blow))
            play.wait(lambda: False)
        except Over:
            play.compare(SETTINGS["steps"], gang.digest)
            if blow:
                waiting.append(blow)
        except Stuck as error:
            stuck = f"{error}\n{gang.logs()}"
        finally:
            play.close()
        self.results.add(Found(**play.take_findings(), stuck=stuck))
        return blow is not None or bool(early)


def run_undisturbed(folder: Path, server: ForkServer | None = None) -> dict[int, str]:
    """Runs a gang without faults; returns the digest of its state, by step."""
    options = SETTINGS | {
        "pace_s": 0.0,
        "bits_at": [*range(SETTINGS["steps"])],
    }
    with serve_modules(MODULES, server) as server:
        gang = ShardedGang(folder, server, nodes=NODES, copies=0, **options)
        with closing(gang):
            gang.start(*range(NODES))
            assert gang.all_ended() == [0] * NODES, gang.logs()
            return dict(gang.bits()) | {SETTINGS["steps"]: gang.digest}


class Play(Blows):
    def __init__(self, gang: ShardedGang, reference: Mapping[int, str]) -> None:
        super().__init__(gang)
        self._reference = reference
        self._compared = 0
        self._zombies = 0

    def compare(self, step: int, digest: str) -> None:
        if digest != self._reference[step]:
            self.wrong.append(
                f"step {step} has bits {digest}, expected"
                f" {self._reference[step]}\n{self._gang.logs()}"
            )

    def take_findings(self) -> dict[str, Any]:
        """Returns the findings since the last call."""
        starts = self._gang.bits()[self._compared :]
        for step, digest in starts:
            self.compare(step, digest)
        wrong = [*self.wrong]
        zombies = self.commits.of_zombies()[self._zombies :]
        self.wrong.clear()
        self._compared = self._compared + len(starts)
        self._zombies = self._zombies + len(zombies)
        return {
            "wrong": wrong,
            "zombies": zombies,
            "starts": len(starts),
        }

    def strike_and_record(self, blow: Blow) -> Struck:
        needed = COPIED.get(blow.kind, 0)
        self.wait(lambda: len(self.list_copies()) >= needed)
        before = max(self.list_copies(), default=0)
        unreached = self.unreached
        log_sizes = {}
        for path in self._gang.folder.glob("log-*"):
            log_sizes[path] = path.stat().st_size
        wait_until = time.monotonic() + blow.delay_s
        self.wait(lambda: time.monotonic() >= wait_until)
        kills = self.strike(blow)
        self.settle()
        restored = self._gang.of("restore")[-1]["step"]
        if blow.kind in KEEPS and restored < before:
            self.wrong.append(
                f"{blow}: step {before} was copied, {restored} is restored\n{self._gang.logs()}"
            )
        logs = {}
        for path, size in log_sizes.items():
            logs[path.name] = path.read_text()[size:]
        return Struck(
            **self.take_findings(),
            kind=blow.kind,
            kills=kills,
            reached=self.unreached == unreached,
            taken=self._find_fallbacks(blow, restored, logs),
        )

    def _find_fallbacks(self, blow: Blow, restored: int, logs: dict[str, str]) -> list[str]:
        """Returns the fall-backs that the logs since the blow speak of."""
        first = logs["log-0"]
        used_memory = "from the memory of nodes in" in first
        used_copies = used_memory and "in the memory of nodes: " not in first
        used_older = used_memory and restored < self.spoiled
        fallbacks = {
            MEMORY: used_memory,
            COPIES: blow.kind == STAGED and used_copies,
            VERSION: blow.kind in (OLDER, LIAR) and used_older,
            BUCKET: " MB, committed " in first,
            INSTEAD: "reading the store" in first,
            CLEAN: "has no checkpoint in the store yet" in first,
            WITHOUT: REFUSED in "\n".join(logs.values()),
        }
        return [name for name in fallbacks if fallbacks[name]]
