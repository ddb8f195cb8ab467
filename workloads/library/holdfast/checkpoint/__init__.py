"""Asynchronous, verified checkpoints that survive a kill at any moment: the API for a trainer.

    state = {"model": model, "optimizer": optimizer}
    with Checkpointer("gs://bucket/runs", state, run="run-7") as ckpt:
        for step in range(ckpt.step, total_steps):
            train_step()
            ckpt.tick(step + 1)

Needs torch and google-crc32c; gs:// also needs google-cloud-storage. Names load on first use, so
that the uploader process and the command line start without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from holdfast.checkpoint.errors import CheckpointExit, NotDurable, Preempted, Superseded
from holdfast.support.distribution import require_no_foreign_package

if TYPE_CHECKING:
    from holdfast.checkpoint.checkpointer import Checkpointer
    from holdfast.checkpoint.format.commit import committed_steps
    from holdfast.checkpoint.restore.tensor_loading import load_tensors
    from holdfast.checkpoint.settings import Tuning
    from holdfast.checkpoint.state import PerRank
    from holdfast.checkpoint.state.tracking import track

require_no_foreign_package()

_HOME = {
    "Checkpointer": "checkpointer",
    "PerRank": "state",
    "Tuning": "settings",
    "committed_steps": "format.commit",
    "load_tensors": "restore.tensor_loading",
    "track": "state.tracking",
}

__all__ = [
    "CheckpointExit",
    "Checkpointer",
    "NotDurable",
    "PerRank",
    "Preempted",
    "Superseded",
    "Tuning",
    "committed_steps",
    "load_tensors",
    "track",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
