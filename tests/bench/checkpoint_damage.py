"""The same damages to our checkpoints and to DCP's: how many load without a word. Used by the benchmark."""

import random
import shutil
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

from holdfast.checkpoint import Checkpointer, load_tensors
from tests.workloads.library.checkpoint.corruptions import DAMAGES

PER_KIND = 38
RUN = "damage"


def state(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {f"t{i}": torch.empty(5000).uniform_(generator=generator) for i in range(4)}


def write_both(folder: Path) -> None:
    tensors = state(0)
    with redirect_stderr(StringIO()), Checkpointer(str(folder / "ours"), {"t": tensors}, run=RUN, every=1) as ckpt:
        for step in (1, 2):
            for key, value in state(step).items():
                tensors[key].copy_(value)
            ckpt.tick(step)
            ckpt.wait()
    for step in (1, 2):
        dcp.save(state(step), checkpoint_id=folder / "dcp" / str(step), no_dist=True)


def ours_loads(folder: Path) -> tuple[int, dict[str, torch.Tensor]]:
    step, tensors = load_tensors(str(folder / "ours"), RUN, keys=["t/"])
    return step, {key.removeprefix("t/"): value for key, value in tensors.items()}


def dcp_loads(folder: Path) -> tuple[int, dict[str, torch.Tensor]]:
    tensors = state(0)
    dcp.load(tensors, checkpoint_id=folder / "dcp" / "2", no_dist=True)
    return 2, tensors


def wrong(load: Callable[[Path], tuple[int, dict[str, torch.Tensor]]], folder: Path) -> tuple[bool, bool]:
    """(loaded bits that nobody saved, restored something sound)"""
    try:
        step, tensors = load(folder)
    except (Exception, dcp.CheckpointException):  # noqa: BLE001  DCP fails in many ways; each is a detection
        return False, False
    same = all(torch.equal(tensors[key], value) for key, value in state(step).items())
    return not same, same


def count_undetected(folder: Path) -> dict[str, dict[str, int]]:
    warnings.simplefilter("ignore")
    write_both(folder / "pristine")
    counts = {name: {"injected": 0, "undetected": 0, "restored": 0} for name in ("holdfast", "dcp")}
    for kind, damage in DAMAGES.items():
        for number in range(PER_KIND):
            shutil.copytree(folder / "pristine", folder / "copy")
            ours, theirs = folder / "copy/ours" / RUN, folder / "copy/dcp"
            for name, load, new, old in (
                ("holdfast", ours_loads, ours / "step-0000000002", ours / "step-0000000001"),
                ("dcp", dcp_loads, theirs / "2", theirs / "1"),
            ):
                if damage(new, old, random.Random(f"{kind}{number}")):
                    silent, sound = wrong(load, folder / "copy")
                    counts[name]["injected"] += 1
                    counts[name]["undetected"] += silent
                    counts[name]["restored"] += sound
            shutil.rmtree(folder / "copy")
    return counts
