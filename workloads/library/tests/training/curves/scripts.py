"""`scripts.py tensorboard|mlflow|wandb URL FOLDER STEPS`: a loop whose curve goes to a tracker.

KILL_IN_STEP kills the process in that step, KILL_IN_WRITE in its write of that number, half of
which the tracker has. `scripts.py read TRACKER FOLDER` prints the curves that the tracker shows.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import fsspec
import torch

from holdfast.checkpoint import Checkpointer
from holdfast.training.curves.curve import Curve, Point
from workloads.library.tests.processes import until
from workloads.library.tests.training.curves.wandb_files import read_history

KILL_IN_STEP = "HOLDFAST_TEST_KILL_IN_STEP"
KILL_IN_WRITE = "HOLDFAST_TEST_KILL_IN_WRITE"
BUCKET = "HOLDFAST_TEST_BUCKET"
"""URL of a folder that TensorBoard's files go to."""
RUN = "curves"


def make_curve(tracker: str, folder: Path) -> Curve:
    if tracker == "tensorboard":
        from holdfast.training.curves.tensorboard import TensorBoardCurve

        return TensorBoardCurve(os.environ.get(BUCKET, folder))
    if tracker == "mlflow":
        from holdfast.training.curves.mlflow import MlflowCurve

        return MlflowCurve("experiment", tracking_uri=folder.as_uri())
    from holdfast.training.curves.wandb import WandbCurve

    return WandbCurve(project="project", dir=str(folder), mode="offline")


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_in_write(curve: Curve, number: int) -> None:
    """Kills the process once the tracker has half of the points of its write `number`."""
    tracker: Any = curve._tracker
    write = tracker.write
    writes: list[int] = []

    def write_or_die(points: list[Point]) -> None:
        writes.append(len(points))
        if len(writes) == number:
            write(points[: len(points) // 2])
            kill()
        write(points)

    tracker.write = write_or_die


def train(tracker: str, url: str, folder: Path, steps: int) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    curve = make_curve(tracker, folder)
    fatal_write = int(os.environ.get(KILL_IN_WRITE, "0"))
    kill_in_write(curve, fatal_write)
    state = {
        "model": model,
        "optimizer": optimizer,
        "curve": curve,
    }
    with Checkpointer(url, state, run=RUN, every=5) as ckpt:
        for step in range(ckpt.step, steps):
            inputs = torch.randn(4, 8)
            errors = model(inputs).squeeze(1) - inputs.sum(1)
            loss = errors.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            values = {"loss": loss.item()}
            if step % 4 == 3:
                weights = model.weight.detach()
                values["weight"] = float(weights.sum())
            curve.log(step + 1, values)
            if str(step + 1) == os.environ.get(KILL_IN_STEP):
                kill()
            ckpt.tick(step + 1)
            if step % 7 == 6:
                curve.log_after_tick({"accuracy": loss.item()})
            # In every start the tracker has the same points before the next step.
            assert ckpt.wait(60)
            until(
                lambda: curve._tried_step == curve._durable_step, lambda: "no write", within_s=120
            )


def read_tensorboard(folder: Path) -> dict[str, Any]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    url = os.environ.get(BUCKET, folder.as_uri())
    filesystem, path = fsspec.core.url_to_fs(url)
    runs = filesystem.glob(f"{path}/{RUN}-*")
    run_url = filesystem.unstrip_protocol(runs[0]).removeprefix("file://")
    events = EventAccumulator(run_url, size_guidance={"scalars": 0}).Reload()
    lines = {}
    for name in events.Tags()["scalars"]:
        lines[name] = [(event.step, event.value) for event in events.Scalars(name)]
    return {"runs": len(runs), "lines": lines}


def read_mlflow(folder: Path) -> dict[str, Any]:
    from mlflow import MlflowClient

    client = MlflowClient(folder.as_uri())
    experiment = client.get_experiment_by_name("experiment")
    runs = client.search_runs([experiment.experiment_id])
    first_run = runs[0]
    lines = {}
    for name in first_run.data.metrics:
        history = client.get_metric_history(first_run.info.run_id, name)
        lines[name] = [(metric.step, metric.value) for metric in history]
    assert first_run.info.status == "FINISHED"
    return {"runs": len(runs), "lines": lines}


def read_wandb(folder: Path) -> dict[str, Any]:
    """Reads what `wandb sync wandb/latest-run` would send."""
    files = [*folder.glob("wandb/offline-run-*/*.wandb")]
    (newest,) = (folder / "wandb" / "latest-run").resolve().glob("*.wandb")
    lines: dict[str, list[tuple[int, float]]] = {}
    for step, row in read_history(newest).items():
        for name, value in row.items():
            lines.setdefault(name, []).append((step, value))
    return {
        "runs": len({file.name for file in files}),
        "lines": lines,
    }


READERS = {
    "tensorboard": read_tensorboard,
    "mlflow": read_mlflow,
    "wandb": read_wandb,
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    kind, *words = sys.argv[1:]
    if kind == "read":
        tracker_name, folder_name = words
        read = READERS[tracker_name]
        curves = read(Path(folder_name))
        print(json.dumps(curves))
    else:
        checkpoints, folder_name, step_count = words
        train(kind, checkpoints, Path(folder_name), int(step_count))
