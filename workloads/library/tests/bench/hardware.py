"""Bit flips in one member's arithmetic, and restarts without any.

    python -m workloads.library.tests.bench.hardware [--sections S...] [--flips N] [--restarts N]

`flips` and `restarts` play gangs of three to eight members in one process, with real forward and
backward passes: one member is lost in a step, and the others do it again. A flip strikes before the
loss, after it, or in every try. `processes` plays gangs of real processes. `cost` is the processor
time of the digests next to that of the step.
"""

import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from holdfast.training.elastic.gradients import ExactGradientSum
from holdfast.training.elastic.shards import share
from holdfast.training.elastic.step_checks import StepChecks
from holdfast.training.gang.recomputation import digest_values
from holdfast.training.trainer.model import ByteGPT, ModelConfig, next_byte_loss
from workloads.library.tests.bench.gangs.faulty_arithmetic import CPU, Gang, Outcome, make_flip
from workloads.library.tests.bench.result import finish, judge_goals, options, run_sections
from workloads.library.tests.fork_server import serve_modules
from workloads.library.tests.training.elastic.gangs import CHILD
from workloads.library.tests.training.elastic.gangs import Gang as RealGang

SIZES = (3, 8)
STEPS_OF_A_GANG = 25
KINDS: dict[str, tuple[int, ...]] = {
    "before the loss": (0,),
    "after the loss": (1,),
    "in every try": tuple(range(100)),
}
# The try that the loss costs, and the one that follows it, are there without any comparison.
TRIES_OF_A_LOSS = 2
COST_MODEL = ModelConfig(context=128, width=256, layers=4, heads=4)
COST_ROUNDS = 15
COST_SHARDS = 48
COST_MEMBERS = 8
STEP = 12
GATE_STEPS = 20


def play(count: int, seed: int, kinds: tuple[str, ...]) -> Iterator[tuple[str, int, Outcome]]:
    """Yields the kind of flip, the faulty member (-1: none) and the outcome of each step."""
    rng = random.Random(seed)
    played = 0
    while played < count:
        size = rng.randint(*SIZES)
        gang = Gang(size=size, shards=size * rng.randint(1, 2), seed=rng.randrange(1 << 30))
        for _ in range(min(STEPS_OF_A_GANG, count - played)):
            lost_member, faulty = rng.sample(range(size), 2)
            kind = kinds[played % len(kinds)] if kinds else ""
            flip = make_flip(rng, gang, faulty, KINDS[kind]) if kind else None
            yield kind, faulty if flip else -1, gang.play(lost_member, flip)
            played += 1


def measure_flips(count: int, seed: int) -> dict[str, Any]:
    rows: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    extra_tries: list[int] = []
    wrong_bits = 0
    for kind, faulty, outcome in play(count, seed, tuple(KINDS)):
        row = rows[kind]
        row["flips"] += 1
        row["without effect"] += not outcome.is_effective
        row["named"] += outcome.named == faulty
        row["another named"] += outcome.named not in (None, faulty)
        is_missed = outcome.is_effective and outcome.named is None
        row["not named"] += is_missed
        # Of two members that remain, each may be the faulty one.
        row["not named, of two"] += is_missed and outcome.survivors == 2
        if outcome.named == faulty:
            extra_tries.append(outcome.tries - TRIES_OF_A_LOSS)
        wrong_bits += not outcome.is_right
    total = sum(rows.values(), Counter())
    effective = total["flips"] - total["without effect"]
    return {
        "flips": {kind: dict(row) for kind, row in rows.items()},
        "flips_played": total["flips"],
        "flips_with_effect": effective,
        "flips_named": total["named"],
        "another_named": total["another named"],
        "not_named": total["not named"],
        "not_named_of_two_members": total["not named, of two"],
        "share_named": round(total["named"] / max(1, effective), 4),
        "steps_applied_with_wrong_bits": wrong_bits,
        "more_steps_until_named": round(sum(extra_tries) / max(1, len(extra_tries)), 2),
        "most_more_steps": max(extra_tries, default=0),
    }


def measure_restarts(count: int, seed: int) -> dict[str, Any]:
    alarms = 0
    wrong_bits = 0
    more_tries = 0
    for _, _, outcome in play(count, seed + 1, ()):
        alarms += outcome.disputes > 0 or outcome.named is not None
        wrong_bits += not outcome.is_right
        more_tries += outcome.tries - TRIES_OF_A_LOSS
    return {
        "restarts_played": count,
        "false_alarms": alarms,
        "restarts_with_wrong_bits": wrong_bits,
        "more_steps_for_room_in_the_sum": more_tries,
    }


def measure_processes(count: int, seed: int) -> dict[str, Any]:
    """Plays gangs of four processes, of which one is killed; every other one has a flip."""
    rng = random.Random(seed)
    results = Counter[str]()
    with tempfile.TemporaryDirectory() as name, serve_modules((CHILD,), None) as server:
        folder = Path(name)
        options_of_gang: dict[str, Any] = {
            "steps": GATE_STEPS,
            "shards": 8,
            "gate_step": STEP,
            "every": 100,
        }
        single = RealGang(folder / "single", nodes=1, server=server, **options_of_gang)
        single.open_gate()
        with closing(single):
            digest = single.compute_digest()
        for number in range(count):
            faulty = rng.randrange(3) if number % 2 == 0 else None
            gang = RealGang(folder / str(number), nodes=4, server=server, **options_of_gang)
            with closing(gang):
                _play_death(gang, rng, faulty)
                named = [line["rank"] for line in gang.of("miscomputed")]
                results["with a flip" if faulty is not None else "without a flip"] += 1
                if faulty is None:
                    results["false alarms"] += bool(named)
                else:
                    results["named"] += named == [faulty]
                results["wrong bits"] += gang.digests() != {digest}
    return {
        "processes": dict(results),
        "processes_named_all": results["named"] == results["with a flip"],
        "processes_false_alarms": results["false alarms"],
        "processes_wrong_bits": results["wrong bits"],
    }


