"""Sharded gangs that lose nodes again and again: what a kill matrix of copies in memory is made of.

Nodes are lost at once, alone and together, or where one of their processes reaches a named point.
Each lost one is replaced at once. After each blow the gang must restore and copy on, and every
start and the end must have the bits of an undisturbed run. Every blow leaves one JSON line in the
results, which the lanes share.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from workloads.library.tests.bench.gangs.blows import REFUSED, SILENT_S, Blows, Over, Stuck
from workloads.library.tests.bench.gangs.kinds import (
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
from workloads.library.tests.bench.kill_lane import Records
from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.training.elastic.sharded_gangs import CHILD, ShardedGang

SETTINGS = {
    "steps": 20,
    "every": 4,
    "peer_steps": 1,
    "pace_s": 0.2,
}
MODULES = ("holdfast.commands", "holdfast.training.sharded.launcher", CHILD, "torch._dynamo")
KEEPS = ("one", "two others", STAGED)
"""After these no step that was copied may be lost."""
COPIED = {
    "one": 1,
    "two others": 1,
    STORE: 1,
    COPY: 1,
    FULL: 1,
    STAGED: 1,
}
"""Of these the gang first has so many versions copied; others may strike before anything is copied
again.
"""
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
    """Since the record before of the same gang."""

    wrong: list[str]
    zombies: list[str]
    starts: int
    """Whose bits were compared."""
    stuck: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Struck(Found):
    """What one blow came to."""

    kind: str
    kills: int
    reached: bool
    """The named point, if any."""
    taken: list[str]


@dataclass(kw_only=True)
class Lane:
    folder: Path
    reference: dict[int, str]
    """Digest of the state by step."""
    results: Records

    def play(self, blows: Iterator[Blow]) -> None:
        """Those for gangs without a commit come first in a gang; the others in their order."""
        early = list[Blow]()
        waiting = list[Blow]()
        with closing(ForkServer(MODULES)) as server:
            for number in count(1):
                folder = self.folder / f"{self.folder.name}-{number}"
                with closing(
                    ShardedGang(
                        folder,
                        server,
                        nodes=NODES,
                        wait_s=SILENT_S,
                        **SETTINGS,
                    )
                ) as gang:
                    if not self._until_over(gang, blows, early, waiting):
                        return

    def _until_over(
        self,
        gang: ShardedGang,
        blows: Iterator[Blow],
        early: list[Blow],
        waiting: list[Blow],
    ) -> bool:
        """False: no blow is left. A blow that a gang did not live through comes again in the next."""
        play = Play(gang, self.reference)
        stuck = ""
        blow = None
        try:
            play.settled()
            while early and not gang.committed():
                self.results.add(play.struck(early.pop()))
            play.wait(gang.committed)
            while blow := waiting.pop() if waiting else next(blows, None):
                if blow.kind == UNCOMMITTED:
                    early.append(blow)
                else:
                    self.results.add(play.struck(blow))
            play.wait(lambda: False)
        except Over:
            play.compare(SETTINGS["steps"], gang.digest)
            waiting += [blow] if blow else []
        except Stuck as error:
            stuck = f"{error}\n{gang.logs()}"
        finally:
            play.close()
        self.results.add(Found(**play.found(), stuck=stuck))
        return blow is not None or bool(early)


def undisturbed(folder: Path) -> dict[int, str]:
    """By step the digest of what a gang has that nothing happens to."""
    options = SETTINGS | {
        "pace_s": 0.0,
        "bits_at": [*range(SETTINGS["steps"])],
    }
    with (
        closing(ForkServer(MODULES)) as server,
        closing(
            ShardedGang(
                folder,
                server,
                nodes=NODES,
                copies=0,
                **options,
            )
        ) as gang,
    ):
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
                f"step {step} has bits {digest}, wanted"
                f" {self._reference[step]}\n{self._gang.logs()}"
            )

    def found(self) -> dict[str, Any]:
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

    def struck(self, blow: Blow) -> Struck:
        needed = COPIED.get(blow.kind, 0)
        self.wait(lambda: len(self.copied()) >= needed)
        before = max(self.copied(), default=0)
        unreached = self.unreached
        read = {path: path.stat().st_size for path in self._gang.folder.glob("log-*")}
        wait_until = time.monotonic() + blow.delay_s
        self.wait(lambda: time.monotonic() >= wait_until)
        kills = self.strike(blow)
        self.settled()
        restored = self._gang.of("restore")[-1]["step"]
        if blow.kind in KEEPS and restored < before:
            self.wrong.append(
                f"{blow}: step {before} was copied, {restored} is restored\n{self._gang.logs()}"
            )
        texts = {path.name: path.read_text()[size:] for path, size in read.items()}
        return Struck(
            **self.found(),
            kind=blow.kind,
            kills=kills,
            reached=self.unreached == unreached,
            taken=[*self._taken(blow, restored, texts["log-0"], "".join(texts.values()))],
        )

    def _taken(self, blow: Blow, restored: int, first: str, every: str) -> Iterator[str]:
        """By what rank 0 and all nodes have written since."""
        memory = "from the memory of nodes in" in first
        found = {
            MEMORY: memory,
            COPIES: blow.kind == STAGED and memory and "in the memory of nodes: " not in first,
            VERSION: blow.kind in (OLDER, LIAR) and memory and restored < self.spoilt,
            BUCKET: " MB, committed " in first,
            INSTEAD: "reading the store" in first,
            CLEAN: "has no checkpoint in the store yet" in first,
            WITHOUT: REFUSED in every,
        }
        return (name for name, there in found.items() if there)
