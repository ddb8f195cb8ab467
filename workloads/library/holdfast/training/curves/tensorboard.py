# pyright: basic, reportMissingImports=false
"""TensorBoard: `curve = TensorBoardCurve("gs://bucket/curves")`, one folder for each run.

Reads like a run that was never interrupted: points of a step that is done again replace those that
a dead process has left.
"""

import os
import tempfile
import time
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from holdfast.checkpoint import Tuning
from holdfast.checkpoint.errors import StorageError
from holdfast.checkpoint.stores import Storage, open_storage, put_new
from holdfast.training.curves.curve import Curve, Point, Tracker
from holdfast.training.curves.event_names import EventNames


class TensorBoardCurve(Curve):
    """A run of TensorBoard, without the points of lost steps.

        curve = TensorBoardCurve("gs://bucket/curves")
        with Checkpointer(url, {"model": model, "curve": curve}) as checkpointer:
            for step in range(checkpointer.step, steps):
                curve.log(step + 1, {"loss": train_step(step)})
                checkpointer.tick(step + 1)

    Each value is recorded before the tick of its step.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """`folder`: a path that the next machine has too, or a URL as of a Checkpointer."""
        super().__init__(_EventFiles(os.fspath(folder)))


class _EventFiles(Tracker):
    failures = (OSError, StorageError)

    def __init__(self, url: str) -> None:
        self._url = url
        self._run_id = ""
        self._storage: Storage | None = None
        self._purges = False
        self._names = EventNames([])

    def open(self, run_id: str, step: int) -> dict[str, int]:
        self._storage = open_storage(self._url, request_s=Tuning().request_s)
        self._run_id = run_id
        self._purges = True
        self._names = EventNames(stat.name for stat in self._storage.list(run_id))
        return {}

    def write(self, points: list[Point]) -> None:
        assert self._storage
        # TensorBoard drops what earlier files have from this step on.
        purge_step = points[0].step if self._purges else None
        # A whole file for each commit: an object cannot be appended to, and TensorBoard's own
        # writer would replace it.
        with tempfile.TemporaryDirectory() as folder:
            writer = SummaryWriter(folder, purge_step=purge_step)
            for point in points:
                writer.add_scalar(point.name, point.value, point.step, walltime=point.time_s)
            writer.close()
            for file in Path(folder).iterdir():
                name = self._names.make(file.name, time.time())
                put_new(self._storage, f"{self._run_id}/{name}", file.read_bytes())
        self._purges = False

    def close(self, *, is_complete: bool) -> None:
        """Does nothing: each file is whole once it is written."""
