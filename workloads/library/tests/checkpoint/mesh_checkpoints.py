"""Writes two checkpoints of a model on a mesh of two axes, which tests then damage."""

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
    """Write the checkpoints of steps OLD and NEW, and their expected tensors. Returns the URL."""
    for step in (OLD, NEW):
        run(
            jobs,
            folder,
            WORLD,
            train,
            str(folder / "url"),
            step,
        )
    assert verified(folder / "url", folder) == NEW
    return folder / "url"


def verified(url: Path, folder: Path) -> int:
    """Load the newest checkpoint and compare every bit of it. Returns its step."""
    restored_step, tensors = load_tensors(
        url,
        RUN,
        keys=["model/", "optimizer/"],
    )
    expected = torch.load(folder / f"url-truth-{restored_step}", weights_only=True)
    assert same(tensors, expected), f"step {restored_step} restores with other bits"
    return restored_step
