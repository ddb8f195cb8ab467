"""Gangs whose members are killed at named points again and again: what a kill matrix is made of.

Places are forks of a process that has torch imported already, so a lost one is back within a second. A gang is judged
when all its members have ended: the bits, the shards of every step, and who committed.
"""

import importlib
import json
import os
import random
import signal
import time
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from holdfast.checkpoint.failpoints import GANG_POINTS
from holdfast.contract.environment import ENV_KILL_AT
from holdfast.contract.exit_codes import EXIT_COMPLETE, EXIT_PREEMPTED, EXIT_RETRY
from workloads.library.tests.training.elastic.child import work
from workloads.library.tests.training.elastic.gangs import Commits, Gang
from workloads.library.tests.training.warm import Fork

SAVE_POINTS = ("stage.begin", "stage.end")
FROZEN, NOTICE = "frozen", "notice"
OF_LEADS = ("gang.propose", "gang.proposed", *SAVE_POINTS)
OF_OTHERS = ("gang.report", "gang.join")
STUCK_S = 900.0
COMES_BACK = {-signal.SIGKILL, EXIT_PREEMPTED, EXIT_RETRY}


@dataclass(frozen=True, kw_only=True, slots=True)
class Strike:
    at: str
    """A named point, `frozen` or `notice`."""
    place: int
    count: int = 1
    """At a point: when it is reached for the n-th time by a process. Else: after so many sizes of the gang."""


@dataclass(kw_only=True)
class Outcome:
    struck: list[str] = field(default_factory=list[str])
    wrong: list[str] = field(default_factory=list[str])
    seconds: float = 0.0


