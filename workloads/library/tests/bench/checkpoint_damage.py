"""The same damages to our checkpoints and to DCP's: how many load without a word."""

import logging
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
from workloads.library.tests.checkpoint import mesh_checkpoints
from workloads.library.tests.checkpoint.corruptions import DAMAGES
from workloads.library.tests.checkpoint.jobs import RUN as JOB
from workloads.library.tests.checkpoint.jobs import Jobs

PER_KIND = 50
RUN = "damage"
MESH = "holdfast, mesh of two axes"


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
    logging.disable(logging.WARNING)  # it logs tracebacks of what it reads, at the root
    try:
        dcp.load(tensors, checkpoint_id=folder / "dcp" / "2", no_dist=True)
    finally:
        logging.disable(logging.NOTSET)
    return 2, tensors


def wrong(load: Callable[[Path], tuple[int, dict[str, torch.Tensor]]], folder: Path) -> tuple[bool, bool]:
    """(loaded bits that nobody saved, restored something sound)"""
    try:
        step, tensors = load(folder)
    except (Exception, dcp.CheckpointException):  # noqa: BLE001  DCP fails in many ways; each is a detection
        return False, False
    same = all(torch.equal(tensors[key], value) for key, value in state(step).items())
    return not same, same


def of_a_mesh(folder: Path) -> dict[str, int]:
    """The same damages to a checkpoint that four ranks wrote from a mesh of two axes."""
    folder.mkdir()
    sound, counts = mesh_checkpoints.write(Jobs(), folder), {"injected": 0, "undetected": 0, "restored": 0}
    new, old = (f"step-{step:010d}" for step in (mesh_checkpoints.NEW, mesh_checkpoints.OLD))
    for kind, damage in DAMAGES.items():
        for number in range(PER_KIND):
            copy = folder / "copy"
            shutil.copytree(sound, copy)
            if damage(copy / JOB / new, copy / JOB / old, random.Random(f"{kind}{number}")):
                counts["injected"] += 1
                counts[_came_back(copy, folder)] += 1
            shutil.rmtree(copy)
    return counts


def _came_back(copy: Path, folder: Path) -> str:
    try:
        return "restored" if mesh_checkpoints.verified(copy, folder) == mesh_checkpoints.OLD else "undetected"
    except AssertionError:
        return "undetected"


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
    return counts | {MESH: of_a_mesh(folder / "mesh")}
