# pyright: basic, reportMissingImports=false
"""Weights & Biases: `curve = WandbCurve(project="my-project")`, one W&B run for each run.

Arguments are those of `wandb.init`. Offline, the folder of the newest start holds the whole curve
once it has ended: `wandb sync wandb/latest-run`.
"""

import json
from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import wandb

from holdfast.training.curves.curve import Curve, Point, Tracker

Row = tuple[int, dict[str, float]]
"""A step and the values of its lines."""


class WandbCurve(Curve):
    """A run of Weights & Biases; the options are those of `wandb.init`.

        curve = WandbCurve(project="my-project")
        with Checkpointer(url, {"model": model, "curve": curve}) as checkpointer:
            for step in range(checkpointer.step, steps):
                curve.log(step + 1, {"loss": train_step(step)})
                checkpointer.tick(step + 1)

    Each value is recorded before the tick of its step.
    """

    def __init__(self, **init: Any) -> None:
        super().__init__(_WandbRun(init))


class _WandbRun(Tracker):
    failures = (OSError, wandb.Error)

    def __init__(self, init: dict[str, Any]) -> None:
        self._init = init
        self._run: Any = None
        self._journal: _Journal | None = None

    def open(self, run_id: str, step: int) -> dict[str, int]:
        if self._run is not None:
            self._run.finish()
        options = {"name": run_id, "resume": "allow", **self._init, "id": run_id}
        self._run = wandb.init(**options)
        if self._run.offline:
            self._journal = _Journal(Path(self._run.settings.wandb_dir, "holdfast", run_id))
            return self._write_again(self._journal, step)
        # W&B takes no step twice, of any line.
        return _EveryLine(self._run.starting_step - 1) if self._run.resumed else {}

    def _write_again(self, journal: "_Journal", step: int) -> dict[str, int]:
        """Writes what earlier starts wrote: `wandb sync` shows one folder of a run."""
        newest_steps: dict[str, int] = {}
        for row_step, values in journal.read(step):
            self._run.log(values, step=row_step)
            newest_steps |= dict.fromkeys(values, row_step)
        return newest_steps

    def write(self, points: list[Point]) -> None:
        rows: list[Row] = []
        for step, row in groupby(points, key=attrgetter("step")):
            rows.append((step, {point.name: point.value for point in row}))
        for step, values in rows:
            self._run.log(values, step=step)
        if self._journal:
            self._journal.write(rows)

    def close(self, *, is_complete: bool) -> None:
        if not is_complete:
            self._run.mark_preempting()
        self._run.finish()


class _EveryLine(dict[str, int]):
    """The same newest step for lines of every name."""

    def __init__(self, step: int) -> None:
        super().__init__({"": step})
        self._step = step

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(key, self._step)


class _Journal:
    """Points of an offline run, in a file for each commit.

    W&B's own file keeps up to 32 KiB in the memory of a process, and loses them with a kill.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, rows: list[Row]) -> None:
        last_step = rows[-1][0]
        file = self._folder / f"{last_step:012d}.json"
        # Values that came after the tick of a step are written with the next commit.
        if file.exists():
            earlier_rows = json.loads(file.read_text())
            rows = [*earlier_rows, *rows]
        incomplete = file.with_suffix(".new")
        incomplete.write_text(json.dumps(rows))
        incomplete.replace(file)

    def read(self, step: int) -> Iterator[Row]:
        """Yields the rows up to `step`, and deletes those of later steps, which were undone."""
        for file in sorted(self._folder.glob("*.json")):
            if int(file.stem) > step:
                file.unlink()
                continue
            yield from json.loads(file.read_text())
