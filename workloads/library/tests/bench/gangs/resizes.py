"""Rows shrink and grow of `make bench-peers`: the next step of the nodes that remain after a death
and after a notice, and the stall of the others while a node joins.
"""

import signal
import time
from itertools import pairwise
from typing import Any

from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED
from workloads.library.tests.bench.gangs.losses import CADENCE, LIMIT_S, Bench, Figures, lines
from workloads.library.tests.processes import until
from workloads.library.tests.training.elastic.sharded_gangs import ShardedGang

RANK = "workloads.library.tests.bench.gangs.resizing_rank"
DEATH = "shrink, death"
NOTICE = "shrink, notice"
GROW = "grow"
PACE_S = 0.5
"""Seconds of a step: the figures are times less one."""
BATCH_S = 60.0


def measure_resizes(bench: Bench, rounds: int) -> dict[str, list[Figures]]:
    """Returns the figures of each loss of a node by its row, and of its replacement."""
    # The state of the whole gang: `mib` of the bench is that of a node.
    settings = bench.settings("resizes") | {
        "mib": bench.nodes * bench.mib,
        "pace_s": PACE_S,
        "every": 10**6,
        "window_s": BATCH_S,
    }
    gang = ShardedGang(
        bench.folder / "resizes",
        None,
        nodes=bench.nodes,
        min_nodes=2,
        child=RANK,
        env=bench.env,
        **settings,
    )
    figures: dict[str, list[Figures]] = {
        DEATH: [],
        NOTICE: [],
        GROW: [],
    }
    try:
        gang.start(*range(bench.nodes))
        for number in range(2 * rounds):
            place = 1 + number % (bench.nodes - 1)
            row = NOTICE if number % 2 else DEATH
            _await_copy(gang)
            before = bench.bytes_from_bucket()
            figures[row].append(_lose(gang, place, has_notice=row == NOTICE))
            _await_copy(gang)
            figures[GROW].append(_replace(gang, place))
            read_mb = (bench.bytes_from_bucket() - before) / 1e6
            figures[row][-1]["read_mb"] = read_mb
    finally:
        bench.end(gang)
    return figures


def _await_copy(gang: ShardedGang) -> None:
    """Waits until this start has done some steps, and a version of them is on the neighbors."""
    size = _steps(gang)[-1]["size"] if _steps(gang) else gang.nodes
    first = gang.of("restore")[-1]["step"] if gang.of("restore") else 0

    def is_copied() -> bool:
        copies: dict[int, set[int]] = {}
        for shards in gang.held().values():
            for shard in shards:
                if shard["memory"] < 0 and shard["world_size"] == size:
                    copies.setdefault(shard["step"], set()).add(shard["rank"])
        return any(step > first + CADENCE and len(copies[step]) == size for step in copies)

    until(is_copied, gang.logs, within_s=LIMIT_S, pause_s=0.1)


def _lose(gang: ShardedGang, place: int, *, has_notice: bool) -> Figures:
    size = _steps(gang)[-1]["size"]
    start = time.time()
    if has_notice:
        gang.processes[place].send_signal(signal.SIGTERM)
    else:
        gang.lose(place)
    steps = _await_size(gang, size - 1)
    if has_notice:
        assert gang.ended(place) == EXIT_PREEMPTED, gang.logs()
    before, after = _find_change(steps)
    # With a notice the gang works on until the boundary: its stall begins there.
    begin = before["t"] if has_notice else start
    return {
        "lost_steps": before["step"] + 1 - after["step"],
        "next_step_s": after["t"] - PACE_S - begin,
        "restore_s": gang.of("restore")[-1]["seconds"],
    }


def _replace(gang: ShardedGang, place: int) -> Figures:
    size = _steps(gang)[-1]["size"]
    gang.start(place)
    before, after = _find_change(_await_size(gang, size + 1))
    return {
        "lost_steps": before["step"] + 1 - after["step"],
        "stall_s": after["t"] - PACE_S - before["t"],
        "restore_s": gang.of("restore")[-1]["seconds"],
    }


def _await_size(gang: ShardedGang, size: int) -> list[Figures]:
    until(
        lambda: _steps(gang)[-1]["size"] == size,
        gang.logs,
        within_s=LIMIT_S,
        pause_s=0.05,
    )
    return _steps(gang)


def _find_change(steps: list[Figures]) -> tuple[Figures, Figures]:
    """Returns the last step of the former size, and the first of the new one."""
    changes = []
    for pair in pairwise(steps):
        if pair[0]["size"] != pair[1]["size"]:
            changes.append(pair)
    return changes[-1]


def _steps(gang: ShardedGang) -> list[dict[str, Any]]:
    return lines(gang.settings["log"])
