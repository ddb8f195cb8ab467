"""Gangs of `make bench-peers` on this machine, and their losses with a node.

A node is a process with its children. The bucket is an emulator behind a proxy that limits each
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
from itertools import pairwise
from pathlib import Path
from typing import Any

from workloads.library.tests.bench.checkpoints.dcp_twin import newest
from workloads.library.tests.bench.result import collect_columns
from workloads.library.tests.processes import MIB, family, held, kill_family, shared_mappings, until
from workloads.library.tests.training.elastic.sharded_gangs import ShardedGang, staging_memories

ROOT = Path(__file__).parents[5]
RANK = "workloads.library.tests.bench.gangs.rank"
CADENCE = 3
"""Steps from one copy to the next."""
EVERY = 8
"""Steps from one upload to the next."""
PACE_S = 1.5
"""Seconds of a step, mostly without work for processors, as with a GPU; a copy takes less."""
NEVER = 10**6
LIMIT_S = 180.0
PARTS = ("began", "group", "state", "restored")
"""Parts of the time until the first step: start of ranks, process group, state, restore."""

Figures = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Bench:
    folder: Path
    nodes: int
    mib: int
    """The state of each node."""
    env: dict[str, str]
    passed: Path
    """The file with the number of bytes that came from the bucket."""

    def settings(self, name: str) -> Figures:
        folder = self.folder / name
        files = {
            "log": str(folder / "steps"),
            "marks": str(folder / "marks"),
            "turn_log": str(folder / "turns"),
        }
        work = {
            "mib": self.mib,
            "pace_s": PACE_S,
            "products": 1,
            "steps": NEVER,
            "turns": 0,
            "dcp": False,
        }
        saves = {
            "every": EVERY,
            "peer_steps": CADENCE,
            "checkpoints": f"gs://peers/{name}",
        }
        return files | work | saves

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

    def bytes_from_bucket(self) -> int:
        return int(self.passed.read_text())

    def end(self, gang: ShardedGang) -> None:
        """Ends a gang and removes its objects: those of all gangs would fill a disk."""
        gang.close()
        for process in gang.processes.values():
            process.wait()
        objects = self.passed.parent / "bucket" / "peers" / gang.folder.name
        shutil.rmtree(objects, ignore_errors=True)


def lines(path: str) -> list[Figures]:
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
        is_rigid: bool = False,
    ) -> None:
        """A rigid gang ends all nodes with a lost one, and starts all of them again."""
        self._bench = bench
        self._is_rigid = is_rigid
        self._copies = copies
        self.gang = bench.gang(name, copies=copies)
        self.memory = 0.0
        """Memory of all processes, as a multiple of the gang's state."""

    def measure_losses(self, count: int, *, notice: bool = False) -> list[Figures]:
        """Returns the figures of `count` losses, and with `notice` of one more with a notice."""
        places = range(self._bench.nodes)
        try:
            self.gang.start(*places)
            self._until(lambda: self.gang.of("commit"))
            losses = list[Figures]()
            for number in range(count):
                place = 1 + number % (len(places) - 1)
                losses.append(self._measure_loss(place, (number + 0.5) / count))
            state_bytes = self._bench.nodes * self._bench.mib * MIB
            self.memory = measure_memory(self.gang) / state_bytes
            if notice:
                losses.append(self._measure_loss(0, 0.5, notice=True))
            return losses
        finally:
            self._bench.end(self.gang)

    def _measure_loss(self, place: int, phase: float, *, notice: bool = False) -> Figures:
        gang = self.gang
        places = range(self._bench.nodes)
        self._await_moment(phase)
        if notice:
            gang.processes[place].send_signal(signal.SIGTERM)
            gang.processes[place].wait(LIMIT_S)
        else:
            gang.lose(place)
        survivors = [survivor for survivor in places if survivor != place]
        if self._is_rigid:
            for survivor in survivors:
                gang.lose(survivor)
        else:
            self._until(lambda: all(map(self._is_waiting, survivors)))
        steps_before = self._steps()  # a survivor may have ended its step meanwhile
        bytes_before = self._bench.bytes_from_bucket()
        restart = time.time()
        gang.start(*(places if self._is_rigid else [place]))
        self._until(lambda: len(gang.peers.look([*places])) == len(places))
        ready = time.time()
        self._until(lambda: len(self._steps()) > len(steps_before))
        first_step_begin = self._steps()[len(steps_before)]["t"] - PACE_S
        restored = gang.of("restore")[-1]
        return {
            "lost_steps": steps_before[-1]["step"] - restored["step"],
            "first_step_s": first_step_begin - ready,
            "restore_s": restored["seconds"],
            "read_mb": (self._bench.bytes_from_bucket() - bytes_before) / 1e6,
            "parts_s": self._split_restart(restart, ready, first_step_begin),
        }

    def _split_restart(self, restart: float, ready: float, first_step: float) -> list[float]:
        """Returns the seconds of PARTS and of the rest; a part ends with its slowest rank."""
        marks = []
        for mark in lines(self.gang.settings["marks"]):
            if mark["t"] > restart:
                marks.append(mark)
        times = [ready]
        for part in PARTS:
            part_times = []
            for mark in marks:
                if mark["what"] == part:
                    part_times.append(mark["t"])
            times.append(max(part_times))
        times.append(first_step)
        return [end - begin for begin, end in pairwise(times)]

    def _await_moment(self, phase: float) -> None:
        """Waits for this share of the way from one copy, or one upload, to the next."""
        gang = self.gang
        restored = gang.of("restore")[-1]["step"]
        if not self._copies:
            planned = self._newest_save() + round(phase * EVERY)

            def is_due() -> bool:
                saved = self._newest_save()
                return saved > restored and self._steps()[-1]["step"] >= max(planned, saved)

            self._until(is_due)
            return
        self._until(lambda: self._newest_copy() > restored + CADENCE)
        version = self._newest_copy()
        self._until(lambda: self._newest_copy() > version, pause_s=0.02)
        time.sleep(phase * CADENCE * PACE_S)
        for process in gang.processes.values():
            assert not process.poll(), gang.logs()

    def _newest_save(self) -> int:
        return max((event["step"] for event in self.gang.of("commit")), default=0)

    def _newest_copy(self) -> int:
        """Returns the newest step that a peer has."""
        steps = [0]
        for versions in self.gang.held().values():
            steps += [version["step"] for version in versions]
        return max(steps)

    def _is_waiting(self, place: int) -> bool:
        log = (self.gang.folder / f"log-{place}").read_text()
        since_start = log.rpartition("ranks started")[2]
        return "keeps its memory and waits" in since_start

    def _steps(self) -> list[Figures]:
        return lines(self.gang.settings["log"])

    def _until(self, condition: Callable[[], object], *, pause_s: float = 0.05) -> None:
        until(
            condition,
            self.gang.logs,
            within_s=LIMIT_S,
            pause_s=pause_s,
        )