def _play_death(gang: RealGang, rng: random.Random, faulty: int | None) -> None:
    lost_place = 3
    for place in range(4):
        # High bits of the mantissa, which always have an effect.
        faults = [{"step": STEP, "bit": rng.randrange(16, 23), "position": rng.randrange(1 << 12)}]
        gang.start(place, faults=faults if place == faulty else [])
    gang.until(lambda: gang.at_gate(STEP, *range(4)))
    gang.processes[lost_place].kill()
    gang.open_gate()
    gang.all_ended()


def measure_cost() -> dict[str, Any]:
    """Measures the processor time of digests next to that of a shard, on one thread."""
    with _one_thread():
        model = ByteGPT(COST_MODEL)
        parameters = list(model.parameters())
        total = ExactGradientSum(parameters, flags=1)
        total.exponent = 10
        tokens = torch.randint(0, 256, (2, COST_MODEL.context + 1))
        passes: list[float] = []
        sums: list[float] = []
        digests: list[float] = []
        for _ in range(COST_ROUNDS):
            total.begin()
            passes.append(
                _time(lambda: next_byte_loss(model(tokens[:, :-1]), tokens[:, 1:]).backward())
            )
            flats = [flat.clone() for flat in total._flats]
            digests.append(_time(partial(_digest_all, flats)))
            sums.append(_time(total.add_shard))
        step_s = _measure_comparison()
    shard_s = median(passes) + median(sums)
    return {
        "cost_parameters": sum(parameter.numel() for parameter in parameters),
        "cost_tokens_of_a_shard": 2 * COST_MODEL.context,
        "cost_forward_backward_ms": round(1e3 * median(passes), 2),
        "cost_exact_sum_ms": round(1e3 * median(sums), 2),
        "cost_digest_ms": round(1e3 * median(digests), 2),
        "cost_digest_share_of_shard": round(median(digests) / (shard_s - median(digests)), 4),
        "cost_comparison_of_a_step_ms": round(1e3 * step_s, 3),
        "cost_bytes_of_a_step": 8 * COST_SHARDS,
    }


def _digest_all(flats: list[torch.Tensor]) -> None:
    for flat in flats:
        digest_values(flat)


def _measure_comparison() -> float:
    """Returns the processor time of a step for signing and comparing, of one member of eight."""
    members = [
        StepChecks(sets=COST_SHARDS, member=member, device=CPU) for member in range(COST_MEMBERS)
    ]
    times: list[float] = []
    for step in range(COST_ROUNDS):
        numbers = [0] * COST_SHARDS
        for rank, checks in enumerate(members):
            checks.begin_try(step)
            for shard in share(COST_SHARDS, rank, COST_MEMBERS):
                checks.note(shard, shard + 1)
            for slot, signed in enumerate(checks.sign()):
                numbers[slot] += signed
        times.append(_time(partial(_sign_and_compare, members[0], numbers)))
    return median(times)


def _sign_and_compare(checks: StepChecks, numbers: list[int]) -> None:
    checks.sign()
    checks.compare(numbers, COST_MEMBERS)


def _time(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


GOALS = {
    "flips": {
        "every_flip_with_effect_is_named": lambda f: f["flips_named"] == f["flips_with_effect"],
        "every_flip_is_named_where_a_third_member_can_tell": lambda f: (
            f["not_named"] == f["not_named_of_two_members"]
        ),
        "no_sound_member_is_named": lambda f: not f["another_named"],
        "no_step_is_applied_with_wrong_bits": lambda f: not f["steps_applied_with_wrong_bits"],
        "named_within_3_more_steps": lambda f: f["most_more_steps"] <= 3,
    },
    "restarts": {
        "no_false_alarm": lambda f: not f["false_alarms"],
        "restarts_keep_their_bits": lambda f: not f["restarts_with_wrong_bits"],
    },
    "processes": {
        "processes_name_all": lambda f: f["processes_named_all"],
        "processes_have_no_false_alarm": lambda f: not f["processes_false_alarms"],
        "processes_keep_their_bits": lambda f: not f["processes_wrong_bits"],
    },
    "cost": {
        "digests_cost_at_most_5_percent": lambda f: f["cost_digest_share_of_shard"] <= 0.05,
    },
}


def main() -> None:
    arguments = options(
        __doc__,
        sections=tuple(GOALS),
        flips=500,
        restarts=500,
        gangs=8,
        seed=1,
    )
    torch.set_num_threads(1)
    sections: dict[str, Callable[[], dict[str, Any]]] = {
        "flips": partial(measure_flips, arguments.flips, arguments.seed),
        "restarts": partial(measure_restarts, arguments.restarts, arguments.seed),
        "processes": partial(measure_processes, arguments.gangs, arguments.seed),
        "cost": measure_cost,
    }
    figures = run_sections(sections, arguments.sections)
    finish(
        {"schema": "holdfast.bench.hardware/1", **figures},
        judge_goals(GOALS, figures),
    )


if __name__ == "__main__":
    main()
