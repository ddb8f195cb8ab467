"""Steps of one rank beside an upload, where another core is idle, with controls that tell what the
machine adds.

Started by workloads.library.tests.bench.checkpoint with RANK and the like set, and its settings as
JSON. `nothing` repeats the quiet steps, so its ratio is the noise; `spin` runs a loop that touches
no memory on the other core, so its ratio is what any neighbour costs here: sibling threads of one
core share its units and clock. `copy` saves the same bytes without a library: its ratio is what the
copy, the memory and the disk cost.
"""

import random
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from holdfast.report.capacity import at
from workloads.library.tests.bench.checkpoints.bare import BareCopy
from workloads.library.tests.bench.checkpoints.methods import Holdfast, Method
from workloads.library.tests.bench.checkpoints.rank import Step, make_state, run, warm_up

STEPS = 30
RESAMPLES = 1000


Round = list[float]
"""Seconds of each step."""


@contextmanager
def spinning() -> Generator[None]:
    program = "print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


def beside(save: Method, number: int, step: Step) -> Round:
    found: Round = []
    save.begin(number)
    while save.busy():
        found.append(step.run())
    save.finish()
    return found


def measure(folder: Path, mib: int, rounds: int) -> dict[str, dict[str, Any]]:
    step = Step()
    state = make_state(mib)
    method = Holdfast(folder, state)
    bare = BareCopy(folder, state.values(), training_threads=torch.get_num_threads())

    def quiet() -> Round:
        return [step.run() for _ in range(STEPS)]

    def beside_a_spinner(_: int) -> Round:
        with spinning():
            return quiet()

    warm_up(step)
    kinds: dict[str, Callable[[int], Round]] = {
        "upload": lambda number: beside(method, number, step),
        "copy": lambda number: beside(bare, number, step),
        "nothing": lambda _: quiet(),
        "spin": beside_a_spinner,
    }
    alone: dict[str, list[Round]] = {kind: [] for kind in kinds}
    beside_it: dict[str, list[Round]] = {kind: [] for kind in kinds}
    for number in range(2, 2 + rounds):
        for kind, steps in kinds.items():
            alone[kind].append(quiet())
            beside_it[kind].append(steps(number))
    method.close()
    bare.close()
    figures = {kind: ratio(beside_it[kind], alone[kind]) for kind in kinds}
    return figures | {"upload over copy": ratio(beside_it["upload"], beside_it["copy"])}


def ratio(ours: Sequence[Round], others: Sequence[Round]) -> dict[str, Any]:
    """Of the 95th percentiles, with what 95 of 100 such benches would show, by resampling whole
    rounds.

    A round of both at a time: one followed the other, so a noisy minute met both.
    """
    generator = random.Random(0)

    def one() -> float:
        rounds = generator.choices(range(len(ours)), k=len(ours))
        return _p95([ours[i] for i in rounds]) / _p95([others[i] for i in rounds])

    found = sorted(one() for _ in range(RESAMPLES))
    span = found[int(0.025 * RESAMPLES)], found[int(0.975 * RESAMPLES)]
    return {"p95": _p95(ours) / _p95(others), "p95_95_percent": span}


def _p95(rounds: Sequence[Round]) -> float:
    return at(sorted(one for found in rounds for one in found), 95)


if __name__ == "__main__":
    run(lambda folder, given: measure(folder, given["mib"], given["rounds"]))
