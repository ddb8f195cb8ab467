"""A state is restored bit for bit and trains on as without a restart, or the start refuses it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.checkpoint import Checkpointer
from holdfast.checkpoint.state import RNG_KEY, capture
from holdfast.support.errors import InputError
from workloads.library.tests.checkpoint.jobs import TUNING, Jobs
from workloads.library.tests.checkpoint.process_groups import run
from workloads.library.tests.checkpoint.round_trips.layouts import (
    WORLDS,
    check_refused,
    check_restored,
)
from workloads.library.tests.checkpoint.round_trips.objects import Entries, Step, objects

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]
WITHOUT_BYTES = re.compile("u?int[1-7]|q(u?int).*")
"""Names of dtypes whose elements have no bytes of their own."""
STEPS = 3


@pytest.mark.filterwarnings("ignore")
def test_objects_are_restored_or_refused(tmp_path: Path) -> None:
    """All objects are one state, with one save and one restore."""
    steps: dict[str, Step] = {}
    continued: dict[str, Entries] = {}
    restarted: dict[str, Entries] = {}
    for name, (build, advance) in objects().items():
        if WITHOUT_BYTES.fullmatch(name):
            with pytest.raises(InputError):
                capture(build())
            continue
        steps[name] = advance
        continued[name] = build()
        restarted[name] = build()
    with checkpointer(tmp_path, continued) as ckpt:
        for number in range(STEPS):
            for name, advance in steps.items():
                advance(continued[name], number)
            ckpt.tick(number + 1)
    with checkpointer(tmp_path, restarted) as ckpt:
        assert ckpt.step == STEPS
        for name in steps:
            assert bits(restarted[name]) == bits(continued[name]), name
        for name, advance in steps.items():
            for number in range(STEPS, 2 * STEPS):
                advance(continued[name], number)
                advance(restarted[name], number)
        for name in steps:
            assert bits(restarted[name]) == bits(continued[name]), name


def checkpointer(folder: Path, built: Mapping[str, Entries]) -> Checkpointer:
    state = {}
    for name, entries in built.items():
        for key, value in entries.items():
            state[f"{name}.{key}"] = value
    return Checkpointer(
        folder,
        state,
        run="objects",
        every=10**9,
        tuning=TUNING,
    )


def bits(entries: Entries) -> dict[str, Any]:
    """Return all values and tensors of some entries in a form that can be compared."""
    captured = capture(entries)
    contents: dict[str, Any] = {"values": captured.skeleton}
    contents["values"].pop(RNG_KEY)
    for key, tensor in captured.tensors.items():
        if not key.startswith(RNG_KEY):
            contents[key] = (tensor.dtype, tensor.shape, as_bytes(tensor))
    return contents


def as_bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())


def test_layouts_are_restored_on_fewer_ranks_or_refused(jobs: Jobs, tmp_path: Path) -> None:
    run(
        jobs,
        tmp_path,
        WORLDS[0],
        check_refused,
        timeout_s=600,
    )
    for start, world in enumerate(WORLDS):
        run(
            jobs,
            tmp_path,
            world,
            check_restored,
            str(tmp_path),
            start,
            timeout_s=600,
        )
