"""The trainer as PyTorch alone allows it: torchrun and dcp.async_save, no code for signals.

Run as `torchrun --standalone --nproc-per-node 2 -m
workloads.library.tests.bench.checkpoints.dcp_twin FOLDER EVENTS STEPS EVERY REPORT_EVERY`. Model,
data and batch are the trainer's; the position in the data follows from the step.
"""

import os
import sys
from concurrent.futures import Future
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

from holdfast.runtime.events import EventLog
from holdfast.training.trainer.config import TrainConfig
from holdfast.training.trainer.data import Corpus, Samples, mix_seed, seed_draws
from holdfast.training.trainer.loop import share
from holdfast.training.trainer.metrics import Meter
from holdfast.training.trainer.model import ByteGPT, next_byte_loss
from workloads.library.tests.fork_server import die_with


def main(
    folder: Path,
    events_path: Path,
    steps: int,
    every: int,
    report_every: int,
) -> None:
    die_with(os.getppid())  # torchrun gives it its own session and does not end it
    config = TrainConfig(
        checkpoints=str(folder),
        steps=steps,
        every=every,
        device="cpu",
        report_every=report_every,
    )
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    # async_save hangs on the group that the training uses.
    group = dist.new_group(backend="gloo")
    samples = Samples(
        text=Corpus.read(None).text,
        context=config.model.context,
        seed=config.seed,
    )
    torch.manual_seed(config.seed)
    model = ByteGPT(config.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    events = EventLog.open(events_path, job="dcp", kind="training")
    first = newest(folder)
    if first:
        weights, moments = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=folder / str(first))
        set_state_dict(
            model,
            optimizer,
            model_state_dict=weights,
            optim_state_dict=moments,
        )
    replicas = DistributedDataParallel(model)
    meter = Meter(events, every=config.report_every)
    meter.begin(first, lead=rank == 0)
    saving: Future[object] | None = None
    for step in range(first, steps):
        seed_draws(mix_seed(config.seed, step, rank), torch.device("cpu"))
        inputs, following = share(samples, step * config.batch, config, rank)
        loss = next_byte_loss(replicas(inputs), following)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.step(step + 1, loss.detach())
        if (step + 1) % every == 0:
            if saving:
                saving.result()
            weights, moments = get_state_dict(model, optimizer)
            state = {"model": weights, "optimizer": moments}
            saving = dcp.async_save(
                state, checkpoint_id=folder / str(step + 1), process_group=group
            )
    if saving:
        saving.result()
    dist.destroy_process_group()  # else an exit now and then aborts: a thread of gloo still runs


def newest(folder: Path) -> int:
    """Returns the step of the newest whole checkpoint, or 0."""
    return max((int(metadata.parent.name) for metadata in folder.glob("*/.metadata")), default=0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
