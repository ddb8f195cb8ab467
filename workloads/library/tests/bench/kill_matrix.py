"""Power losses of a training run, at random moments and at named points.

    python -m workloads.library.tests.bench.kill_matrix [--kills N] [--seed S]

A run is killed again and again until it is done; then its loss curve and its digest must equal
those of an undisturbed run bit for bit. Kills hit a rank, the agent, the uploader or all of them
after a random number of steps, or the process that reaches a named point of staging, upload,
commit, restore or retention. Two runs go on at a time, each forked from its own import of torch.
"""

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from holdfast.checkpoint.failpoints import POINTS
from workloads.library.tests.bench.kill_lane import (
    LOST_STEPS_MAX,
    TARGETS,
    Comparison,
    Kill,
    Lane,
    Records,
    Start,
    new_run,
    run_command,
    share,
    side_by_side,
)
from workloads.library.tests.training.runs import run_server

LANES = 2
MAY_GO_UNREACHED = ("retention.uncommitted",)  # needs an abandoned attempt of a certain age


def plan(kills: int, seed: int) -> list[Kill]:
    """Plans every point in turn and random moments for every target, shuffled by the seed."""
    rng = random.Random(seed)
    kills_planned = []
    for n, point in enumerate(itertools.islice(itertools.cycle(POINTS), kills // 3)):
        kills_planned.append(Kill(target=point, after_steps=1 + n // len(POINTS)))
    for target in itertools.islice(itertools.cycle(TARGETS), kills - len(kills_planned)):
        kills_planned.append(
            Kill(
                target=target,
                after_steps=rng.randint(1, 9),
                delay_s=rng.uniform(0, 0.1),
            )
        )
    rng.shuffle(kills_planned)
    return kills_planned


def endless(kills: int, seed: int) -> Iterator[Kill]:
    """Yields kills without end: some fall due after their run ended, so later seeds follow."""
    return itertools.chain.from_iterable(plan(kills, later) for later in itertools.count(seed))


def play(folder: Path, results: Records, *, kills: int, seed: int) -> None:
    reference = new_run(None, folder / "undisturbed")
    if reference.complete() != 0:
        raise RuntimeError(f"the undisturbed run failed:\n{reference.log()}")

    def over() -> bool:
        return sum(start.struck for start in results.of(Start)) >= kills

    def lane(number: int) -> None:
        kills_of_lane = share(endless(kills, seed), number, LANES, over)
        with run_server() as server:
            Lane(
                folder=folder / f"lane-{number}",
                reference=reference,
                results=results,
                server=server,
            ).play(kills_of_lane)

    side_by_side(LANES, lane)


def verdict(results: Records, minimum: int) -> dict[str, object]:
    starts = results.of(Start)
    comparisons = results.of(Comparison)
    differing = []
    for comparison in comparisons:
        if comparison.differing:
            differing.append(f"{comparison.run}: {comparison.differing}")
    wrong = []
    struck = []
    moved_back = []
    lost_steps = 0
    restored = 0
    for start in starts:
        lost_steps = max(lost_steps, start.lost_steps or 0)
        if start.wrong:
            wrong.append(start.wrong)
        if start.struck:
            struck.append(start.target)
        if start.restored is None:
            continue
        restored += start.restored > 0
        if start.restored < start.committed:
            moved_back.append(start)
    return {
        "schema": "holdfast.bench.kill-matrix/1",
        "kills": len(struck),
        "kills_by_target": Counter(struck),
        "runs_compared": len(comparisons),
        "lost_steps_max": lost_steps,
        "restores": restored,
        "wrong": wrong[:5],
        "differing": differing[:5],
        "goals": {
            f"at_least_{minimum}_kills": len(struck) >= minimum,
            "every_target_and_point_hit": set(struck) >= {*TARGETS, *POINTS} - {*MAY_GO_UNREACHED},
            "resume_always_works": not wrong,
            "restores_happened": restored > 0,
            "newest_commit_never_moves_back": not moved_back,
            "lost_at_most_an_interval_and_what_was_in_flight": lost_steps <= LOST_STEPS_MAX,
            "loss_curve_and_parameters_bit_exact": bool(comparisons) and not differing,
        },
    }


if __name__ == "__main__":
    run_command(__doc__, play, verdict, kills=200)
