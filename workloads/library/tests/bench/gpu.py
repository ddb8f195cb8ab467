"""`python -m workloads.library.tests.bench.gpu`: saves of a state in a GPU's memory, ours beside
every mode of DCP and NVRx's local checkpoints, in one run.

One rank. "Blocking" lasts until the GPU may compute again; "lost" is what a save costs the training
in all, with the steps beside it, until it is durable. The plain copy is the same state copied to
pinned memory, and nothing else.
"""

import itertools
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

from workloads.library.tests.bench.checkpoint import measured
from workloads.library.tests.bench.checkpoints.methods import ASYNC, DCP, METHODS, Holdfast
from workloads.library.tests.bench.checkpoints.on_gpu import (
    COPY,
    ON_GPU,
    DcpOverlap,
    HoldfastLock,
    Nvrx,
    absent,
)
from workloads.library.tests.bench.result import ended, options

OURS = Holdfast.name
LOCK = HoldfastLock.name


def middle(saves: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    rows: dict[str, dict[str, float]] = {}
    for name, figures in saves.items():
        rows[name] = {kind: round(median(values), 4) for kind, values in figures.items()}
        if name != COPY:  # those that block until all is written have no step beside it
            slowed = figures.get("extra", itertools.repeat(0.0))
            rows[name]["lost"] = round(
                median(map(sum, zip(figures["blocking"], slowed, strict=False))), 4
            )
    return rows


def judged(rows: dict[str, dict[str, float]]) -> dict[str, bool | str]:
    blocking = rows[OURS]["blocking"]
    copy = rows[COPY]["blocking"]
    dcp = [*DCP, DcpOverlap.name]
    nvrx = rows.get(Nvrx.name)
    return {
        "blocking_at_most_1.25_pinned_copy": blocking <= 1.25 * copy,
        "blocking_at_most_half_of_best_dcp_async": blocking
        <= min(rows[name]["blocking"] for name in ASYNC) / 2,
        "blocking_below_nvrx": blocking < nvrx["blocking"] if nvrx else "not run",
        "blocking_under_lock_at_most_a_quarter_of_the_copy": rows[LOCK]["blocking"] <= 0.25 * copy,
        "time_lost_under_lock_below_every_dcp": rows[LOCK]["lost"]
        < min(rows[name]["lost"] for name in dcp),
        "time_lost_under_lock_below_nvrx": rows[LOCK]["lost"] < nvrx["lost"] if nvrx else "not run",
        "durable_no_later_than_fastest_dcp": rows[OURS]["total"]
        <= min(rows[name]["total"] for name in dcp),
    }


def main() -> None:
    o = options(
        __doc__,
        mib=2048,
        rounds=3,
        folder=tempfile.gettempdir(),
    )
    import torch

    if not torch.cuda.is_available():
        sys.exit("error: got no GPU; allowed: a machine with one; fix: run it there")
    lacking = absent()
    methods = [name for name in METHODS | ON_GPU if name not in lacking]
    with tempfile.TemporaryDirectory(dir=o.folder) as name:
        saves = measured(
            "on_gpu",
            1,
            Path(name),
            mib=o.mib,
            rounds=o.rounds,
            methods=methods,
        )["saves"]
    rows = middle(saves)
    facts = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
    }
    about = {
        "schema": "holdfast.bench.gpu/1",
        "mib": o.mib,
        "rounds": o.rounds,
    }
    ended(
        about
        | facts
        | {
            "rows": rows,
            "absent": lacking,
            "saves": saves,
        },
        judged(rows),
    )


if __name__ == "__main__":
    main()
