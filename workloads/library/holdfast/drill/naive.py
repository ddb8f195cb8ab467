"""What tutorials do, for comparison only: `python -m holdfast.drill.naive`, with the flags of
`train run`.

The same model, data, batch, ranks and interval as the trainer. Different is only what the report
compares: torch.save to one file while the training waits, overwriting the last good copy; a handler
that exits with 0 at once; and a resume that restores weights and step, and forgets where in the
data and the random stream the run was.
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
from holdfast.vocabulary.job_identity import attempt_of
from holdfast.vocabulary.telemetry import KIND_TRAINING


def train(
    rank: int,
    config: TrainConfig,
    corpus: Corpus,
    rendezvous: str,
) -> None:
    signal.signal(signal.SIGTERM, _exit_zero)
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
        attempt=attempt_of(),
    )
    samples = Samples(
        text=corpus.text,
        context=config.model.context,
        seed=config.seed,
    )
    torch.manual_seed(config.seed)
    model = ByteGPT(config.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    first = resume(config, model, optimizer, events if rank == 0 else None)
    replicas = DistributedDataParallel(model)
    meter = Meter(events, every=config.report_every)
    meter.begin(first, lead=rank == 0)
    for step in range(first, config.steps):
        # the data starts over
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
    began = time.monotonic()
    path = _file(config)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A kill in here leaves a torn file in the place of the last good one: that is the comparison.
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "step": step,
        },
        path,
    )
    took = time.monotonic() - began
    size = path.stat().st_size
    events.emit(
        "save",
        step=step,
        blocking_seconds=round(took, 6),
        bytes=size,
    )
    events.emit(
        "commit",
        step=step,
        seconds=round(took, 6),
        bytes=size,
    )


def resume(
    config: TrainConfig,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    events: EventLog | None,
) -> int:
    """The step in the file; 0 when there is none or when a kill in the middle of a save has spoilt
    it.
    """
    began = time.monotonic()
    step = 0
    skipped = list[list[object]]()
    try:
        saved: dict[str, Any] = torch.load(_file(config), weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = int(saved["step"])
    except FileNotFoundError:
        pass
    except Exception as error:  # noqa: BLE001  # whatever a torn file raises
        skipped.append([0, f"{type(error).__name__}: {error}"[:200]])
    if events:
        events.emit(
            "restore",
            step=step,
            seconds=round(time.monotonic() - began, 6),
            skipped=skipped,
        )
    return step


def launch(config: TrainConfig, phases: Phases) -> int:
    """One process for each rank; SIGTERM is passed on, and the pod exits with 0."""
    signal.set_wakeup_fd(-1)  # the command takes notices; this twin does not
    use_loopback()
    corpus = Corpus.read(config.data)
    with tempfile.TemporaryDirectory() as folder:
        context = mp.get_context("fork")
        ranks: list[BaseProcess] = [
            context.Process(target=train, args=(rank, config, corpus, f"{folder}/rendezvous"))
            for rank in range(config.ranks)
        ]
        for process in ranks:
            process.start()

        def terminate(signum: int, frame: FrameType | None) -> None:
            for process in ranks:
                process.terminate()
            sys.exit(0)

        signal.signal(signal.SIGTERM, terminate)
        for process in ranks:
            process.join()
        return max(abs(process.exitcode or 0) for process in ranks)


def _file(config: TrainConfig) -> Path:
    return Path(config.checkpoints.removeprefix("file://")) / config.run / "checkpoint.pt"


def _exit_zero(signum: int, frame: FrameType | None) -> None:
    sys.exit(0)


def main() -> None:
    cli.launcher = "holdfast.drill.naive"
    typer.run(cli.run)


if __name__ == "__main__":
    run_cli(main)
