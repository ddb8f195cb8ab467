"""Saves of a state in a GPU's memory, compared with every mode of DCP and with NVRx.

    python -m workloads.library.tests.bench.gpu

NVRx makes its local checkpoints. All methods run in one rank. "Blocking" lasts until the GPU may
compute again; "lost" is the whole cost of a save for the training, with slower steps during the
save, until it is durable. The plain copy only copies the same state to pinned memory.
"""

import itertools
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

from workloads.library.tests.bench.checkpoint import find_least, find_medians, run_ranks
from workloads.library.tests.bench.checkpoints.methods import ASYNC, DCP, METHODS, Holdfast
from workloads.library.tests.bench.checkpoints.on_gpu import (
    COPY,
    ON_GPU,
    DcpOverlap,
    HoldfastLock,
    Nvrx,
    find_absent,
)
from workloads.library.tests.bench.result import finish, options

OURS = Holdfast.name
LOCK = HoldfastLock.name


def compute_medians(saves: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    rows: dict[str, dict[str, float]] = {}
    for name, figures in saves.items():
        medians = find_medians(figures)
        rows[name] = {kind: round(value, 4) for kind, value in medians.items()}
        if name != COPY:
            # A method that blocks until all is written has no step during the save.
            slowdowns = figures.get("extra", itertools.repeat(0.0))
            lost_s = map(sum, zip(figures["blocking"], slowdowns, strict=False))
            rows[name]["lost"] = round(median(lost_s), 4)
    return rows


def judge(rows: dict[str, dict[str, float]]) -> dict[str, bool | str]:
    blocking = rows[OURS]["blocking"]
    copy = rows[COPY]["blocking"]
    dcp = [*DCP, DcpOverlap.name]
    nvrx = rows.get(Nvrx.name)
    best_async = find_least(rows, ASYNC, "blocking")
    least_lost = find_least(rows, dcp, "lost")
    fastest_dcp = find_least(rows, dcp, "total")
    return {
        "blocking_at_most_1.25_pinned_copy": blocking <= 1.25 * copy,
        "blocking_at_most_half_of_best_dcp_async": blocking <= best_async / 2,
        "blocking_below_nvrx": blocking < nvrx["blocking"] if nvrx else "not run",
        "blocking_under_lock_at_most_a_quarter_of_the_copy": rows[LOCK]["blocking"] <= 0.25 * copy,
        "time_lost_under_lock_below_every_dcp": rows[LOCK]["lost"] < least_lost,
        "time_lost_under_lock_below_nvrx": rows[LOCK]["lost"] < nvrx["lost"] if nvrx else "not run",
        "durable_no_later_than_fastest_dcp": rows[OURS]["total"] <= fastest_dcp,
    }


def main() -> None:
    arguments = options(
        __doc__,
        mib=2048,
        rounds=3,
        folder=tempfile.gettempdir(),
    )
    import torch

    if not torch.cuda.is_available():
        sys.exit("error: got no GPU; allowed: a machine with one; fix: run it there")
    absent = find_absent()
    methods = [name for name in METHODS | ON_GPU if name not in absent]
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        saves = run_ranks(
            "on_gpu",
            1,
            Path(name),
            mib=arguments.mib,
            rounds=arguments.rounds,
            methods=methods,
        )["saves"]
    rows = compute_medians(saves)
    facts = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
    }
    settings = {
        "schema": "holdfast.bench.gpu/1",
        "mib": arguments.mib,
        "rounds": arguments.rounds,
    }
    figures = {
        "rows": rows,
        "absent": absent,
        "saves": saves,
    }
    finish(settings | facts | figures, judge(rows))


if __name__ == "__main__":
    main()
