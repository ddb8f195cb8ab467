"""Gangs of `make bench-peers` on this machine, and what each loses with a node.

A node is a process with what it starts. The bucket is an emulator behind a proxy that limits each
stream.
"""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads.library.tests.bench.checkpoints.dcp_twin import newest
from workloads.library.tests.processes import MIB, family, held, kill_family, shared_mappings, until
from workloads.library.tests.training.elastic.sharded_gangs import ShardedGang, staging_memories

ROOT = Path(__file__).parents[5]
RANK = "workloads.library.tests.bench.gangs.rank"
CADENCE = 3
"""Steps from one copy to the next."""
EVERY = 8
"""Steps from one upload to the next."""
PACE_S = 1.5
"""Of a step in which the processors have little to do, as with a GPU: the copy of a version takes
less.
"""
NEVER = 10**6
LIMIT_S = 180.0
PARTS = ("began", "group", "state", "restored")
"""Of the time until a step: to meet and fork, for the group, the program's state, to take up; then
the first step.
"""

Found = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Bench:
    folder: Path
    nodes: int
    mib: int
    """Of each node."""
    env: dict[str, str]
    passed: Path
    """File with the number of bytes that came from the bucket."""

    def settings(self, name: str) -> Found:
        own = self.folder / name
        files = {
            "log": str(own / "steps"),
            "marks": str(own / "marks"),
            "turn_log": str(own / "turns"),
        }
        work = {
            "mib": self.mib,
            "pace_s": PACE_S,
            "products": 1,
            "steps": NEVER,
            "turns": 0,
            "dcp": False,
        }
        return (
            files
            | work
            | {
                "every": EVERY,
                "peer_steps": CADENCE,
                "checkpoints": f"gs://peers/{name}",
            }
        )

    def gang(self, name: str, *, copies: int, **settings: Any) -> ShardedGang:
        env = self.env | {"HOLDFAST_TRACEBACK": "1"}
        options = self.settings(name) | settings
        return ShardedGang(
            self.folder / name,
            None,
            nodes=self.nodes,
            copies=copies,
            child=RANK,
            env=env,
            **options,
        )

    def from_bucket(self) -> int:
        return int(self.passed.read_text())

    def end(self, gang: ShardedGang) -> None:
        """With what it has in the bucket: all gangs' would fill a disk."""
        gang.close()
        for process in gang.processes.values():
            process.wait()
        shutil.rmtree(
            self.passed.parent / "bucket" / "peers" / gang.folder.name, ignore_errors=True
        )


def lines(path: str) -> list[Found]:
    if Path(path).exists():
        return [json.loads(line) for line in Path(path).read_text().splitlines()]
    return []


class Play:
    """A gang whose nodes are lost one after the other."""

    def __init__(
        self,
        bench: Bench,
        name: str,
        *,
        copies: int,
        all_again: bool = False,
    ) -> None:
        """`all_again`: all others are ended with a lost node and start again, as the pods of a
        rigid gang are.
        """
        self._bench = bench
        self._anew = all_again
        self._copies = copies
        self.gang = bench.gang(name, copies=copies)
        self.memory = 0.0
        """Of all processes, in states."""

    def lost(self, count: int, *, notice: bool = False) -> list[Found]:
        """Of so many losses each; with `notice` of one more that is announced."""
        places = range(self._bench.nodes)
        try:
            self.gang.start(*places)
            self._until(lambda: self.gang.of("commit"))
            found = [self._one(1 + n % (len(places) - 1), (n + 0.5) / count) for n in range(count)]
            self.memory = memory(self.gang) / (self._bench.nodes * self._bench.mib * MIB)
            return [*found, self._one(0, 0.5, notice=True)] if notice else found
        finally:
            self._bench.end(self.gang)

    def _one(self, place: int, phase: float, *, notice: bool = False) -> Found:
        gang = self.gang
        places = range(self._bench.nodes)
        self._await_moment(phase)
        if notice:
            gang.processes[place].send_signal(signal.SIGTERM)
            gang.processes[place].wait(LIMIT_S)
        else:
            gang.lose(place)
        others = [each for each in places if each != place]
        if self._anew:
            for each in others:
                gang.lose(each)
        else:
            self._until(lambda: all(self._waiting(each) for each in others))
        done = self._steps()  # a survivor may have ended its step meanwhile
        read = self._bench.from_bucket()
        began = time.time()
        gang.start(*(places if self._anew else [place]))
        self._until(lambda: len(gang.peers.look([*places])) == len(places))
        there = time.time()
        self._until(lambda: len(self._steps()) > len(done))
        first = self._steps()[len(done)]
        restored = gang.of("restore")[-1]
        marks = [mark for mark in lines(gang.settings["marks"]) if mark["t"] > began]
        ends = [max(mark["t"] for mark in marks if mark["what"] == what) for what in PARTS]
        return {
            "lost_steps": done[-1]["step"] - restored["step"],
            "first_step_s": first["t"] - PACE_S - there,
            "restore_s": restored["seconds"],
            "read_mb": (self._bench.from_bucket() - read) / 1e6,
            "parts_s": [
                end - before
                for before, end in zip([there, *ends], [*ends, first["t"] - PACE_S], strict=True)
            ],
        }

    def _await_moment(self, phase: float) -> None:
        """Between two copies, or between two uploads, when this part of the way is gone."""
        gang, restored = self.gang, self.gang.of("restore")[-1]["step"]
        if not self._copies:
            ends = self._saved() + round(phase * EVERY)
            self._until(
                lambda: (
                    self._saved() > restored
                    and self._steps()[-1]["step"] >= max(ends, self._saved())
                )
            )
            return
        self._until(lambda: self._copied() > restored + CADENCE)
        version = self._copied()
        self._until(lambda: self._copied() > version, pause_s=0.02)
        time.sleep(phase * CADENCE * PACE_S)
        assert not any(process.poll() for process in gang.processes.values()), gang.logs()

    def _saved(self) -> int:
        return max((event["step"] for event in self.gang.of("commit")), default=0)

    def _copied(self) -> int:
        """The newest step that is handed over."""
        return max((one["step"] for held in self.gang.held().values() for one in held), default=0)

    def _waiting(self, place: int) -> bool:
        since_start = (self.gang.folder / f"log-{place}").read_text().rpartition("ranks started")[2]
        return "keeps its memory and waits" in since_start

    def _steps(self) -> list[Found]:
        return lines(self.gang.settings["log"])

    def _until(self, condition: Callable[[], object], *, pause_s: float = 0.05) -> None:
        until(
            condition,
            self.gang.logs,
            within_s=LIMIT_S,
            pause_s=pause_s,
        )


