"""One rank of the trainer. `train` is the main path; launch.py calls it in every rank's process."""

import os
import threading
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from holdfast.checkpoint import Checkpointer
from holdfast.checkpoint.ranks import is_lost_peer
from holdfast.runtime import gpu
from holdfast.runtime.events import EventLog
from holdfast.runtime.gpu import name_gpu
from holdfast.support.errors import InputError
from holdfast.training.trainer.config import TrainConfig
from holdfast.training.trainer.data import Corpus, Samples, mix_seed, seed_draws
from holdfast.training.trainer.metrics import Meter, Stopwatch, describe_slowest, digest
from holdfast.training.trainer.model import ByteGPT, next_byte_loss
from holdfast.training.trainer.progress import Progress
from holdfast.training.trainer.replicas import replicate
from holdfast.vocabulary.job_identity import read_attempt

# Why it is so: infra/decisions/0032.


def train(config: TrainConfig, corpus: Corpus, events: EventLog, meter: Meter) -> str:
    """Trains to the last step and returns the result's digest. Raises Preempted after a notice."""
    device = choose_device(config.device, local_rank=int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        timeout=timedelta(seconds=config.peer_timeout_s),
    )
    rank = dist.get_rank()
    meter.lap("process group")
    events.emit(
        "start",
        rank=rank,
        world_size=config.world_size,
        attempt=read_attempt(),
        steps=config.steps,
        **name_gpu(),
    )
    samples = Samples(text=corpus.text, context=config.model.context, seed=config.seed)
    torch.manual_seed(config.seed)
    model = ByteGPT(config.model).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    progress = Progress(config, fingerprint=corpus.fingerprint)
    replicas = replicate(model)
    meter.lap("model")

    # `model` and not `replicas`: DDP's keys begin with `module.`, and fit no other layout.
    state = {"model": model, "optimizer": optimizer, "progress": progress}
    with Checkpointer(
        config.checkpoints,
        state,
        run=config.run,
        every=config.every,
        keep=config.keep,
        events=events if rank == 0 else None,
        window_s=config.window_s,
    ) as ckpt:
        meter.lap("restore")
        meter.begin(ckpt.step, lead=rank == 0)
        if rank == 0:
            progress.log_resized()
        stopwatch = Stopwatch(device)

        def find_slowest() -> dict[str, Any]:
            seconds = gather_seconds(stopwatch.taken_s())
            return describe_slowest(dict(enumerate(seconds)))

        meter.slowest = find_slowest
        for step in range(ckpt.step, config.steps):
            # dropout: nothing to save, nothing to restore
            seed_draws(mix_seed(config.seed, step, rank), device)
            with ckpt.computing():
                stopwatch.start()
                inputs, following = share(samples, progress.consumed, config, rank)
                loss = next_byte_loss(replicas(inputs.to(device)), following.to(device))
                stopwatch.stop()
                optimizer.zero_grad()
                loss.backward()
            optimizer.step()
            progress.advance()
            meter.step(step + 1, loss.detach())
            ckpt.tick(step + 1)
        meter.flush()
    destroy_process_group(config.peer_timeout_s)
    return digest(model, optimizer)


def gather_seconds(seconds: float) -> list[float]:
    """Returns the seconds of all ranks, by rank.

    Returns those of this rank alone if a rank was lost: the step is done, and the next tick or
    all-reduce reports the loss.
    """
    gathered = [torch.zeros(1) for _ in range(dist.get_world_size())]
    try:
        dist.all_gather(gathered, torch.tensor([seconds]))
    except RuntimeError as error:
        if not is_lost_peer(error):
            raise
        return [seconds]
    return [tensor.item() for tensor in gathered]


def choose_device(name: str, *, local_rank: int) -> torch.device:
    """Returns the device for `name`: auto, cpu or cuda.

    Raises InputError if `name` or the image promises a GPU and there is none.
    """
    cuda = name != "cpu" and gpu.device_type(torch.cuda.is_available()) == "cuda"
    if name == "cuda" and not cuda:
        raise InputError(
            "there is no GPU",
            got="--device cuda",
            allowed="auto, cpu",
            fix="--device auto",
        )
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic matrix products
    else:
        torch.set_num_threads(1)  # sums keep their order whatever the machine
    # The same as use_deterministic_algorithms(True), which would import the compiler to set an
    # option of it.
    torch.set_deterministic_debug_mode("error")
    return device


def destroy_process_group(patience_s: float) -> None:
    """Releases the communicators: a GPU whose link is cut in use may need a reset.

    Waits at most `patience_s`, because it may never end if a peer was lost.
    """

    def destroy() -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        dist.destroy_process_group()

    thread = threading.Thread(target=destroy, name="destroy-process-group", daemon=True)
    thread.start()
    thread.join(patience_s)


def share(
    samples: Samples,
    consumed: int,
    config: TrainConfig,
    rank: int,
) -> tuple[Tensor, Tensor]:
    """Returns this rank's part of the global batch that begins at sample `consumed`."""
    count = config.batch // config.world_size
    return samples.batch(consumed + rank * count, count)
