"""`python -m workloads.library.tests.bench.stranger_kills [--kills N] [--only NAME ...] [--minutes M]`: power losses of strangers' scripts.

A loop in the manner of nanoGPT, and the scripts of Hugging Face, Lightning and Accelerate as two ranks each, all forked
from one import of torch and of the frameworks. A run is killed by SIGKILL at random moments, some with their uploaders and some without,
until it is done; then each of its losses and its last bits are held against a run that nothing disturbed. Prints a
table, then one JSON line with the goals.
"""

import argparse
import json
import multiprocessing as mp
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.tools import frameworks
from workloads.library.tests.bench import stranger_loop
from workloads.library.tests.bench.processes import kill_family
from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.training.frameworks.gang import Gang, fork_server

KILLS, KILLS_OF_A_FRAMEWORK = 200, 50
STEPS, LOOP_STEPS = 24, 60
PATIENCE_S = 180.0
SCRIPTS = {
    "Hugging Face": "hf_script.py",
    "Lightning": "lightning_script.py",
    "Accelerate": "accelerate_script.py",
}
LOOP = "loop of one's own"


@dataclass(kw_only=True)
class Tally:
    kills: int = 0
    runs: int = 0
    """That came to their end and were compared."""
    differing: list[str] = field(default_factory=list)


class Run(Protocol):
    def printed(self) -> list[str]:
        """Every line of every start so far."""

    def start(self, kill_after: int, delay_s: float, rng: random.Random) -> bool:
        """One start, killed `delay_s` after it has done some steps; false when it came to its end before."""


def play(make: Any, folder: Path, kills: int, seed: int, until: float) -> Tally:
    """Runs, each killed until it is done, until there were enough kills or the time is up."""
    whole = make(folder / "undisturbed")
    while whole.start(10**9, 0, random.Random(0)):
        pass
    truth, tally = sorted(set(whole.printed())), Tally()
    for number in range(seed, 10**9):
        if tally.kills >= kills or time.monotonic() > until:
            break
        rng, run = random.Random(number), make(folder / f"run-{number}")
        while run.start(rng.randint(1, 9), rng.uniform(0, 0.2), rng):
            tally.kills += 1
            print(f"{folder.name}: {tally.kills} kills", file=sys.stderr, flush=True)
        tally.runs += 1
        # A step done twice must have printed the same twice, so a set holds every difference there is.
        found = sorted(set(run.printed()))
        if found != truth:
            tally.differing.append(f"run {number}: {sorted(set(found) ^ set(truth))[:4]}")
    return tally


class LoopRun:
    context = mp.get_context("forkserver")

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder, self._out = folder, folder / "out"

    def printed(self) -> list[str]:
        # The last line of a killed start may be torn; the step is printed again by the next.
        lines = self._out.read_text().splitlines() if self._out.exists() else []
        return [line for line in lines if line.startswith("digest ") or len(line.split()) == 4]

    def start(self, kill_after: int, delay_s: float, rng: random.Random) -> bool:
        arguments = (str(self._folder / "url"), LOOP_STEPS, self._out)
        began, process = len(self.printed()), self.context.Process(target=quiet_main, args=arguments)
        process.start()
        while process.is_alive() and len(self.printed()) < began + kill_after:
            process.join(0.005)
        process.join(delay_s)
        if not process.is_alive():
            assert process.exitcode == 0, f"a start ended with {process.exitcode}: {self._folder}"
            return False
        if rng.random() < 0.5:
            kill_family(process.pid)  # with its uploader
        process.kill()
        process.join()
        return True


def quiet_main(url: str, steps: int, out: Path) -> None:
    sys.stderr = out.with_name("err").open("a")  # for the process's whole life
    stranger_loop.main(url, steps, out)


class GangRun:
    """Two ranks of a framework's script."""

    def __init__(self, script: str, site: Path, folder: Path, server: ForkServer) -> None:
        path = Path(__file__).parents[1] / "training/frameworks" / script
        folder.mkdir(parents=True)
        self._gang = Gang(path, site=site, folder=folder, steps=STEPS, server=server)
        self._lines = list[str]()

    def printed(self) -> list[str]:
        return self._lines

    def start(self, kill_after: int, delay_s: float, rng: random.Random) -> bool:
        if kill_after > STEPS:
            self._lines += self._gang.complete()[-1:]
            return False
        struck, lines = self._gang.killed(kill_after, delay_s, with_uploader=rng.random() < 0.5)
        if not struck:
            self._lines += lines[-1:]
        return struck


def lanes(folder: Path, only: list[str]) -> Iterator[tuple[str, Any]]:
    if LOOP in only:
        yield LOOP, LoopRun
    scripts = {name: script for name, script in SCRIPTS.items() if name in only}
    if scripts:
        site = frameworks.install()
        server = fork_server(site)
        for name, script in scripts.items():
            yield name, lambda folder, script=script: GangRun(script, site, folder, server)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--framework-kills", type=int, default=KILLS_OF_A_FRAMEWORK)
    parser.add_argument("--only", nargs="*", choices=(LOOP, *SCRIPTS), default=[LOOP, *SCRIPTS])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="for each script")
    options = parser.parse_args()
    LoopRun.context.set_forkserver_preload(
        ["torch._dynamo", "holdfast.checkpoint.checkpointer", stranger_loop.__name__]
    )
    tallies: dict[str, Tally] = {}
    with tempfile.TemporaryDirectory(prefix="holdfast-kills-") as folder:
        for name, make in lanes(Path(folder), options.only):
            kills = options.kills if name == LOOP else options.framework_kills
            until = time.monotonic() + options.minutes * 60
            tallies[name] = play(make, Path(folder) / name.replace(" ", "-"), kills, options.seed, until)
            print(f"{name:20s}{tallies[name].kills:5d} kills, {tallies[name].runs} runs, {tallies[name].differing}")
    goals = {f"{name}: every bit": tally.runs > 0 and not tally.differing for name, tally in tallies.items()}
    wanted = {name: options.kills if name == LOOP else options.framework_kills for name in tallies}
    goals |= {f"{name}: {wanted[name]} kills": tally.kills >= wanted[name] for name, tally in tallies.items()}
    figures = {name: asdict(tally) for name, tally in tallies.items()}
    print(json.dumps({"schema": "holdfast.bench.stranger-kills/1", "scripts": figures, "goals": goals}))
    sys.exit(0 if all(goals.values()) else 1)


if __name__ == "__main__":
    main()
