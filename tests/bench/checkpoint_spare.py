"""Steps of one rank beside an upload, where another core is idle, with two controls that tell what the machine adds.

Started by tests.bench.checkpoint with RANK and the like set; writes its figures as JSON to --out. `nothing`
repeats the quiet steps, so its ratio is the noise; `spin` runs a loop that touches no memory on the other
core, so its ratio is what any neighbour costs here: sibling threads of one core share its units and clock.
"""

import argparse
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from tests.bench.checkpoint_methods import Holdfast
from tests.bench.checkpoint_rank import Step, make_state, quantile, warm_up

STEPS = 30


@contextmanager
def spinning() -> Generator[None]:
    program = "print(flush=True)\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield
    finally:
        process.kill()
        process.communicate()


def beside_an_upload(method: Holdfast, number: int, step: Step) -> list[float]:
    method.begin(number)
    found: list[float] = []
    while method.busy():
        found.append(step.run())
    method.finish()
    return found


def measure(folder: Path, mib: int, rounds: int) -> dict[str, dict[str, float]]:
    step = Step()
    method = Holdfast(folder, make_state(mib))

    def quiet() -> list[float]:
        return [step.run() for _ in range(STEPS)]

    def beside_a_spinner() -> list[float]:
        with spinning():
            return quiet()

    warm_up(step)
    kinds: dict[str, Callable[[int], list[float]]] = {
        "upload": lambda number: beside_an_upload(method, number, step),
        "nothing": lambda _: quiet(),
        "spin": lambda _: beside_a_spinner(),
    }
    alone: dict[str, list[float]] = {kind: [] for kind in kinds}
    beside: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(2, 2 + rounds):
        for kind, run in kinds.items():
            alone[kind] += quiet()
            beside[kind] += run(number)
    method.close()
    return {kind: _ratios(beside[kind], alone[kind]) for kind in kinds}


def _ratios(beside: list[float], alone: list[float]) -> dict[str, float]:
    shares = {"median": 0.5, "p95": 0.95}
    found = {name: quantile(beside, share) / quantile(alone, share) for name, share in shares.items()}
    return found | {"steps": len(beside)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--mib", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    options.out.write_text(json.dumps(measure(options.folder, options.mib, options.rounds)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
