"""One lane of the kill matrix: a run is killed again and again until it is done, then compared to
the last bit.

Every start leaves one JSON line in the results, which the lanes share. Bits alone prove no restore:
a run that begins again at step 0 each time ends with the same ones. So each start also notes what
it lost.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import psutil

from holdfast.checkpoint.failpoints import POINTS
from holdfast.vocabulary.environment import ENV_KILL_AT
from workloads.library.tests.bench.result import ended, options
from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.processes import alive, each, family
from workloads.library.tests.training.runs import PATIENCE_S, Event, Run
from workloads.library.tests.training.warm import Fork

TARGETS = ("rank 0", "rank 1", "agent", "uploader", "all")
STEPS = 60
EVERY = 4
# An interval, a save in flight, and one that went down with its uploader.
LOST_STEPS_MAX = 3 * EVERY
OPTIONS = ("--set", "batch=4", "--set", "keep=2")
# what the pod's first process may leave; never a bug, never success
ENDS_BY_POWER_LOSS = {75, 137, 143}


@dataclass(frozen=True, kw_only=True, slots=True)
class Kill:
    target: str
    """One of TARGETS, or a named point."""
    after_steps: int = 0
    """At a point: when it is reached for the n-th time."""
    delay_s: float = 0.0

    @property
    def is_point(self) -> bool:
        return self.target in POINTS


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """What one start with one kill came to."""

    target: str
    struck: bool
    lost_steps: int | None
    """Steps done again after the restore; None where no restore came to its end, or nothing was
    done before.
    """
    restored: int | None = None
    """Step that was restored; 0: none was there."""
    committed: int = 0
    """The newest commit reported before this start."""
    wrong: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    run: str
    differing: str = ""


T = TypeVar("T")


@dataclass
class Records:
    """An append-only file of lines, shared by the lanes."""

    path: Path

    def add(self, record: Any) -> None:
        """`record`: a dataclass."""
        with self.path.open("a") as file:
            file.write(json.dumps({type(record).__name__: asdict(record)}) + "\n")

    def of(self, kind: type[T]) -> list[T]:
        text = self.path.read_text() if self.path.exists() else ""
        lines = map(json.loads, text.rpartition("\n")[0].splitlines())
        return [kind(**line[kind.__name__]) for line in lines if kind.__name__ in line]


def played(
    about: str | None,
    play: Callable[..., None],
    verdict: Callable[[Records, int], dict[str, Any]],
    *,
    kills: int,
) -> NoReturn:
    """The command line of a kill matrix."""
    o = options(about, kills=kills, seed=1)
    with tempfile.TemporaryDirectory(prefix="holdfast-kills-") as folder:
        results = Records(Path(folder) / "results.jsonl")
        play(Path(folder), results, kills=o.kills, seed=o.seed)
        found = verdict(results, o.kills)
    ended(found, found.pop("goals"))


def side_by_side(lanes: int, lane: Callable[[int], object]) -> None:
    """Each in a fork, by its number."""
    forks = [Fork(partial(lane, number)) for number in range(lanes)]
    if any([fork.wait() for fork in forks]):
        raise RuntimeError("a lane ended early")


def share(
    plan: Iterator[Any],
    lane: int,
    lanes: int,
    over: Callable[[], bool],
) -> Iterator[Any]:
    """One lane's part of an endless plan, until it is over."""
    for planned in islice(plan, lane, None, lanes):
        if over():
            return
        print(f"next: {planned}", file=sys.stderr, flush=True)
        yield planned


