"""Takes layouts and objects through their saves and starts, many in one process group, and says how each came back."""

import json
from pathlib import Path
from typing import Any

import torch

from holdfast.checkpoint import Checkpointer
from holdfast.checkpoint.state import capture
from holdfast.contract.errors import InputError
from workloads.library.tests.checkpoint.jobs import TUNING, Jobs
from workloads.library.tests.checkpoint.process_groups import run
from workloads.library.tests.checkpoint.round_trips import layouts as laid
from workloads.library.tests.checkpoint.round_trips.layouts import EXACT, LAYOUTS, WORLDS, refused, slug
from workloads.library.tests.checkpoint.round_trips.objects import STEPS, Object, objects

Rows = dict[str, str]
PATIENCE_S = 600.0


def all_layouts(jobs: Jobs, folder: Path) -> Rows:
    """How each layout came through its starts: the first that was not exact, else `exact`."""
    folder.mkdir()
    rows = {layout.name: EXACT for layout in LAYOUTS}
    for start, world in enumerate(WORLDS):
        going = [name for name, found in rows.items() if found == EXACT]
        results = folder / f"results-{start}"
        run(jobs, folder, world, laid.start_all, str(folder), start, going, str(results), timeout_s=PATIENCE_S)
        for name, found in json.loads(results.read_text()).items():
            rows[name] = found
    return rows


Built = dict[str, dict[str, Any]]


def all_objects(folder: Path) -> Rows:
    """As one state: one save and one restore for all of them."""
    every = {one.name: one for one in objects()}
    rows: Rows = {name: why for name, one in every.items() if (why := _refusal(one))}
    going = {name: one for name, one in every.items() if name not in rows}
    undisturbed = {name: one.build() for name, one in going.items()}
    _save(folder, going, undisturbed)
    saved = {name: _bits(built) for name, built in undisturbed.items()}
    return rows | _go_on_beside(folder, going, undisturbed, saved)


def _refusal(one: Object) -> str:
    try:
        capture(one.build())
    except InputError as error:
        return refused(error)
    return ""


def _as_state(built: Built) -> dict[str, Any]:
    return {f"{slug(name)}.{key}": value for name, entries in built.items() for key, value in entries.items()}


def _save(folder: Path, going: dict[str, Object], built: Built) -> None:
    with Checkpointer(folder, _as_state(built), run="objects", every=10**9, tuning=TUNING) as ckpt:
        for number in range(STEPS):
            for name, one in going.items():
                one.advance(built[name], number)
            ckpt.tick(number + 1)


def _go_on_beside(folder: Path, going: dict[str, Object], undisturbed: Built, saved: dict[str, Any]) -> Rows:
    again = {name: one.build() for name, one in going.items()}
    rows: Rows = {}
    with Checkpointer(folder, _as_state(again), run="objects", every=10**9, tuning=TUNING) as ckpt:
        assert ckpt.step == STEPS
        for name, one in going.items():
            if _bits(again[name]) != saved[name]:
                rows[name] = "restored other bits"
                continue
            for number in range(STEPS, 2 * STEPS):
                one.advance(undisturbed[name], number)
                one.advance(again[name], number)
            rows[name] = EXACT if _bits(again[name]) == _bits(undisturbed[name]) else "went on otherwise"
    return rows


def _bits(entries: dict[str, Any]) -> Any:
    captured = capture(entries)
    own = {key: tensor for key, tensor in captured.tensors.items() if not key.startswith("__")}
    skeleton = {name: value for name, value in captured.skeleton.items() if not name.startswith("__")}
    return skeleton, {key: (str(t.dtype), tuple(t.shape), _bytes(t)) for key, t in own.items()}


def _bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())
