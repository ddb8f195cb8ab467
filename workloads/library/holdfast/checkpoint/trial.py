"""The trainer's side of `verify-exact`: writes down what each step left, and ends or kills the process where asked.

Off unless HOLDFAST_TRIAL names a file of orders. Checkpoints then go to a folder of the trial, never to the run's own.
"""

import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils.data import DataLoader

from holdfast.checkpoint.pieces import memory_of
from holdfast.checkpoint.sharded import local_of
from holdfast.checkpoint.tracking import TrackedDraw, TrackedIterable
from holdfast.checkpoint.tree import Stateful, capture, targets
from holdfast.contract.environment import ENV_TRIAL
from holdfast.contract.errors import InputError

KILL, KILL_SAVING, KILL_IN_STEP, NOTICE = "SIGKILL", "SIGKILL in a save", "SIGKILL in a step", "SIGTERM"
DEATHS = (KILL, KILL_SAVING, KILL_IN_STEP, NOTICE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Orders:
    store: str
    trace: str
    """Each rank adds its number and `.jsonl`."""
    steps: int
    """The process ends in order after this one."""
    every: int
    die_at: int = 0
    death: str = ""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))


class Trial:
    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self._file = Path(f"{orders.trace}{os.environ.get('RANK', '0')}.jsonl").open("a", buffering=1)  # noqa: SIM115
        self._began = time.monotonic()

    @classmethod
    def of_environment(cls) -> "Trial | None":
        path = os.environ.get(ENV_TRIAL, "")
        return cls(Orders(**json.loads(Path(path).read_text()))) if path else None

    def stepped(self, step: int, state: Mapping[str, Any], frame: FrameType | None) -> None:
        """Before anything is saved or left. `frame`: of what the loop has called."""
        loop = frame.f_back if frame else None
        line = {"step": step, "state": digests(state), "beside": _beside(loop, state)}
        self._file.write(json.dumps(line) + "\n")
        if step == self.orders.die_at and self.orders.death == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == self.orders.die_at and self.orders.death == NOTICE:
            os.kill(os.getpid(), signal.SIGTERM)

    def saved(self, step: int) -> None:
        """After what was due. Raises SystemExit where the trial is over."""
        step_s, self._began = time.monotonic() - self._began, time.monotonic()
        if step == self.orders.die_at and self.orders.death == KILL_SAVING:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == self.orders.die_at and self.orders.death == KILL_IN_STEP:
            threading.Timer(step_s / 2, os.kill, (os.getpid(), signal.SIGKILL)).start()
        if step >= self.orders.steps:
            raise SystemExit(0)


def digests(state: Mapping[str, Any]) -> dict[str, str]:
    """Of every tensor by its key, and of the values of every entry."""
    captured = capture(state)
    found = {key: _of_tensor(tensor) for key, tensor in captured.tensors.items()}
    # What tracked data keeps are random streams, and one that nobody seeds differs from start to start.
    tracked = {name for name, value in targets(state) if isinstance(value, TrackedIterable | TrackedDraw)}
    parts = {name: part for name, part in captured.skeleton.items() if name not in tracked}
    return found | {f"{name} (values)": _of_text(json.dumps(part)) for name, part in parts.items()}


def _beside(frame: FrameType | None, state: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Variables of the loop that may belong into the state: kind and digest by name."""
    if frame is None:
        return {}
    known = {id(value) for _, value in targets(state)}
    seen = {**frame.f_globals, **frame.f_locals}
    return {
        name: described
        for name, value in seen.items()
        if not name.startswith("_") and id(value) not in known and (described := _described(value))
    }


def _described(value: Any) -> tuple[str, str] | None:
    if isinstance(value, torch.Tensor):
        return "tensor", _of_tensor(value)
    if isinstance(value, bool | int | float | str):
        return "value", repr(value)
    if isinstance(value, Stateful) and not isinstance(value, type):
        try:
            own = {key: found for key, found in digests({"it": value}).items() if key.startswith("it")}
            return "stateful", _of_text(json.dumps(own))
        except (InputError, TypeError, AssertionError):
            return None
    return ("loader", "") if isinstance(value, DataLoader | Iterator) else None


def _of_tensor(tensor: torch.Tensor) -> str:
    local = local_of(tensor).cpu().contiguous()
    return hashlib.sha256(memory_of(local)).hexdigest()[:16]


def _of_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
