"""`drill run`: every asked drill in turn, its files, and one exit code."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.drill import store
from holdfast.drill.catalogue import ITEMS, REQUESTS_PER_S, SAVE_EVERY, SERVERS, WORKERS
from holdfast.drill.journal import journal, last_numbers
from holdfast.drill.plan import Drill, Work
from holdfast.drill.record import Record
from holdfast.drill.runner import DrillRunner
from holdfast.drill.series import series
from holdfast.drill.show import console as show
from holdfast.drill.show.page import page
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
        journals: list[dict[str, Any]] = []
        repeated: list[dict[str, Any]] = []
        with store.alone(self.out, "drill"):
            for drill in drills:
                runs = list(self._runs(drill, repeat))
                records += [record for record, _ in runs]
                journals += [made for _, made in runs]
                if repeat > 1:
                    repeated.append(self._together([made for _, made in runs]))
                if records[-1].signal:
                    break
        code = 128 + records[-1].signal if records and records[-1].signal else exit_code([r.verdict for r in records])
        return code, {"schema": SCHEMA, "drills": journals} | ({"series": repeated} if repeated else {})

    def _runs(self, drill: Drill, repeat: int) -> Iterator[tuple[Record, dict[str, Any]]]:
        for _ in range(repeat):
            record, made = self._one(drill)
            yield record, made
            if record.stopped:
                return

    def _together(self, journals: Sequence[dict[str, Any]]) -> dict[str, Any]:
        made = series(journals)
        if not self.quiet:
            show.series(show.stdout(), made)
        return made

    def _one(self, drill: Drill) -> tuple[Record, dict[str, Any]]:
        err = show.stderr()
        err.print(f"drill {drill.name}: {drill.question}", style="bold", markup=False)
        before = store.last(self.out, drill.name)
        folder = store.fresh(self.out, drill.name)
        target = self.build(drill, folder)
        record = self.runner(last_numbers(before or {})).run(drill, target)
        made = journal(record)
        (folder / "report.html").write_text(page(made))
        store.write(folder, made)
        if not self.quiet:
            show.verdict(show.stdout(), made)
        err.print(f"  {os.path.relpath(folder)}/report.html (beside it journal.json)", style="dim", markup=False)
        return record, made


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
