"""Sharded gangs that change their size under kills, for a kill matrix.

A gang of four nodes goes on with what remains after each blow, and takes the lost nodes in again.
Nodes are lost alone and together, while the others divide the state, while a node joins, and while
one with a notice hands its shard over. Each start and each step of any size must have the bits of
an undisturbed run of another size.
"""

import json
import random
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

from workloads.library.tests.bench.gangs.fault_kinds import LIAR, NODES, TOGETHER, Blow
from workloads.library.tests.bench.gangs.fault_lane import Found
from workloads.library.tests.bench.gangs.faults import SILENT_S, Blows, Over, Stuck
from workloads.library.tests.bench.kill_lane import Records
from workloads.library.tests.fork_server import ForkServer, serve_modules
from workloads.library.tests.training.elastic.sharded_gangs import ShardedGang

CHILD = "workloads.library.tests.training.elastic.resizing_child"
MODULES = ("holdfast.commands", "holdfast.training.sharded.launcher", CHILD, "torch._dynamo")
SHRINK = "during a shrink"
GROW = "during a grow"
JOINER = "a node that joins"
HAND_OVER = "during a hand-over"
NOTICE = "notice"
ZOMBIE = "zombie"
AT_ONCE = TOGETHER | {"all but one": (0, 1, 2)}
KINDS = (*AT_ONCE, SHRINK, GROW, JOINER, HAND_OVER, NOTICE, LIAR, ZOMBIE)
LONGEST_DELAY_S = 3.0
"""Longer than a gang takes to shrink or grow on an idle machine."""
SETTINGS: dict[str, Any] = {
    "child": CHILD,
    "gate_step": -1,
    "steps": 120,
    "every": 4,
    "peer_steps": 1,
    "pace_s": 0.1,
    "min_nodes": 1,
    "window_s": 90.0,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Resized(Found):
    """The result of one blow."""

    kind: str
    kills: int
    sizes: list[int]
    """Numbers of ranks of the starts since the blow."""


def endless(seed: int) -> Iterator[Blow]:
    """Yields rounds of every kind, each in a random order."""
    rng = random.Random(seed)
    rounds = chain.from_iterable(rng.sample(KINDS, len(KINDS)) for _ in count())
    for kind in rounds:
        yield Blow(
            kind=kind,
            place=rng.randrange(NODES),
            delay_s=rng.uniform(0, LONGEST_DELAY_S),
        )


def run_undisturbed(folder: Path, server: ForkServer | None = None) -> dict[int, str]:
    """Runs one node without faults; returns the digest of the state, by step."""
    options = SETTINGS | {"pace_s": 0.0, "peer_steps": 1000, "every": 1000}
    with serve_modules(MODULES, server) as server:
        gang = ShardedGang(folder, server, nodes=1, **options)
        with closing(gang):
            gang.start(0)
            assert gang.all_ended() == [0], gang.logs()
            lines = read_lines(gang)
    digests: dict[int, str] = {}
    for line in lines:
        digests[line["step"]] = line["digest"]
    return digests


def read_lines(gang: ShardedGang) -> list[dict[str, Any]]:
    """Returns what each start and each step noted, in order."""
    path = Path(gang.settings["bits"])
    if not path.exists():
        return []
    text = path.read_text().rpartition("\n")[0]
    return [json.loads(line) for line in text.splitlines()]


class Play(Blows):
    def __init__(self, gang: ShardedGang, reference: Mapping[int, str]) -> None:
        super().__init__(gang)
        self._reference = reference
        self._compared = 0
        self._zombies = 0
        self._first_line = 0
        """Number of the first line after the last loss."""

    def strike(self, blow: Blow) -> int:
        """Strikes the gang and returns the number of nodes that it cost."""
        self._came_back.clear()
        if blow.kind in AT_ONCE:
            distances = AT_ONCE[blow.kind]
            places = [(blow.place + distance) % NODES for distance in distances]
            self._lose(places)
            self._wait_for_size(NODES - len(places))
            self._gang.start(*places)
            return len(places)
        strikes = {
            SHRINK: self._lose_another_in_a_shrink,
            GROW: self._lose_another_in_a_grow,
            JOINER: self._lose_a_joiner,
            HAND_OVER: self._lose_another_in_a_hand_over,
            NOTICE: self._give_notice,
            LIAR: self._lie,
            ZOMBIE: self._wake_zombie,
        }
        return strikes[blow.kind](blow)

    def _lose_another_in_a_shrink(self, blow: Blow) -> int:
        other = (blow.place + 2) % NODES
        self._lose([blow.place])
        self._pause(blow.delay_s, spare=blow.place)
        self._lose([other])
        self._wait_for_size(NODES - 2)
        self._gang.start(blow.place, other)
        return 2

    def _lose_another_in_a_grow(self, blow: Blow) -> int:
        other = (blow.place + 2) % NODES
        self._lose([blow.place])
        self._wait_for_size(NODES - 1)
        self._gang.start(blow.place)
        self._pause(blow.delay_s)
        self._lose([other])
        self._gang.start(other)
        return 2

    def _lose_a_joiner(self, blow: Blow) -> int:
        self._lose([blow.place])
        self._wait_for_size(NODES - 1)
        self._gang.start(blow.place)
        self._pause(blow.delay_s)
        self._lose([blow.place])
        self._gang.start(blow.place)
        return 2

    def _lose_another_in_a_hand_over(self, blow: Blow) -> int:
        other = (blow.place + 1) % NODES
        self._mark()
        self._gang.processes[blow.place].send_signal(signal.SIGTERM)
        self._pause(blow.delay_s)
        self._lose([other])
        self._gang.start(other)
        return 2

    def _give_notice(self, blow: Blow) -> int:
        """Gives one node a notice; `wait` starts its replacement when it has ended."""
        self._mark()
        before = read_lines(self._gang)[-1]["step"]
        self._gang.processes[blow.place].send_signal(signal.SIGTERM)
        self.wait(lambda: self._list_starts())
        restored = self._list_starts()[0]["step"]
        if restored < before:
            self.wrong.append(
                f"{blow}: step {before} was done, {restored} is restored\n{self._gang.logs()}"
            )
        return 1

    def settle(self) -> None:
        """Waits until all nodes have done a step together after the newest start."""

        def is_whole() -> bool:
            starts = self._list_starts()
            if not starts or starts[-1]["size"] != NODES:
                return False
            last = read_lines(self._gang)[-1]  # after the starts, so that there is one
            return last["size"] == NODES and not last.get("start")

        self.wait(is_whole)

    def _list_starts(self) -> list[dict[str, Any]]:
        """Returns the starts since the last loss or notice."""
        lines = read_lines(self._gang)[self._first_line :]
        return [line for line in lines if line.get("start")]

    def _mark(self) -> None:
        super()._mark()
        self._first_line = len(read_lines(self._gang))

    def _wait_for_size(self, size: int) -> None:
        """Waits until the others have started with this size; nothing if there are none."""
        lost_places = set(self._exit_codes())
        deadline = time.monotonic() + SILENT_S
        while size and not any(line["size"] <= size for line in self._list_starts()):
            if self._gang.of("exit"):
                raise Over
            # Survivors that ended with the lost ones would leave the gang waiting forever.
            other_places = set(self._exit_codes()) - lost_places
            if other_places or time.monotonic() > deadline:
                return
            self.commits.note()
            time.sleep(0.1)

    def _pause(self, delay_s: float, *, spare: int = -1) -> None:
        end = time.monotonic() + delay_s
        while time.monotonic() < end:
            if self._gang.of("exit"):
                raise Over
            self.commits.note()
            time.sleep(0.02)

    def take_findings(self) -> dict[str, Any]:
        """Returns the findings since the last call."""
        lines = read_lines(self._gang)
        new_lines = lines[self._compared :]
        starts = 0
        for line in new_lines:
            if line.get("start"):
                starts += 1
            expected = self._reference[line["step"]]
            if line["digest"] != expected:
                self.wrong.append(f"{line} has other bits\n{self._gang.logs()}")
        wrong = [*self.wrong]
        zombies = self.commits.of_zombies()[self._zombies :]
        self.wrong.clear()
        self._compared = len(lines)
        self._zombies += len(zombies)
        return {
            "wrong": wrong,
            "zombies": zombies,
            "starts": starts,
        }

    def strike_and_record(self, blow: Blow) -> Resized:
        first_line = len(read_lines(self._gang))
        kills = self.strike(blow)
        self.settle()
        sizes: list[int] = []
        for line in read_lines(self._gang)[first_line:]:
            if line.get("start"):
                sizes.append(line["size"])
        return Resized(
            **self.take_findings(),
            kind=blow.kind,
            kills=kills,
            sizes=sizes,
        )


@dataclass(kw_only=True)
class Lane:
    folder: Path
    reference: dict[int, str]
    """The digest of the state, by step."""
    results: Records
    on_disk: bool = False
    """True if nodes keep copies in a folder."""
    server: ForkServer | None = None
    """The fork server of the nodes; None: one of its own."""

    def play(self, blows: Iterator[Blow]) -> None:
        """Strikes gangs, one after the other."""
        waiting = list[Blow]()
        with serve_modules(MODULES, self.server) as server:
            for number in count(1):
                folder = self.folder / f"{self.folder.name}-{number}"
                disk = folder / "disk"
                disk.mkdir(parents=True)
                options = SETTINGS | {
                    "copies_folder": str(disk) if self.on_disk else "",
                    "enough": str(folder / "enough"),
                }
                gang = ShardedGang(folder, server, nodes=NODES, **options)
                with closing(gang):
                    if not self._strike_until_over(gang, blows, waiting):
                        return

    def _strike_until_over(
        self, gang: ShardedGang, blows: Iterator[Blow], waiting: list[Blow]
    ) -> bool:
        """Strikes a gang until it ends; returns False if no blow remains.

        A blow during which a gang ends is repeated in the next gang.
        """
        play = Play(gang, self.reference)
        stuck = ""
        blow = None
        try:
            play.settle()
            while blow := waiting.pop() if waiting else next(blows, None):
                self.results.add(play.strike_and_record(blow))
            Path(gang.settings["enough"]).touch()
            play.wait(lambda: False)
        except Over:
            if blow:
                waiting.append(blow)
        except Stuck as error:
            stuck = f"{error}\n{gang.logs()}"
        finally:
            play.close()
        self.results.add(Found(**play.take_findings(), stuck=stuck))
        return blow is not None
