"""Two checkpoints of a model on a mesh of two axes, to be damaged."""

from pathlib import Path

import torch
import torch.distributed as dist

from holdfast.checkpoint import Checkpointer, load_tensors
from workloads.library.tests.checkpoint.jobs import RUN, TUNING, Jobs
from workloads.library.tests.checkpoint.process_groups import run, same, step, whole
from workloads.library.tests.checkpoint.test_meshes import build

OLD, NEW = 3, 6
WORLD = 4  # FSDP2 over tensor parallelism, two ranks each; shards of unequal sizes


def write(jobs: Jobs, folder: Path) -> Path:
    """URL of the checkpoints of steps OLD and NEW, with what must be in them beside."""
    run(jobs, folder, WORLD, train, str(folder / "url"))
    assert verified(folder / "url", folder) == NEW
    return folder / "url"


def train(world: int, url: str) -> None:
    state = build(world)
    with Checkpointer(url, state, run=RUN, every=OLD, tuning=TUNING) as ckpt:
        for number in range(1, NEW + 1):
            step(state, number)
            if number % OLD == 0:
                full = whole(state)
                if dist.get_rank() == 0:
                    torch.save(full, Path(url).with_name(f"truth-{number}"))
            ckpt.tick(number)


def verified(url: Path, folder: Path) -> int:
    """Step of the newest checkpoint, after comparing every bit of it with what was saved."""
    found, tensors = load_tensors(url, RUN, keys=["model/", "optimizer/"])
    truth = torch.load(folder / f"truth-{found}", weights_only=True)
    assert same(tensors, truth), f"step {found} restores with other bits"
    return found
