"""Steps of one rank during an upload while another core is idle, with controls.

Started by workloads.library.tests.bench.checkpoint with RANK and the like set, and its settings as
JSON. The controls show the share of the machine in a slowdown. `nothing` repeats the quiet steps,
so its ratio is the noise. `spin` runs a loop that touches no memory on the other core, so its ratio
is the cost of any neighbor: sibling threads of one core share its units and clock. `copy` saves
the same bytes without a library: its ratio is the cost of the copy, the memory and the disk.
"""

import random
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from holdfast.report.capacity import percentile
from workloads.library.tests.bench.checkpoints.bare import BareCopy
from workloads.library.tests.bench.checkpoints.methods import Holdfast, Method
from workloads.library.tests.bench.checkpoints.rank import Step, make_state, run, warm_up
from workloads.library.tests.processes import spinning

STEPS = 30
RESAMPLES = 1000


Round = list[float]
"""The seconds of each step."""


def run_during_save(save: Method, number: int, step: Step) -> Round:
    steps_s: Round = []
    save.begin(number)
    while save.busy():
        steps_s.append(step.run())
    save.finish()
    return steps_s


def measure(folder: Path, mib: int, rounds: int) -> dict[str, dict[str, Any]]:
    step = Step()
    state = make_state(mib)
    method = Holdfast(folder, state)
    bare = BareCopy(folder, state.values(), training_threads=torch.get_num_threads())

    def run_alone() -> Round:
        return [step.run() for _ in range(STEPS)]

    def run_beside_spinner(_: int) -> Round:
        with spinning():
            return run_alone()

    warm_up(step)
    kinds: dict[str, Callable[[int], Round]] = {
        "upload": lambda number: run_during_save(method, number, step),
        "copy": lambda number: run_during_save(bare, number, step),
        "nothing": lambda _: run_alone(),
        "spin": run_beside_spinner,
    }
    quiet_rounds: dict[str, list[Round]] = {}
    for kind in kinds:
        quiet_rounds[kind] = []
    busy_rounds: dict[str, list[Round]] = {}
    for kind in kinds:
        busy_rounds[kind] = []
    for number in range(2, 2 + rounds):
        for kind, run_steps in kinds.items():
            quiet_rounds[kind].append(run_alone())
            busy_rounds[kind].append(run_steps(number))
    method.close()
    bare.close()
    figures = {}
    for kind in kinds:
        figures[kind] = ratio(busy_rounds[kind], quiet_rounds[kind])
    return figures | {"upload over copy": ratio(busy_rounds["upload"], busy_rounds["copy"])}


def ratio(rounds: Sequence[Round], controls: Sequence[Round]) -> dict[str, Any]:
    """Returns the ratio of the 95th percentiles, and its 95 % interval by resampling rounds.

    A round is drawn with its control: one followed the other, so a noisy minute met both.
    """
    generator = random.Random(0)
    pairs = list(zip(rounds, controls, strict=True))

    def resample() -> float:
        some_rounds, some_controls = zip(*generator.choices(pairs, k=len(pairs)), strict=True)
        return _p95(some_rounds) / _p95(some_controls)

    ratios = sorted(resample() for _ in range(RESAMPLES))
    low = ratios[int(0.025 * RESAMPLES)]
    high = ratios[int(0.975 * RESAMPLES)]
    interval = low, high
    return {"p95": _p95(rounds) / _p95(controls), "p95_95_percent": interval}


def _p95(rounds: Sequence[Round]) -> float:
    return percentile(sorted(chain.from_iterable(rounds)), 95)


if __name__ == "__main__":
    run(lambda folder, settings: measure(folder, settings["mib"], settings["rounds"]))