class WarmGang(Gang):
    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, **settings)
        self.commits = Commits(self.checkpoints)

    def start(self, *places: int, kill_at: str = "") -> None:
        for place in places:
            settings = self.settings | {"index": place, "ledger": str(self.folder / "ledger")}
            self.processes[place] = Fork(lambda p=place, s=settings: self._task(p, s, kill_at))  # type: ignore[assignment]

    def _task(self, place: int, settings: dict[str, Any], kill_at: str) -> None:
        os.setsid()  # its uploader is frozen together with it
        log = os.open(self.folder / f"log-{place}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.environ[ENV_KILL_AT] = kill_at
        work(settings)

    def signal_session(self, place: int, number: signal.Signals) -> None:
        os.killpg(self.processes[place].pid, number)

    def close(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGKILL)
            process.wait()

    def ledger(self) -> list[dict[str, Any]]:
        path = self.folder / "ledger"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


SETTINGS = {
    "steps": 120,
    "every": 20,
    "pace_s": 0.01,
    "gather_s": 2.0,
    "hold_s": 20.0,
    "silent_s": 4.0,
    "connect_s": 2.0,
    "shards": 4,
    "model": {"context": 8, "width": 8, "layers": 1, "heads": 1},
}


def prepared() -> None:
    """Import once what every place would."""
    torch.set_num_threads(1)
    importlib.import_module("torch._dynamo")


def undisturbed(folder: Path) -> str:
    """Digest of one node that nothing happens to."""
    gang = WarmGang(folder, nodes=1, **SETTINGS | {"pace_s": 0.0})
    outcome = play(gang, [], "")
    (digest,) = gang.digests()
    wrong = [each for each in outcome.wrong if not each.startswith("digests")]
    assert not wrong, wrong
    return digest


def plan(nodes: int, strikes: int, rng: random.Random) -> list[Strike]:
    """Every point of the gang and of a save, some frozen members and some notices, in an order of chance."""
    points = [*GANG_POINTS, *SAVE_POINTS] if nodes > 1 else [*OF_LEADS, "gang.reduce", "gang.reduced"]
    chosen: list[Strike] = []
    for n in range(strikes):
        at = points[n % len(points)]
        place = 0 if at in OF_LEADS else rng.randrange(nodes)
        if at in OF_OTHERS:
            place = rng.randrange(1, nodes)
        often = rng.randint(2, 60) if at.startswith("gang.reduce") else rng.randint(1, 2)
        chosen.append(Strike(at=at, place=place, count=often))
    if nodes > 1:
        chosen += [Strike(at=FROZEN, place=rng.randrange(nodes)), Strike(at=NOTICE, place=rng.randrange(nodes))]
    rng.shuffle(chosen)
    return chosen


class _Play:
    """Each place is started again with the next strike that is meant for it, until none is left and all have ended."""

    def __init__(self, gang: WarmGang, strikes: list[Strike]) -> None:
        self._gang, self.outcome = gang, Outcome()
        self._waiting = {place: [s for s in strikes if s.place == place] for place in range(gang.nodes)}
        self._armed: dict[int, Strike | None] = {}
        self._frozen: dict[int, int] = {}
        """Place -> how many sizes the gang had had when it was stopped."""
        self.left = set(range(gang.nodes))
        for place in range(gang.nodes):
            self._start(place)

    def look(self) -> None:
        for place in sorted(self.left):
            code = self._gang.processes[place].poll()
            if code is None:
                self._send(place)
            else:
                self._ended(place, code)
        self._thaw()
        self._gang.commits.note()

    def _start(self, place: int) -> None:
        strike = self._armed[place] = self._waiting[place].pop(0) if self._waiting[place] else None
        by_point = strike is not None and strike.at not in (FROZEN, NOTICE)
        self._gang.start(place, kill_at=f"{strike.at}:{strike.count}" if strike and by_point else "")

    def _ended(self, place: int, code: int) -> None:
        strike = self._armed[place]
        if strike and code == -signal.SIGKILL:
            self.outcome.struck.append(strike.at)
        if code == EXIT_COMPLETE:
            self.left.discard(place)
        elif code not in COMES_BACK:
            self.left.discard(place)
            self.outcome.wrong.append(f"place {place} ended with {code}\n{self._gang.logs()}")
        elif self._gang.digests():  # the others are done: as the Job ends then
            self.left.discard(place)
        else:
            self._start(place)

    def _send(self, place: int) -> None:
        """Once the place is at work: a notice, or a stop of all its processes."""
        strike = self._armed[place]
        if not strike or strike.at not in (FROZEN, NOTICE) or not self._gang.working(place):
            return
        if strike.at == NOTICE:
            self._gang.signal(place, signal.SIGTERM)
        else:
            self._gang.signal_session(place, signal.SIGSTOP)
            self._frozen[place] = len(self._gang.sizes())
        self.outcome.struck.append(strike.at)
        self._armed[place] = None

    def _thaw(self) -> None:
        """When the others have gone on without it: what it wakes up with is of an old epoch."""
        for place, seen in list(self._frozen.items()):
            if len(self._gang.sizes()) > seen or self._gang.digests() or len(self.left) == len(self._frozen):
                self._gang.signal_session(place, signal.SIGCONT)
                del self._frozen[place]


def play(gang: WarmGang, strikes: list[Strike], reference: str) -> Outcome:
    began, played = time.monotonic(), _Play(gang, strikes)
    outcome = played.outcome
    while played.left and time.monotonic() - began < STUCK_S:
        played.look()
        time.sleep(0.03)
    outcome.seconds = time.monotonic() - began
    if played.left:
        outcome.wrong.append(f"stuck\n{gang.logs()}")
    if not outcome.wrong:
        outcome.wrong += judged(gang, reference)
    return outcome


def judged(gang: WarmGang, reference: str) -> list[str]:
    wrong = [] if gang.digests() == {reference} else [f"digests {gang.digests()}, wanted {reference}"]
    return [*wrong, *_samples(gang), *gang.commits.of_zombies()]


def _samples(gang: WarmGang) -> list[str]:
    """Whoever applied a step applied the sum of every shard once; no process applied a step twice."""
    added: dict[tuple[int, int], list[int]] = defaultdict(list)
    applied: dict[int, list[tuple[int, int]]] = defaultdict(list)
    seen: set[tuple[int, int, int]] = set()
    for line in gang.ledger():
        key = (line["epoch"], line["step"])
        if line["what"] == "applied":
            applied[line["process"]].append(key)
        elif (*key, line["process"]) not in seen:  # a step whose gradients did not fit is added up again
            seen.add((*key, line["process"]))
            added[key] += line["shards"]
    shards = list(range(gang.settings["shards"]))
    keys = {key for steps in applied.values() for key in steps}
    wrong = [
        f"step {key[1]} of epoch {key[0]} had shards {sorted(added[key])}"
        for key in keys
        if sorted(added[key]) != shards
    ]
    missing = set(range(gang.settings["steps"])) - {step for _, step in keys}
    wrong += [f"steps never applied: {sorted(missing)[:5]}"] if missing else []
    for process, steps in applied.items():
        again = [s for s, following in pairwise(steps) if following[0] == s[0] and following[1] <= s[1]]
        wrong += [f"process {process} applied again after {again[:3]}"] if again else []
    return wrong[:5]
