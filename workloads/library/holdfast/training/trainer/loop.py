"""One rank of the trainer. `train` is the main path; launch.py calls it in every rank's process."""

import os
import threading
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from holdfast.checkpoint import Checkpointer
from holdfast.checkpoint.ranks import is_lost_peer
from holdfast.runtime import gpu
from holdfast.runtime.events import EventLog
from holdfast.support.errors import InputError
from holdfast.training.trainer.config import TrainConfig
from holdfast.training.trainer.data import Corpus, Samples, mixed_seed, seed_draws
from holdfast.training.trainer.metrics import Meter, Stopwatch, digest, slowest_of
from holdfast.training.trainer.model import ByteGPT, next_byte_loss
from holdfast.training.trainer.progress import Progress
from holdfast.training.trainer.replicas import replicate
from holdfast.vocabulary.job_identity import attempt_of

# Why it is so: infra/decisions/0032.


def train(
    config: TrainConfig,
    corpus: Corpus,
    events: EventLog,
    meter: Meter,
) -> str:
    """Run to the last step and return the digest of the result; Preempted after a notice."""
    device = chosen_device(config.device, local_rank=int(os.environ["LOCAL_RANK"]))
    patience = timedelta(seconds=config.peer_timeout_s)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=patience
    )
    rank = dist.get_rank()
    meter.lap("process group")
    events.emit(
        "start",
        rank=rank,
        world_size=config.world_size,
        attempt=attempt_of(),
    )
    samples = Samples(
        text=corpus.text,
        context=config.model.context,
        seed=config.seed,
    )
    torch.manual_seed(config.seed)
    model = ByteGPT(config.model).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    progress = Progress(config, fingerprint=corpus.fingerprint)
    replicas = replicate(model)
    meter.lap("model")

    # `model` and not `replicas`: DDP's keys begin with `module.`, and fit no other layout.
    state = {
        "model": model,
        "optimizer": optimizer,
        "progress": progress,
    }
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
        alone = Stopwatch(device)
        meter.slowest = lambda: slowest_of(dict(enumerate(of_all_ranks(alone.taken_s()))))
        for step in range(ckpt.step, config.steps):
            # dropout: nothing to save, nothing to restore
            seed_draws(mixed_seed(config.seed, step, rank), device)
            with ckpt.computing():
                alone.start()
                inputs, following = share(samples, progress.consumed, config, rank)
                loss = next_byte_loss(replicas(inputs.to(device)), following.to(device))
                alone.stop()
                optimizer.zero_grad()
                loss.backward()
            optimizer.step()
            progress.advance()
            meter.step(step + 1, loss.detach())
            ckpt.tick(step + 1)
        meter.flush()
    destroy_process_group(config.peer_timeout_s)
    return digest(model, optimizer)


def of_all_ranks(seconds: float) -> list[float]:
    """Those of this rank alone where another one is gone: the step is done, and the next tick or
    sum shows it.
    """
    found = [torch.zeros(1) for _ in range(dist.get_world_size())]
    try:
        dist.all_gather(found, torch.tensor([seconds]))
    except RuntimeError as error:
        if not is_lost_peer(error):
            raise
        return [seconds]
    return [each.item() for each in found]


def chosen_device(wanted: str, *, local_rank: int) -> torch.device:
    """`wanted`: auto, cpu or cuda. Raises InputError where a GPU was promised and is not there."""
    cuda = wanted != "cpu" and gpu.device_type(torch.cuda.is_available()) == "cuda"
    if wanted == "cuda" and not cuda:
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
    # As use_deterministic_algorithms(True), which would import the compiler to set an option of it.
    torch.set_deterministic_debug_mode("error")
    return device


def destroy_process_group(patience_s: float) -> None:
    """Give the communicators back: a GPU whose link is cut in use may need a reset. In a thread of
    its own, because with a peer that is gone it may never end.
    """

    def destroy() -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        dist.destroy_process_group()

    destroying = threading.Thread(
        target=destroy,
        name="destroy-process-group",
        daemon=True,
    )
    destroying.start()
    destroying.join(patience_s)


def share(
    samples: Samples,
    consumed: int,
    config: TrainConfig,
    rank: int,
) -> tuple[Tensor, Tensor]:
    """This rank's part of the global batch that begins at sample `consumed`."""
    count = config.batch // config.world_size
    return samples.batch(consumed + rank * count, count)
