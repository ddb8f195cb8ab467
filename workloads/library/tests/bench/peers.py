"""`python -m workloads.library.tests.bench.peers`: what a sharded gang loses with a node, and how
fast it goes on from its neighbours' memory.

Nodes are processes on this machine, and the time of a step is one in which the processors wait, as
for a GPU. The bucket is an emulator behind a proxy that limits each stream. Rows: copies, the same
gang without copies, a rigid gang (all its pods start again), and torchrun with DCP. A time is from
the moment that the lost node's launcher is back until the whole gang has done a step, less that
step's own time; of the rows whose processes all start, from their start. Kills are spread over the
way from one copy, or upload, to the next. What copies cost is measured with and without them in
turn, in the same processes, which compute all the time. --mb is the state of the whole gang, and
memory takes eight times as much; --rounds are losses of the gang with copies, others have half as
many.
"""

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from workloads.library.tests.bench.bucket import bucket
from workloads.library.tests.bench.gangs.losses import (
    CADENCE,
    EVERY,
    LIMIT_S,
    NEVER,
    PACE_S,
    Bench,
    Found,
    Play,
    dcp_lost,
    lines,
    middle,
)
from workloads.library.tests.bench.result import ended, options
from workloads.library.tests.processes import family, until

MORE_NODES = 8
SMALLEST_SHARD_MB = 8 * 1.048576  # manifests and commits are far below
"""With half the state: their processes take more memory."""
TURNS = 22
"""The first is not counted: in it memory is touched."""
TURN_STEPS = 30
PRODUCTS = 4
COPIES = "copies"
NOTICE = "copies, notice"
BUCKET = "no copies"
RIGID = "holdfast rigid"
DCP = "torchrun with DCP"
OF_EIGHT = f"{COPIES}, {MORE_NODES} nodes"
NVRX = (
    "its local checkpoints, and their exchange, take tensors of CUDA devices only (read in 0.4.1,"
    " the newest that installs on Debian 12, and in 0.7.0, which needs Python 3.12 and glibc 2.39);"
    " `make bench-gpu` measures their saves"
)


