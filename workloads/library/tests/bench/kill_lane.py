"""One lane of the kill matrix: kills a run until it is done, then compares it bit for bit.

Every start leaves one JSON line in the results, which the lanes share. Equal bits alone prove no
restore: a run that begins again at step 0 each time ends with the same ones. So each start also
notes the steps that it lost.
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
from workloads.library.tests.bench.result import finish, options
from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.processes import alive, each, family
from workloads.library.tests.training.runs import PATIENCE_S, Event, Run
from workloads.library.tests.training.warm import Fork

TARGETS = ("rank 0", "rank 1", "agent", "uploader", "all")
STEPS = 60
EVERY = 4
# An interval, a save in flight, and a save that died with its uploader.
LOST_STEPS_MAX = 3 * EVERY
OPTIONS = ("--set", "batch=4", "--set", "keep=2")
# Exit codes of a pod's first process after a power loss: neither a bug nor success.
ENDS_BY_POWER_LOSS = {75, 137, 143}


@dataclass(frozen=True, kw_only=True, slots=True)
class Kill:
    target: str
    """One of TARGETS, or a named point."""
    after_steps: int = 0
    """Steps before the kill; for a named point, the number of times that it is reached."""
    delay_s: float = 0.0

    @property
    def is_point(self) -> bool:
        return self.target in POINTS


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """The result of one start with one kill."""

    target: str
    struck: bool
    lost_steps: int | None
    """Steps repeated after the restore; None if no restore finished or no step was done before."""
    restored: int | None = None
    """Step that was restored; 0 if there was no checkpoint."""
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
    """An append-only file of JSON lines, shared by the lanes."""

    path: Path

    def add(self, record: Any) -> None:
        """Appends a dataclass, under the name of its class."""
        with self.path.open("a") as file:
            body = {type(record).__name__: asdict(record)}
            file.write(json.dumps(body) + "\n")

    def of(self, kind: type[T]) -> list[T]:
        text = self.path.read_text() if self.path.exists() else ""
        whole_lines = text.rpartition("\n")[0].splitlines()
        records = list[T]()
        for line in whole_lines:
            record = json.loads(line)
            if kind.__name__ in record:
                records.append(kind(**record[kind.__name__]))
        return records


def run_command(
    about: str | None,
    play: Callable[..., None],
    verdict: Callable[[Records, int], dict[str, Any]],
    *,
    kills: int,
) -> NoReturn:
    """Runs the command line of a kill matrix, and exits."""
    arguments = options(about, kills=kills, seed=1)
    with tempfile.TemporaryDirectory(prefix="holdfast-kills-") as folder:
        results = Records(Path(folder) / "results.jsonl")
        play(Path(folder), results, kills=arguments.kills, seed=arguments.seed)
        figures = verdict(results, arguments.kills)
    goals = figures.pop("goals")
    finish(figures, goals)


def side_by_side(lanes: int, lane: Callable[[int], object]) -> None:
    """Runs `lane(number)` for each number below `lanes`, each in its own fork."""
    forks = []
    for number in range(lanes):
        forks.append(Fork(partial(lane, number)))
    codes = [fork.wait() for fork in forks]
    if any(codes):
        raise RuntimeError("a lane ended early")


def share(
    plan: Iterator[Any],
    lane: int,
    lanes: int,
    over: Callable[[], bool],
) -> Iterator[Any]:
    """Yields one lane's part of an endless plan until `over()` is true."""
    for entry in islice(plan, lane, None, lanes):
        if over():
            return
        print(f"next: {entry}", file=sys.stderr, flush=True)
        yield entry


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
        """Starts the run once, with one kill; returns whether the run completed nevertheless."""
        before = run.events()
        run.env = {ENV_KILL_AT: f"{kill.target}:{kill.after_steps}" if kill.is_point else ""}
        with run.started() as process:
            if kill.is_point:
                struck = _wait_for_point(process)
            else:
                struck = _kill_at_random(run, process, kill, len(before))
            code = process.wait(PATIENCE_S)
        code = 128 - code if code < 0 else code
        if kill.is_point and code == 0:
            struck = False  # an uploader that ends with its run looks like one that died
        allowed = ENDS_BY_POWER_LOSS if struck and kill.target != "uploader" else {0}
        wrong = "" if code in allowed else f"{kill}: exit {code}: {run.log()[-600:]}"
        self._note(run, kill, before, struck=struck, wrong=wrong)
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
        """Adds the result of a start; `before` are the events from earlier starts."""
        restored = next(_values(run.events()[len(before) :], "restore", "step"), None)
        reached = max(_values(before, "window", "last_step"), default=0)
        lost_steps = None
        if restored is not None and reached:
            lost_steps = max(0, reached - restored)
        self.results.add(
            Start(
                target=kill.target,
                struck=struck,
                lost_steps=lost_steps,
                restored=restored,
                committed=max(_values(before, "commit", "step"), default=0),
                wrong=wrong,
            )
        )


def _values(events: list[Event], kind: str, field: str) -> Iterator[int]:
    return (event[field] for event in events if event["event"] == kind)


def new_run(server: ForkServer | None, folder: Path) -> Run:
    return Run(
        folder=folder,
        steps=STEPS,
        every=EVERY,
        options=OPTIONS,
        server=server,
    )


def _kill_at_random(
    run: Run,
    process: subprocess.Popen[str],
    kill: Kill,
    first_event: int,
) -> bool:
    """Waits for the steps of this start, then kills; false if the run was over before."""
    deadline = time.monotonic() + PATIENCE_S
    while sum(1 for _ in _values(run.events()[first_event:], "window", "t")) < kill.after_steps:
        if process.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    time.sleep(kill.delay_s)  # part of the plan: moves the kill off the moment of the report
    return process.poll() is None and _kill_target(process.pid, kill.target)


def _wait_for_point(process: subprocess.Popen[str]) -> bool:
    """Waits for a process to die at the point.

    If an uploader dies, the rest of the pod is killed as well: that is the loss of the machine.
    Returns False if the run ended before the point was reached as often as planned.
    """
    deadline = time.monotonic() + PATIENCE_S
    earlier = set[psutil.Process]()
    while process.poll() is None and time.monotonic() < deadline:
        ranks, uploaders = _find_pod(process.pid)
        living = {uploader for uploader in uploaders if alive(uploader)}
        has_lost_uploader = bool(earlier - living)
        if has_lost_uploader and len(ranks) == 2 and all(alive(rank) for rank in ranks):
            return _kill_target(process.pid, "all")
        earlier |= living
        time.sleep(0.02)
    return process.poll() != 0


def _kill_target(agent: int, target: str) -> bool:
    ranks, uploaders = _find_pod(agent)
    targets = {
        "rank 0": ranks[:1],
        "rank 1": ranks[1:2],
        "agent": family(agent)[:1],
        "uploader": uploaders[:1],
        "all": [*family(agent)[:1], *ranks, *uploaders],
    }
    victims = [process for process in targets[target] if process.is_running()]
    each(victims, psutil.Process.kill)
    return bool(victims)


def _find_pod(agent: int) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """Returns the ranks of an agent and their uploaders; both are empty if the agent has ended."""
    uploaders = list[psutil.Process]()
    try:
        ranks = sorted(psutil.Process(agent).children(), key=lambda process: process.pid)
    except psutil.NoSuchProcess:
        return [], []
    for rank in ranks:
        with suppress(psutil.NoSuchProcess):
            uploaders += rank.children()
    return ranks, uploaders
