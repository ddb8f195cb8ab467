"""`drill run`: every asked drill in turn, its journal, and one exit code."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.drill import console, store
from holdfast.drill.catalogue import ITEMS, REQUESTS_PER_S, SAVE_EVERY, SERVERS, WORKERS
from holdfast.drill.plan import Drill, Work
from holdfast.drill.record import Record, last_numbers
from holdfast.drill.runner import DrillRunner
from holdfast.drill.series import series
from holdfast.drill.target import Target
from holdfast.drill.verdict import exit_code

SCHEMA = "holdfast.drills/1"
Builder = Callable[[Drill, Path], Target]
"""Drill and folder of its run -> the place where it runs."""


@dataclass(frozen=True, kw_only=True)
class DrillSuite:
    out: Path
    build: Builder
    runner: Callable[[dict[str, float | None]], DrillRunner]
    quiet: bool = False
    """Without the table on standard output: JSON goes there."""

    def run(self, drills: Sequence[Drill], repeat: int = 1) -> tuple[int, dict[str, Any]]:
        """Exit code, and the object that --json prints. A signal ends it all; any other stop, the runs of its drill."""
        records: list[Record] = []
        repeated: list[dict[str, Any]] = []
        with store.alone(self.out, "drill"):
            for drill in drills:
                runs = list(self._runs(drill, repeat))
                records += runs
                if repeat > 1:
                    repeated.append(series([record.journal() for record in runs]))
                    if not self.quiet:
                        console.series(console.stdout(), repeated[-1])
                if records[-1].signal:
                    break
        code = 128 + records[-1].signal if records and records[-1].signal else exit_code([r.verdict for r in records])
        journals = [record.journal() for record in records]
        return code, {"schema": SCHEMA, "drills": journals} | ({"series": repeated} if repeated else {})

    def _runs(self, drill: Drill, repeat: int) -> Iterator[Record]:
        for _ in range(repeat):
            yield (record := self._one(drill))
            if record.stopped:
                return

    def _one(self, drill: Drill) -> Record:
        err = console.stderr()
        err.print(f"drill {drill.name}: {drill.question}", style="bold", markup=False)
        before = store.last(self.out, drill.name)
        folder = store.fresh(self.out, drill.name)
        record = self.runner(last_numbers(before or {})).run(drill, self.build(drill, folder))
        path = store.write(folder, record.journal())
        if not self.quiet:
            console.verdict(console.stdout(), record.journal())
        err.print(f"  {os.path.relpath(path)}", style="dim", markup=False)
        return record


def local(drill: Drill, folder: Path) -> Target:
    """The place `local`: processes of this machine."""
    from holdfast.drill.targets.local_batch import LocalBatch
    from holdfast.drill.targets.local_serving import LocalServing
    from holdfast.drill.targets.local_training import LocalTraining

    if drill.work is Work.BATCH:
        return LocalBatch(folder, drill.fault, workers=WORKERS, items=ITEMS)
    if drill.work is Work.SERVER:
        return LocalServing(folder, drill.fault, replicas=SERVERS, per_s=REQUESTS_PER_S)
    return LocalTraining(folder, drill.work, drill.fault, save_every=SAVE_EVERY)