def measure_memory(gang: ShardedGang) -> int:
    """Returns the bytes of all processes of a gang.

    Staging memory counts with its full size: if it outlived its rank, no process has touched a
    page of it.
    """
    pids = list[int]()
    for launcher in gang.processes.values():
        pids += [process.pid for process in family(launcher.pid)]
    mapped = dict[str, int]()
    staged = dict[str, int]()
    for pid in pids:
        mapped |= dict(shared_mappings(pid))
        with suppress(OSError):  # the process ends meanwhile
            for link in staging_memories(pid):
                status = link.stat()
                staged[str(status.st_ino)] = status.st_blocks * 512
    mapped_staging = sum(mapped.get(inode, 0) for inode in staged)
    return held(pids) - mapped_staging + sum(staged.values())


def measure_dcp_losses(bench: Bench, name: str, count: int) -> list[Figures]:
    """Kills a rank and starts torchrun again, as a JobSet does.

    It saves to a local folder, so that no bucket slows it.
    """
    folder = bench.folder / name
    saves = folder / "dcp"
    saves.mkdir(parents=True)
    settings = bench.settings(name) | {
        "checkpoints": str(saves),
        "dcp": True,
        "events": str(folder / "events"),
    }
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
    losses = list[Figures]()

    def wait(condition: Callable[[], object]) -> None:
        until(
            condition,
            lambda: (folder / "log").read_text()[-3000:],
            within_s=LIMIT_S,
            pause_s=0.05,
        )

    for n in range(count + 1):
        before = lines(settings["log"])
        start = time.time()
        with (folder / "log").open("a") as log:
            agent = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=log,
            )
        try:
            wait(lambda: len(lines(settings["log"])) > len(before))  # noqa: B023
            if n:
                restored = lines(settings["events"])[-1]
                first = lines(settings["log"])[len(before)]
                losses.append(
                    {
                        "lost_steps": before[-1]["step"] - restored["step"],
                        "first_step_s": first["t"] - PACE_S - start,
                        "restore_s": restored["seconds"],
                    }
                )
            if n < count:
                saved = newest(saves)
                wait(lambda: newest(saves) > saved)  # noqa: B023
                planned = newest(saves) + round((n + 0.5) / count * EVERY)
                wait(lambda: lines(settings["log"])[-1]["step"] >= planned)  # noqa: B023
        finally:
            kill_family(agent.pid)
            agent.wait()
    shutil.rmtree(folder)
    return losses


def compute_medians(losses: list[Figures]) -> Figures:
    """Returns the median of each figure; of a list, that of each of its entries."""
    medians: Figures = {}
    for key, values in collect_columns(losses).items():
        if isinstance(values[0], list):
            columns = zip(*values, strict=True)
            medians[key] = [round(statistics.median(column), 2) for column in columns]
        else:
            medians[key] = round(statistics.median(values), 2)
    return medians
