"""What goes into a checkpoint comes back bit for bit and trains on as without a restart, or the
start refuses it.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.checkpoint import Checkpointer
from holdfast.checkpoint.state import capture
from holdfast.support.errors import InputError
from workloads.library.tests.checkpoint.jobs import TUNING, Jobs
from workloads.library.tests.checkpoint.process_groups import run
from workloads.library.tests.checkpoint.round_trips.layouts import WORLDS, are_refused, come_back
from workloads.library.tests.checkpoint.round_trips.objects import Entries, objects

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]
WITHOUT_BYTES = re.compile("u?int[1-7]|q(u?int).*")
"""Dtypes whose elements have no bytes of their own."""
STEPS = 3


@pytest.mark.filterwarnings("ignore")
def test_objects_come_back(tmp_path: Path) -> None:
    """All as one state: one save and one restore."""
    every = objects()
    refused = {name for name, (build, _) in every.items() if is_refused(build())}
    assert refused == {name for name in every if WITHOUT_BYTES.fullmatch(name)}
    going = {name: one for name, one in every.items() if name not in refused}
    undisturbed, again = ({name: build() for name, (build, _) in going.items()} for _ in range(2))
    with checkpointer(tmp_path, undisturbed) as ckpt:
        for number in range(STEPS):
            for name, (_, advance) in going.items():
                advance(undisturbed[name], number)
            ckpt.tick(number + 1)
    with checkpointer(tmp_path, again) as ckpt:
        assert ckpt.step == STEPS
        assert [name for name in going if bits(again[name]) != bits(undisturbed[name])] == []
        for name, (_, advance) in going.items():
            for number in range(STEPS, 2 * STEPS):
                advance(undisturbed[name], number)
                advance(again[name], number)
        assert [name for name in going if bits(again[name]) != bits(undisturbed[name])] == []


def is_refused(entries: Entries) -> bool:
    try:
        capture(entries)
    except InputError:
        return True
    return False


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


def bits(entries: Entries) -> Any:
    captured = capture(entries)
    own = {key: tensor for key, tensor in captured.tensors.items() if not key.startswith("__")}
    skeleton = {
        name: value for name, value in captured.skeleton.items() if not name.startswith("__")
    }
    return skeleton, {key: (t.dtype, t.shape, as_bytes(t)) for key, t in own.items()}


def as_bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())


def test_layouts_come_back_on_fewer_ranks_or_are_refused(jobs: Jobs, tmp_path: Path) -> None:
    run(jobs, tmp_path, WORLDS[0], are_refused, timeout_s=600)
    for start, world in enumerate(WORLDS):
        run(jobs, tmp_path, world, come_back, str(tmp_path), start, timeout_s=600)