def memory(gang: ShardedGang) -> int:
    """What its processes hold. Staging memories by their size: of one that outlived its rank no
    process has touched a page.
    """
    pids = [each.pid for process in gang.processes.values() for each in family(process.pid)]
    mapped = {inode: size for pid in pids for inode, size in shared_mappings(pid)}
    staged = dict[str, int]()
    for pid in pids:
        with suppress(OSError):  # it ends
            found = [link.stat() for link in staging_memories(pid)]
            staged |= {str(each.st_ino): each.st_blocks * 512 for each in found}
    return (
        held(pids)
        - sum(mapped[inode] for inode in staged if inode in mapped)
        + sum(staged.values())
    )


def dcp_lost(bench: Bench, name: str, count: int) -> list[Found]:
    """A rank is killed, and torchrun started again, as a JobSet does. It saves to a local folder:
    no bucket slows it.
    """
    folder = bench.folder / name
    (saves := folder / "dcp").mkdir(parents=True)
    own = {
        "checkpoints": str(saves),
        "dcp": True,
        "events": str(folder / "events"),
    }
    settings = bench.settings(name) | own
    words = [
        "--standalone",
        "--nproc-per-node",
        str(bench.nodes),
        "-m",
        RANK,
        json.dumps(settings),
    ]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        *words,
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    found: list[Found] = []

    def awaited(condition: Callable[[], object]) -> None:
        until(
            condition,
            lambda: (folder / "log").read_text()[-3000:],
            within_s=LIMIT_S,
            pause_s=0.05,
        )

    for n in range(count + 1):
        before = lines(settings["log"])
        began = time.time()
        with (folder / "log").open("a") as log:
            agent = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=log,
            )
        try:
            awaited(lambda: len(lines(settings["log"])) > len(before))  # noqa: B023
            if n:
                restored = lines(settings["events"])[-1]
                first = lines(settings["log"])[len(before)]
                times = {
                    "first_step_s": first["t"] - PACE_S - began,
                    "restore_s": restored["seconds"],
                }
                found.append({"lost_steps": before[-1]["step"] - restored["step"], **times})
            if n < count:
                saved = newest(saves)
                awaited(lambda: newest(saves) > saved)  # noqa: B023
                ends = newest(saves) + round((n + 0.5) / count * EVERY)
                awaited(lambda: lines(settings["log"])[-1]["step"] >= ends)  # noqa: B023
        finally:
            kill_family(agent.pid)
            agent.wait()
    shutil.rmtree(folder)
    return found


def middle(found: list[Found]) -> Found:
    """The median of each figure."""
    return {
        key: [
            round(statistics.median(each), 2)
            for each in zip(*(one[key] for one in found), strict=True)
        ]
        if isinstance(found[0][key], list)
        else round(statistics.median(one[key] for one in found), 2)
        for key in found[0]
    }
