"""Damages our checkpoints and those of others in the same ways, and counts those that load without
an error.
"""

import logging
import os
import random
import shutil
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

from holdfast.checkpoint import Checkpointer, load_tensors
from workloads.library.tests.bench.checkpoints.rivals import (
    ITEM,
    TorchCheckpointing,
    environment,
    make_manager,
)
from workloads.library.tests.checkpoint import mesh_checkpoints
from workloads.library.tests.checkpoint.corruptions import DAMAGES
from workloads.library.tests.checkpoint.jobs import RUN as JOB
from workloads.library.tests.checkpoint.jobs import Jobs

PER_KIND = 50
RUN = "damage"
MESH = "holdfast, mesh of two axes"


def state(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    tensors: dict[str, torch.Tensor] = {}
    for i in range(4):
        tensors[f"t{i}"] = torch.empty(5000).uniform_(generator=generator)
    return tensors


def write_both(folder: Path) -> None:
    tensors = state(0)
    with (
        redirect_stderr(StringIO()),
        Checkpointer(
            str(folder / "ours"),
            {"t": tensors},
            run=RUN,
            every=1,
        ) as ckpt,
    ):
        for step in (1, 2):
            for key, value in state(step).items():
                tensors[key].copy_(value)
            ckpt.tick(step)
            ckpt.wait()
    for step in (1, 2):
        dcp.save(state(step), checkpoint_id=folder / "dcp" / str(step), no_dist=True)


def holds(tensors: Mapping[str, torch.Tensor], step: int, prefix: str = "") -> bool:
    """Tells whether the tensors are those of this step."""
    return all(torch.equal(tensors[prefix + key], value) for key, value in state(step).items())


def ours_loads(copy: Path) -> bool:
    step, tensors = load_tensors(copy, RUN, keys=["t/"])
    return holds(tensors, step, "t/")


def dcp_loads(copy: Path) -> bool:
    tensors = state(0)
    logging.disable(logging.WARNING)  # it logs tracebacks of what it reads, at the root
    try:
        dcp.load(tensors, checkpoint_id=copy / "2", no_dist=True)
    finally:
        logging.disable(logging.NOTSET)
    return holds(tensors, 2)


def write_rival(folder: Path) -> None:
    for step in (1, 2):
        # Its index is written by the first save of a manager.
        manager = make_manager(has_index=True)
        manager.save(str(folder / str(step)), {ITEM: state(step)})
        manager.close()


def rival_loads(copy: Path) -> bool:
    tensors = state(0)
    manager = make_manager(has_index=True)
    logging.disable(logging.WARNING)  # it logs tracebacks of what it reads, at the root
    try:
        manager.load(copy / "2", into={ITEM: tensors}, strict=True)
    finally:
        logging.disable(logging.NOTSET)
    return holds(tensors, 2)


def fate(loads: Callable[[Path], bool], copy: Path) -> str:
    """Tells what became of a damage; `loads` returns whether the loaded state is the saved one."""
    try:
        return "restored" if loads(copy) else "undetected"
    except (Exception, dcp.CheckpointException):  # noqa: BLE001  DCP fails in many ways; each is a detection
        return "detected"


def count_fates(folder: Path) -> dict[str, dict[str, int]]:
    """Damages copies of each checkpoint; one of our own is of a mesh of two axes and four ranks."""
    warnings.simplefilter("ignore")
    write_both(folder)
    variables, absent = environment()
    sys.path += variables.get("PYTHONPATH", "").split(os.pathsep)
    mesh = folder / "mesh"
    mesh.mkdir()
    old = f"{JOB}/step-{mesh_checkpoints.OLD:010d}"
    new = f"{JOB}/step-{mesh_checkpoints.NEW:010d}"

    def mesh_loads(copy: Path) -> bool:
        try:
            return mesh_checkpoints.verified(copy, mesh) == mesh_checkpoints.OLD
        except AssertionError:
            return False

    # The folder, its newer and its older checkpoint, and the function that loads it.
    subjects = {
        "holdfast": (
            folder / "ours",
            f"{RUN}/step-0000000002",
            f"{RUN}/step-0000000001",
            ours_loads,
        ),
        "dcp": (folder / "dcp", "2", "1", dcp_loads),
        MESH: (mesh_checkpoints.write(Jobs(), mesh), new, old, mesh_loads),
    }
    if TorchCheckpointing.name not in absent:
        rival = folder / "rival"
        rival.mkdir()
        write_rival(rival)
        subjects[TorchCheckpointing.name] = (rival, "2", "1", rival_loads)
    fates = ("injected", "undetected", "restored", "detected")
    counts = {name: dict.fromkeys(fates, 0) for name in subjects}
    for kind, damage in DAMAGES.items():
        for number in range(PER_KIND):
            for name, (sound, newer, older, loads) in subjects.items():
                copy = Path(shutil.copytree(sound, folder / "copy"))
                if damage(copy / newer, copy / older, random.Random(f"{kind}{number}")):
                    counts[name]["injected"] += 1
                    counts[name][fate(loads, copy)] += 1
                shutil.rmtree(copy)
    return counts