@dataclass(kw_only=True)
class Lane:
    folder: Path
    reference: Run
    results: Records
    server: ForkServer
    _runs: int = 0

    def play(self, kills: Iterator[Kill]) -> None:
        run = self._new_run()
        for kill in kills:
            if self._strike(run, kill):
                self._compare(run)
                run = self._new_run()
        before = run.events()
        run.env = {}
        code = run.complete()
        self._note(run, Kill(target="nothing"), before, struck=False)
        if code == 0:
            self._compare(run)
        else:
            self.results.add(
                Comparison(run=run.folder.name, differing=f"did not resume: {run.log()[-600:]}")
            )

    def _new_run(self) -> Run:
        self._runs += 1
        return new_run(self.server, self.folder / f"killed-{self._runs}")

    def _compare(self, run: Run) -> None:
        differing = ""
        try:
            if run.digest != self.reference.digest or run.losses() != self.reference.losses():
                differing = run.digest
        except AssertionError as error:  # one step, two losses
            differing = str(error)
        self.results.add(Comparison(run=str(run.folder), differing=differing))

    def _strike(self, run: Run, kill: Kill) -> bool:
        """One start of the run with one kill; true when the run came to its end nevertheless."""
        before = run.events()
        run.env = {ENV_KILL_AT: f"{kill.target}:{kill.after_steps}" if kill.is_point else ""}
        with run.started() as process:
            if kill.is_point:
                struck = _at_point(process)
            else:
                struck = _at_random(run, process, kill, len(before))
            code = process.wait(PATIENCE_S)
        code = 128 - code if code < 0 else code
        if kill.is_point and code == 0:
            struck = False  # an uploader that ends with its run looks like one that died
        fine = code in ENDS_BY_POWER_LOSS if struck and kill.target != "uploader" else code == 0
        self._note(
            run,
            kill,
            before,
            struck=struck,
            wrong="" if fine else f"{kill}: exit {code}: {run.log()[-600:]}",
        )
        return code == 0

    def _note(
        self,
        run: Run,
        kill: Kill,
        before: list[Event],
        *,
        struck: bool,
        wrong: str = "",
    ) -> None:
        """`before`: what the run had reported when the start began."""
        restored = [
            event["step"] for event in run.events()[len(before) :] if event["event"] == "restore"
        ]
        reached = max(
            (event["last_step"] for event in before if event["event"] == "window"), default=0
        )
        self.results.add(
            Start(
                target=kill.target,
                struck=struck,
                lost_steps=max(0, reached - restored[0]) if restored and reached else None,
                restored=restored[0] if restored else None,
                committed=max(
                    (event["step"] for event in before if event["event"] == "commit"), default=0
                ),
                wrong=wrong,
            )
        )


def new_run(server: ForkServer | None, folder: Path) -> Run:
    return Run(
        folder=folder,
        steps=STEPS,
        every=EVERY,
        options=OPTIONS,
        server=server,
    )


def _at_random(
    run: Run,
    process: subprocess.Popen[str],
    kill: Kill,
    begun: int,
) -> bool:
    """Wait until this start has done its steps, then kill; false when the run was over before."""
    until = time.monotonic() + PATIENCE_S
    while sum(e["event"] == "window" for e in run.events()[begun:]) < kill.after_steps:
        if process.poll() is not None or time.monotonic() > until:
            return False
        time.sleep(0.005)
    time.sleep(kill.delay_s)  # part of the plan: moves the kill off the moment of the report
    return process.poll() is None and _kill_target(process.pid, kill.target)


def _at_point(process: subprocess.Popen[str]) -> bool:
    """Wait for the death at the point. An uploader's death takes the pod along: the machine is
    gone.

    False when the run ended by itself before the point was reached as often as planned.
    """
    until = time.monotonic() + PATIENCE_S
    known = set[psutil.Process]()
    while process.poll() is None and time.monotonic() < until:
        ranks, uploaders = _pod(process.pid)
        living = {p for p in uploaders if alive(p)}
        if known - living and len(ranks) == 2 and all(alive(r) for r in ranks):
            return _kill_target(process.pid, "all")
        known |= living
        time.sleep(0.02)
    return process.poll() != 0


def _kill_target(agent: int, target: str) -> bool:
    ranks, uploaders = _pod(agent)
    victims = {
        "rank 0": ranks[:1],
        "rank 1": ranks[1:2],
        "agent": family(agent)[:1],
        "uploader": uploaders[:1],
        "all": [*family(agent)[:1], *ranks, *uploaders],
    }[target]
    there = [victim for victim in victims if victim.is_running()]
    each(there, psutil.Process.kill)
    return bool(there)


def _pod(agent: int) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """The ranks of an agent and their uploaders."""
    uploaders = list[psutil.Process]()
    try:
        ranks = sorted(psutil.Process(agent).children(), key=lambda p: p.pid)
    except psutil.NoSuchProcess:
        return [], []
    for rank in ranks:
        with suppress(psutil.NoSuchProcess):
            uploaders += rank.children()
    return ranks, uploaders
