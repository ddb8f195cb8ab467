"""Gangs whose members are killed at named points, and come back within a second.

A gang is judged when all its members have ended: the bits, the shards of every step, and who
committed.
"""

import os
import signal
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from holdfast.vocabulary.exit_codes import EXIT_COMPLETE, EXIT_PREEMPTED, EXIT_RETRY
from workloads.library.tests.processes import until
from workloads.library.tests.training.elastic.gangs import Commits, Gang, read_lines

STUCK_S = 900.0
COMES_BACK = {-signal.SIGKILL, EXIT_PREEMPTED, EXIT_RETRY}
SETTINGS: dict[str, Any] = {
    "steps": 60,
    "every": 10,
    "shards": 4,
    "pace_s": 0.01,
}
SETTINGS |= {
    "gather_s": 2.0,
    "hold_s": 20.0,
    "silent_s": 4.0,
    "connect_s": 2.0,
}
SETTINGS |= {
    "model": {
        "context": 8,
        "width": 8,
        "layers": 1,
        "heads": 1,
    }
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Strike:
    point: str
    """Name of the failpoint."""
    place: int
    count: int = 1
    """Number of times that a process reaches the point before it is killed."""
    rank: int = 0
    """Rank within the node, if it has several."""


class LedgerGang(Gang):
    """Gang whose members record what they add to a step and what they apply."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, ledger=str(folder / "ledger"), **settings)
        self.commits = Commits(self.checkpoints)

    def signal_session(self, place: int, number: signal.Signals) -> None:
        os.killpg(self.processes[place].pid, number)

    def ledger(self) -> list[dict[str, Any]]:
        return read_lines(self.folder / "ledger")


class Played:
    """Restarts each node with the next strike that is meant for it, until none is left and
    all have ended.
    """

    def __init__(
        self,
        gang: Gang,
        strikes: Sequence[Strike],
        *,
        watch: Callable[[], None] = lambda: None,
        opens_gate: Callable[["Played"], bool] = lambda _: False,
    ) -> None:
        """`watch` is called while it runs; `opens_gate` says when members that wait at the gang's
        gate go on.
        """
        self.struck = list[str]()
        self.wrong = list[str]()
        self._opens_gate = opens_gate
        self._gang = gang
        self._watch = watch
        self._waiting: dict[int, list[Strike]] = {}
        for node in range(gang.nodes):
            self._waiting[node] = [strike for strike in strikes if strike.place == node]
        self._armed: dict[int, Strike | None] = {}
        self._left = {*range(gang.nodes)}
        for node in range(gang.nodes):
            self._start(node)
        until(self._over, gang.logs, within_s=STUCK_S, pause_s=0.03)

    def _over(self) -> bool:
        for node in sorted(self._left):
            codes = []
            for place in self._gang.list_places(node):
                codes.append(self._gang.processes[place].poll())
            if any(codes) or None not in codes:
                self._handle_end(node, {code for code in codes if code is not None})
        self._watch()
        if self._opens_gate(self):
            self._gang.open_gate()
        return not self._left

    def _start(self, node: int) -> None:
        strike = self._armed[node] = self._waiting[node].pop(0) if self._waiting[node] else None
        self._gang.start_node(
            node,
            f"{strike.point}:{strike.count}" if strike else "",
            rank=strike.rank if strike else 0,
        )

    def _handle_end(self, node: int, codes: set[int]) -> None:
        strike = self._armed[node]
        if strike and -signal.SIGKILL in codes:
            self.struck.append(strike.point)
        for place in self._gang.list_places(node):  # as in a pod whose rank is gone
            self._gang.processes[place].kill()
            self._gang.ended(place)
        if codes & COMES_BACK and not self._gang.digests():
            self._start(node)
            return
        self._left.discard(node)  # where others are done, the Job has ended with them
        odd = codes - COMES_BACK - {EXIT_COMPLETE}
        if odd:
            self.wrong.append(f"node {node} ended with {odd}\n{self._gang.logs()}")


def judge_gang(gang: LedgerGang, reference: str) -> list[str]:
    errors = list[str]()
    if gang.digests() != {reference}:
        errors.append(f"digests {gang.digests()}, wanted {reference}")
    return [*errors, *_check_samples(gang), *gang.commits.of_zombies()]


def _check_samples(gang: LedgerGang) -> list[str]:
    """Checks that each applied step has the sum of every shard once, and no process applied one
    twice.
    """
    added: dict[tuple[int, int], list[int]] = defaultdict(list)
    applied: dict[int, list[tuple[int, int]]] = defaultdict(list)
    written: set[tuple[int, int, int]] = set()
    for line in gang.ledger():
        key = (line["epoch"], line["step"])
        if line["what"] == "applied":
            applied[line["process"]].append(key)
            continue
        # A step whose gradients did not fit is summed again.
        entry = (*key, line["process"])
        if entry not in written:
            written.add(entry)
            added[key] += line["shards"]
    all_shards = list(range(gang.settings["shards"]))
    missing = set(range(gang.settings["steps"]))
    errors = list[str]()
    for key in set[tuple[int, int]]().union(*applied.values()):
        epoch, step = key
        missing.discard(step)
        shards = sorted(added[key])
        if shards != all_shards:
            errors.append(f"step {step} of epoch {epoch} had shards {shards}")
    if missing:
        errors.append(f"steps never applied: {sorted(missing)[:5]}")
    for process, keys in applied.items():
        repeats = list[tuple[int, int]]()
        for key, next_key in pairwise(keys):
            is_same_epoch = next_key[0] == key[0]
            if is_same_epoch and next_key[1] <= key[1]:
                repeats.append(key)
        if repeats:
            errors.append(f"process {process} applied again after {repeats[:3]}")
    return errors[:5]
