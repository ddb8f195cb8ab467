"""Asynchronous, verified checkpoints that may be killed at any moment. What a user's own trainer imports.

    with Checkpointer("gs://bucket/runs", {"model": model, "optimizer": optimizer}, run="run-7") as ckpt:
        for step in range(ckpt.step, total_steps):
            train_step()
            ckpt.tick(step + 1)

Needs torch and google-crc32c; gs:// needs google-cloud-storage. Names load on first use, so that the
uploader process and the command line start without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workloads.checkpoint.checkpointer import Checkpointer, Preempted
    from workloads.checkpoint.restore import load_tensors
    from workloads.checkpoint.settings import Tuning
    from workloads.checkpoint.tree import PerRank

_HOME = {
    "Checkpointer": "workloads.checkpoint.checkpointer",
    "PerRank": "workloads.checkpoint.tree",
    "Preempted": "workloads.checkpoint.checkpointer",
    "Tuning": "workloads.checkpoint.settings",
    "load_tensors": "workloads.checkpoint.restore",
}

__all__ = ["Checkpointer", "PerRank", "Preempted", "Tuning", "load_tensors"]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
