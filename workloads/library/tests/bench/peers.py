"""The loss of a node of a sharded gang: lost steps, and the time to continue from peers' memory.

    python -m workloads.library.tests.bench.peers

Nodes are processes on this machine. During most of a step the processors wait, as for a GPU. The
bucket is an emulator behind a proxy that limits each stream. Rows: copies, the same gang without
copies, a rigid gang (all its pods start again), and torchrun with DCP. A time lasts from the moment
that the lost node's launcher is back until the whole gang has done a step, less the time of that
step; if all processes start again, it lasts from their start. Kills are spread over the time from
one copy, or upload, to the next. The cost of copies is measured with and without them in turn, in
the same processes, which compute all the time. Rows shrink and grow are of a gang that goes on with
fewer nodes: the next step after a death, and the stall of the others for a notice and for a node
that joins, less the time of a step. Last, the memory of a small gang's nodes is looked at while it
copies and uploads, with copies in memory and on the disk. --mb is the state of the whole gang, and
memory takes eight times as much; --rounds are losses of the gang with copies, other gangs have half
as many.
"""

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
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
    Figures,
    Play,
    compute_medians,
    lines,
    measure_dcp_losses,
)
from workloads.library.tests.bench.gangs.resizes import DEATH, GROW, measure_resizes
from workloads.library.tests.bench.gangs.resizes import NOTICE as SHRINK_NOTICE
from workloads.library.tests.bench.gangs.shard_memory import MEMORY, measure_shards
from workloads.library.tests.bench.result import finish, options
from workloads.library.tests.processes import family, until

MORE_NODES = 8
"""Nodes of the larger gang, which has half the state: more processes take more memory."""
SMALLEST_SHARD_MB = 8 * 1.048576  # manifests and commits are far below
TURNS = 22
"""Turns of each kind; the first is not counted, because it touches new memory."""
TURN_STEPS = 30
SHARDS_OF_A_STATE = 16
"""The shard of the gang whose memory is looked at is this part of --mb."""
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


