"""Trains as tutorials do, for comparison only: `python -m holdfast.drill.naive`, with the flags of
`train run`.

Model, data, batch, ranks and interval are those of the trainer. The twin differs only in what the
report compares: torch.save to one file while the training waits, overwriting the last good copy; a
handler that exits with 0 at once; and a resume that restores weights and step, but not the position
in the data and the random stream.
"""

import signal
import sys
import tempfile
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import typer
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from holdfast.runtime.events import EventLog
from holdfast.runtime.phases import Phases
from holdfast.support.errors import run_cli
from holdfast.training import cli
from holdfast.training.trainer.config import TrainConfig
from holdfast.training.trainer.data import Corpus, Samples
from holdfast.training.trainer.loop import share
from holdfast.training.trainer.metrics import Meter, digest
from holdfast.training.trainer.model import ByteGPT, next_byte_loss
from holdfast.training.trainer.rendezvous import use_loopback
from holdfast.vocabulary.job_identity import read_attempt
from holdfast.vocabulary.telemetry import KIND_TRAINING

_LOOK_S = 0.5


def train(
    rank: int,
    config: TrainConfig,
    corpus: Corpus,
    rendezvous: str,
) -> None:
    # The default action, because a Python handler runs only after the call in which a rank waits.
    # The launcher exits with 0.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=config.ranks,
    )
    events = EventLog.open(config.events, job=config.run, kind=KIND_TRAINING)
    events.emit(
        "start",
        rank=rank,
        world_size=config.ranks,
        attempt=read_attempt(),
    )
    samples = Samples(text=corpus.text, context=config.model.context, seed=config.seed)
    torch.manual_seed(config.seed)
    model = ByteGPT(config.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    first = resume(config, model, optimizer, events if rank == 0 else None)
    replicas = DistributedDataParallel(model)
    meter = Meter(events, every=config.report_every)
    meter.begin(first, lead=rank == 0)
    for step in range(first, config.steps):
        # The data starts over: the twin does not save its position.
        inputs, following = share(samples, (step - first) * config.batch, config, rank)
        loss = next_byte_loss(replicas(inputs), following)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.step(step + 1, loss.detach())
        if rank == 0 and (step + 1) % int(config.every) == 0:
            save(config, model, optimizer, step + 1, events)
    meter.flush()
    if rank == 0:
        events.emit(
            "exit",
            code=0,
            step=config.steps,
            digest=digest(model, optimizer),
        )


def save(
    config: TrainConfig,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    step: int,
    events: EventLog,
) -> None:
    start = time.monotonic()
    path = _checkpoint_path(config)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A kill during the save leaves a torn file in place of the last good one, on purpose.
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "step": step,
        },
        path,
    )
    seconds = round(time.monotonic() - start, 6)
    size = path.stat().st_size
    events.emit("save", step=step, blocking_seconds=seconds, bytes=size)
    events.emit("commit", step=step, seconds=seconds, bytes=size)


def resume(
    config: TrainConfig,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    events: EventLog | None,
) -> int:
    """Loads the checkpoint and returns its step; 0 if it is absent or torn by a kill."""
    start = time.monotonic()
    step = 0
    skipped = list[list[object]]()
    try:
        state: dict[str, Any] = torch.load(_checkpoint_path(config), weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = int(state["step"])
    except FileNotFoundError:
        pass
    except Exception as error:  # noqa: BLE001  # a torn file can raise anything
        skipped.append([0, f"{type(error).__name__}: {error}"[:200]])
    if events:
        events.emit(
            "restore",
            step=step,
            seconds=round(time.monotonic() - start, 6),
            skipped=skipped,
        )
    return step


def launch(config: TrainConfig, phases: Phases) -> int:
    """Runs one process per rank; on SIGTERM it ends them and exits with 0.

    Returns the largest absolute exit code of the ranks.
    """
    signal.set_wakeup_fd(-1)  # `train run` handles notices; this twin does not
    use_loopback()
    corpus = Corpus.read(config.data)
    with tempfile.TemporaryDirectory() as folder:
        context = mp.get_context("fork")
        rendezvous = f"{folder}/rendezvous"
        ranks: list[BaseProcess] = []
        for rank in range(config.ranks):
            process = context.Process(target=train, args=(rank, config, corpus, rendezvous))
            ranks.append(process)
        for process in ranks:
            process.start()

        def terminate(signum: int, frame: FrameType | None) -> None:
            for process in ranks:
                process.terminate()
            sys.exit(0)

        signal.signal(signal.SIGTERM, terminate)
        for process in ranks:
            # In parts: a signal just before a wait would be handled after it.
            while process.is_alive():
                process.join(_LOOK_S)
        return max(abs(process.exitcode or 0) for process in ranks)


def _checkpoint_path(config: TrainConfig) -> Path:
    folder = config.checkpoints.removeprefix("file://")
    return Path(folder) / config.run / "checkpoint.pt"


def main() -> None:
    cli.launcher = "holdfast.drill.naive"
    typer.run(cli.run)


if __name__ == "__main__":
    run_cli(main)
