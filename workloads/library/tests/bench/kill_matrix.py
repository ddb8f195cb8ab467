"""`python -m workloads.library.tests.bench.kill_matrix [--kills N] [--seed S]`: power losses at
random moments and at named points.

A run is killed again and again until it is done; then its loss curve and its digest are held
against those of a run that nothing disturbed, to the last bit. Kills hit a rank, the agent, the
uploader or all of them, after a random number of steps, or the process that reaches a named point
of staging, upload, commit, restore or retention. Two runs at a time, each forked from its own
import of torch.
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
    played,
    share,
    side_by_side,
)
from workloads.library.tests.training.runs import run_server

LANES = 2
MAY_GO_UNREACHED = ("retention.uncommitted",)  # needs an abandoned attempt of a certain age


def plan(kills: int, seed: int) -> list[Kill]:
    """Every point in turn and random moments for every target, shuffled by the seed."""
    rng = random.Random(seed)
    chosen = []
    for n, point in enumerate(itertools.islice(itertools.cycle(POINTS), kills // 3)):
        chosen.append(Kill(target=point, after_steps=1 + n // len(POINTS)))
    for target in itertools.islice(itertools.cycle(TARGETS), kills - len(chosen)):
        chosen.append(
            Kill(
                target=target,
                after_steps=rng.randint(1, 9),
                delay_s=rng.uniform(0, 0.1),
            )
        )
    rng.shuffle(chosen)
    return chosen


def endless(kills: int, seed: int) -> Iterator[Kill]:
    """Some kills fall due after their run has ended; the next seeds' plans make up for them."""
    return itertools.chain.from_iterable(plan(kills, later) for later in itertools.count(seed))


def play(folder: Path, results: Records, *, kills: int, seed: int) -> None:
    reference = new_run(None, folder / "undisturbed")
    if reference.complete() != 0:
        raise RuntimeError(f"the undisturbed run failed:\n{reference.log()}")

    def over() -> bool:
        return sum(start.struck for start in results.of(Start)) >= kills

    def lane(number: int) -> None:
        mine = share(endless(kills, seed), number, LANES, over)
        with run_server() as server:
            Lane(
                folder=folder / f"lane-{number}",
                reference=reference,
                results=results,
                server=server,
            ).play(mine)

    side_by_side(LANES, lane)


def verdict(results: Records, wanted: int) -> dict[str, object]:
    starts = results.of(Start)
    comparisons = results.of(Comparison)
    wrong = [start.wrong for start in starts if start.wrong]
    differing = [comparison for comparison in comparisons if comparison.differing]
    struck = [start.target for start in starts if start.struck]
    restored = [(start.restored, start.committed) for start in starts if start.restored is not None]
    lost = max((start.lost_steps or 0 for start in starts), default=0)
    return {
        "schema": "holdfast.bench.kill-matrix/1",
        "kills": len(struck),
        "kills_by_target": Counter(struck),
        "runs_compared": len(comparisons),
        "lost_steps_max": lost,
        "restores": sum(step > 0 for step, _ in restored),
        "wrong": wrong[:5],
        "differing": [f"{each.run}: {each.differing}" for each in differing[:5]],
        "goals": {
            f"at_least_{wanted}_kills": len(struck) >= wanted,
            "every_target_and_point_hit": set(struck) >= {*TARGETS, *POINTS} - {*MAY_GO_UNREACHED},
            "resume_always_works": not wrong,
            "restores_happened": any(step > 0 for step, _ in restored),
            "newest_commit_never_moves_back": all(
                step >= committed for step, committed in restored
            ),
            "lost_at_most_an_interval_and_what_was_in_flight": lost <= LOST_STEPS_MAX,
            "loss_curve_and_parameters_bit_exact": bool(comparisons) and not differing,
        },
    }


if __name__ == "__main__":
    played(__doc__, play, verdict, kills=200)
