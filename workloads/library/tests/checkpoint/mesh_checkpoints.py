"""Two checkpoints of a model on a mesh of two axes, to be damaged."""

from pathlib import Path

import torch

from holdfast.checkpoint import load_tensors
from workloads.library.tests.checkpoint.jobs import RUN, Jobs
from workloads.library.tests.checkpoint.process_groups import run, same
from workloads.library.tests.checkpoint.test_meshes import train

OLD = 2
NEW = 4
WORLD = 4  # FSDP2 over tensor parallelism, two ranks each; shards of unequal sizes


def write(jobs: Jobs, folder: Path) -> Path:
    """URL of the checkpoints of steps OLD and NEW, with what must be in them beside."""
    for step in (OLD, NEW):
        run(jobs, folder, WORLD, train, str(folder / "url"), step)
    assert verified(folder / "url", folder) == NEW
    return folder / "url"


def verified(url: Path, folder: Path) -> int:
    """Step of the newest checkpoint, after comparing every bit of it with what was saved."""
    found, tensors = load_tensors(url, RUN, keys=["model/", "optimizer/"])
    truth = torch.load(folder / f"url-truth-{found}", weights_only=True)
    assert same(tensors, truth), f"step {found} restores with other bits"
    return found