def measured(
    folder: Path, mb: int, rounds: int
) -> tuple[dict[str, list[Found]], dict[str, float], Found]:
    """Every loss of each row, the memory of gangs in states, and what copies cost."""
    found: dict[str, list[Found]] = {}
    memory: dict[str, float] = {}
    cost: Found = {}
    few = max(1, rounds // 2)
    mib = mb // 4

    def lose(row: str, bench: Bench, count: int, *, notice: bool = False, **options: Any) -> None:
        play = Play(bench, "gang", **options)
        found[row] = play.lost(count, notice=notice)
        memory[row] = play.memory
        if notice:
            found[NOTICE] = [found[row].pop()]

    parts: dict[str, tuple[int, int, Callable[[Bench], None]]] = {
        COPIES: (4, mib, lambda bench: lose(COPIES, bench, rounds, notice=True, copies=1)),
        BUCKET: (4, mib, lambda bench: lose(BUCKET, bench, few, copies=0)),
        RIGID: (4, mib, lambda bench: lose(RIGID, bench, few, copies=0, all_again=True)),
        DCP: (4, mib, lambda bench: found.update({DCP: dcp_lost(bench, "gang", few)})),
        "cost": (2, mib, lambda bench: cost.update(costs(bench))),
        OF_EIGHT: (
            MORE_NODES,
            mb // 2 // MORE_NODES,
            lambda b: lose(OF_EIGHT, b, max(1, rounds - 1), copies=1),
        ),
    }

    for name, (nodes, each, work) in parts.items():
        own = folder / name.replace(" ", "-")
        own.mkdir()
        # The emulator is written in Go and would keep objects in memory, which the gangs need.
        with bucket(
            own,
            "peers",
            "-dir",
            str(own / "bucket"),
            GOGC="20",
            GOMEMLIMIT="1GiB",
        ) as (
            env,
            passed,
        ):
            work(
                Bench(
                    folder=own,
                    nodes=nodes,
                    mib=each,
                    env=env,
                    passed=passed,
                )
            )
        print(f"{name}: {json.dumps(found.get(name, cost))}", file=sys.stderr, flush=True)
    return found, memory, cost


def costs(bench: Bench) -> Found:
    """Of a copy and of a step, the processor time of all nodes; and how long a save holds training."""
    gang = bench.gang(
        "costs",
        copies=1,
        turns=TURN_STEPS,
        products=PRODUCTS,
        pace_s=0.0,
        peer_steps=0,
        every=NEVER,
    )
    turns = list[Found]()
    cores = sorted(os.sched_getaffinity(0))
    try:
        for place in range(bench.nodes):
            # As the only node on its core: what copies cost is then taken from its training.
            os.sched_setaffinity(0, {cores[place]})
            gang.start(place)
        os.sched_setaffinity(0, cores)
        spent = 0.0
        for n in range(2 * TURNS):
            until(lambda: len(lines(gang.settings["turn_log"])) > n, gang.logs, within_s=LIMIT_S)  # noqa: B023
            now = processor_s(gang.processes)
            turns.append(lines(gang.settings["turn_log"])[n] | {"processor_s": now - spent})
            spent = now
        saves = [event["blocking_seconds"] for event in gang.of("save")]
    finally:
        bench.end(gang)
    of: dict[str, list[Found]] = {"with": [], "without": []}
    for turn, blocking_s in zip(turns[2:-1:2], saves[1:], strict=False):
        of[turn["which"]].append(turn | {"blocking_s": blocking_s})
    step_s = statistics.median(turn["processor_s"] for turn in of["without"]) / TURN_STEPS
    copy_s = statistics.median(
        (turn["processor_s"] - TURN_STEPS * step_s) / turn["copies"] for turn in of["with"]
    )
    every = statistics.median(turn["every"] for turn in of["with"])
    blocked = {}
    for which, found in of.items():
        blocked[which] = statistics.median(turn["blocking_s"] for turn in found)
    return {
        "processor": round(copy_s / every / step_s, 4),
        "blocking": round(blocked["with"] / blocked["without"], 2),
    }


def processor_s(processes: Mapping[int, object]) -> float:
    times = [each.cpu_times() for process in processes.values() for each in family(process.pid)]  # pyright: ignore
    return sum(each.user + each.system for each in times)


def main() -> None:
    o = options(__doc__, mb=2048, rounds=3)
    with tempfile.TemporaryDirectory(prefix="holdfast-peers-") as name:
        found, states, cost = measured(Path(name), o.mb, o.rounds)
    memory = states[COPIES] - states[BUCKET]
    rows = {
        name: middle(each) | {"lost_steps_worst": max(one["lost_steps"] for one in each)}
        for name, each in found.items()
    }
    ours = [*found[COPIES], *found[OF_EIGHT]]
    notice = found[NOTICE][0]
    from_bucket = rows[BUCKET]["restore_s"]
    first_step_s = max(rows[COPIES]["first_step_s"], rows[OF_EIGHT]["first_step_s"])
    goals = {
        "steps lost at most the cadence": max(one["lost_steps"] for one in ours) <= CADENCE,
        "with a notice no step lost": notice["lost_steps"] == 0,
        "no shard read from the bucket": (
            max(one["read_mb"] for one in [*ours, notice]) < SMALLEST_SHARD_MB
        ),
        "first step of the whole gang after at most 3 s": first_step_s <= 3.0,
        "first step after at most a quarter of a restore from the bucket": (
            first_step_s <= 0.25 * from_bucket
        ),
        "restore in at most a quarter of one from the bucket": (
            rows[COPIES]["restore_s"] <= 0.25 * from_bucket
        ),
        "an undisturbed step costs at most 2 percent": cost["processor"] <= 0.02,
        "at most 2 shards of memory for each": memory <= 2.0,
        "blocking of a save unchanged": cost["blocking"] <= 1.1,
    }
    facts = {
        "mb": o.mb,
        "nodes": [4, MORE_NODES],
        "cadence": CADENCE,
        "every": EVERY,
        "pace_s": PACE_S,
    }
    result = {
        "cores": os.cpu_count(),
        "rows": rows,
        "cost": cost,
        "memory": round(memory, 2),
        "nvrx": NVRX,
    }
    ended({"schema": "holdfast.bench.peers/1"} | facts | result, goals)


if __name__ == "__main__":
    main()