def measure(
    folder: Path, mb: int, rounds: int
) -> tuple[dict[str, list[Figures]], dict[str, list[Figures]], dict[str, float], Figures]:
    """Returns the losses and the changes of size of each row, the memory of each gang in states,
    and the cost of copies.
    """
    losses: dict[str, list[Figures]] = {}
    resizes: dict[str, list[Figures]] = {}
    memory: dict[str, float] = {}
    cost: Figures = {}
    few = max(1, rounds // 2)
    mib = mb // 4

    def lose(row: str, bench: Bench, count: int, *, notice: bool = False, **options: Any) -> None:
        play = Play(bench, "gang", **options)
        losses[row] = play.measure_losses(count, notice=notice)
        memory[row] = play.memory
        if notice:
            losses[NOTICE] = [losses[row].pop()]

    def lose_dcp(bench: Bench) -> None:
        losses[DCP] = measure_dcp_losses(bench, "gang", few)

    parts: dict[str, tuple[int, int, Callable[[Bench], None]]] = {
        COPIES: (4, mib, lambda bench: lose(COPIES, bench, rounds, notice=True, copies=1)),
        BUCKET: (4, mib, lambda bench: lose(BUCKET, bench, few, copies=0)),
        RIGID: (4, mib, lambda bench: lose(RIGID, bench, few, copies=0, is_rigid=True)),
        DCP: (4, mib, lose_dcp),
        "cost": (2, mib, lambda bench: cost.update(measure_costs(bench))),
        "resizes": (4, mib // 2, lambda b: resizes.update(measure_resizes(b, few))),
        OF_EIGHT: (
            MORE_NODES,
            mb // 2 // MORE_NODES,
            lambda b: lose(OF_EIGHT, b, max(1, rounds - 1), copies=1),
        ),
    }

    for name, (nodes, node_mib, work) in parts.items():
        home = folder / name.replace(" ", "-")
        home.mkdir()
        # The emulator would keep objects in memory, which the gangs need.
        options = ("-dir", str(home / "bucket"))
        with bucket(
            home,
            "peers",
            *options,
            GOGC="20",
            GOMEMLIMIT="1GiB",
        ) as (env, passed):
            bench = Bench(
                folder=home,
                nodes=nodes,
                mib=node_mib,
                env=env,
                passed=passed,
            )
            work(bench)
        shown = resizes if name == "resizes" else losses.get(name, cost)
        print(f"{name}: {json.dumps(shown)}", file=sys.stderr, flush=True)
    return losses, resizes, memory, cost


def measure_costs(bench: Bench) -> Figures:
    """Compares turns with copies and turns without.

    `processor` is the processor time of copies per step, over that of a step; `blocking` is the
    ratio of the times that a save blocks training.
    """
    gang = bench.gang(
        "costs",
        copies=1,
        turns=TURN_STEPS,
        products=PRODUCTS,
        pace_s=0.0,
        peer_steps=0,
        every=NEVER,
    )
    turns = list[Figures]()
    cores = sorted(os.sched_getaffinity(0))
    try:
        for place in range(bench.nodes):
            # One node per core, so that copies take their time from its training.
            os.sched_setaffinity(0, {cores[place]})
            gang.start(place)
        os.sched_setaffinity(0, cores)
        spent = 0.0
        for n in range(2 * TURNS):
            until(lambda: len(lines(gang.settings["turn_log"])) > n, gang.logs, within_s=LIMIT_S)  # noqa: B023
            now = processor_s(gang.processes)
            turn = lines(gang.settings["turn_log"])[n]
            turns.append(turn | {"processor_s": now - spent})
            spent = now
        saves = [event["blocking_seconds"] for event in gang.of("save")]
    finally:
        bench.end(gang)
    turns_by_kind: dict[str, list[Figures]] = {"with": [], "without": []}
    for turn, blocking_s in zip(turns[2:-1:2], saves[1:], strict=False):
        turns_by_kind[turn["which"]].append(turn | {"blocking_s": blocking_s})
    with_copies = turns_by_kind["with"]
    without = turns_by_kind["without"]
    step_s = find_median(without, "processor_s") / TURN_STEPS
    copies_s = list[float]()
    for turn in with_copies:
        copying_s = turn["processor_s"] - TURN_STEPS * step_s
        copies_s.append(copying_s / turn["copies"])
    steps_per_copy = find_median(with_copies, "every")
    blocking_with_s = find_median(with_copies, "blocking_s")
    blocking_without_s = find_median(without, "blocking_s")
    return {
        "processor": round(statistics.median(copies_s) / steps_per_copy / step_s, 4),
        "blocking": round(blocking_with_s / blocking_without_s, 2),
    }


def processor_s(processes: Mapping[int, Any]) -> float:
    """Returns the processor time of the processes and all their children."""
    seconds = 0.0
    for launcher in processes.values():
        for process in family(launcher.pid):
            times = process.cpu_times()
            seconds += times.user + times.system
    return seconds


def find_median(turns: Iterable[Figures], key: str) -> float:
    return statistics.median(turn[key] for turn in turns)


def find_largest(losses: Iterable[Figures], key: str) -> float:
    return max(loss[key] for loss in losses)


def main() -> None:
    arguments = options(__doc__, mb=2048, rounds=3)
    with tempfile.TemporaryDirectory(prefix="holdfast-peers-") as name:
        folder = Path(name)
        losses, resizes, states, cost = measure(folder, arguments.mb, arguments.rounds)
        mib = arguments.mb // SHARDS_OF_A_STATE
        in_memory = measure_shards(folder / "in-memory", mib, on_disk=False)
        on_disk = measure_shards(folder / "on-disk", mib, on_disk=True)
    memory = states[COPIES] - states[BUCKET]
    rows = {}
    for name, figures in losses.items():
        worst = find_largest(figures, "lost_steps")
        rows[name] = compute_medians(figures) | {"lost_steps_worst": worst}
    for name, figures in resizes.items():
        rows[name] = compute_medians(figures)
    shrinks = [*resizes[DEATH], *resizes[SHRINK_NOTICE]]
    own_losses = [*losses[COPIES], *losses[OF_EIGHT]]
    notice = losses[NOTICE][0]
    from_bucket = rows[BUCKET]["restore_s"]
    first_step_s = max(rows[COPIES]["first_step_s"], rows[OF_EIGHT]["first_step_s"])
    goals = {
        "steps lost at most the cadence": find_largest(own_losses, "lost_steps") <= CADENCE,
        "with a notice no step lost": notice["lost_steps"] == 0,
        "no shard read from the bucket": (
            find_largest([*own_losses, notice], "read_mb") < SMALLEST_SHARD_MB
        ),
        "first step of the whole gang after at most 3 s": first_step_s <= 3.0,
        "first step after at most a quarter of a restore from the bucket": (
            first_step_s <= 0.25 * from_bucket
        ),
        "restore in at most a quarter of one from the bucket": (
            rows[COPIES]["restore_s"] <= 0.25 * from_bucket
        ),
        "next step on fewer nodes at most 3 s after a death": rows[DEATH]["next_step_s"] <= 3.0,
        "at most 1 s of stall for a notice": rows[SHRINK_NOTICE]["next_step_s"] <= 1.0,
        "at most 3 s of stall for a node that joins": rows[GROW]["stall_s"] <= 3.0,
        "with a notice no step lost by those that go on": (
            find_largest(resizes[SHRINK_NOTICE], "lost_steps") == 0
        ),
        "no shard read from the bucket to shrink or grow": (
            find_largest(shrinks, "read_mb") < SMALLEST_SHARD_MB
        ),
        "an undisturbed step costs at most 2 percent": cost["processor"] <= 0.02,
        "at most 2 shards of memory for each": memory <= 2.0,
        "at most 2.2 shards of memory for each, with copies on a disk": on_disk[MEMORY] <= 2.2,
        "blocking of a save unchanged": cost["blocking"] <= 1.1,
    }
    facts = {
        "mb": arguments.mb,
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
        "shards of a node": {"copies in memory": in_memory, "copies on a disk": on_disk},
        "nvrx": NVRX,
    }
    finish({"schema": "holdfast.bench.peers/1"} | facts | result, goals)


if __name__ == "__main__":
    main()
