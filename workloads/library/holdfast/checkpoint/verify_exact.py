"""`verify-exact`: a short training undisturbed, and killed at several points and resumed; the bits
compared.

The trainer's side (`Trial`) writes down what each step left and ends the process where the orders
say so. It is off unless HOLDFAST_TRIAL names a file of orders; checkpoints then go to a folder of
the trial, never to the run's own. The first thing that differs is named, with the line to add. The
part of a killed run before its kill is compared as well: where that differs, the training itself
gives other bits each time, and no checkpoint can be at fault.
"""

import hashlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

import torch
from torch.utils.data import DataLoader

from holdfast.checkpoint.findings import (
    Line,
    explain,
    first_difference,
    streams_in,
    unseeded,
    unseeded_in,
)
from holdfast.checkpoint.state import Stateful, capture, targets
from holdfast.checkpoint.state.random_streams import stream_of
from holdfast.checkpoint.state.tensors import local_of, memory_of
from holdfast.checkpoint.state.tracking import TrackedDraw, TrackedIterable
from holdfast.support.errors import InputError, Unjudged
from holdfast.vocabulary.environment import ENV_TRIAL

KILL = "SIGKILL"
KILL_SAVING = "SIGKILL in a save"
KILL_IN_STEP = "SIGKILL in a step"
NOTICE = "SIGTERM"
DEATHS = (KILL, KILL_SAVING, KILL_IN_STEP, NOTICE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Orders:
    steps: int
    """The process exits cleanly after this one."""
    every: int
    die_at: int = 0
    death: str = ""
    store: str = ""
    trace: str = ""
    """Each rank adds its number and `.jsonl`."""


class Trial:
    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        # Line by line: what is buffered would be lost with a SIGKILL, and with it the step that
        # matters.
        path = Path(f"{orders.trace}{os.environ.get('RANK', '0')}.jsonl")
        self._file = path.open("a", buffering=1)
        self._began = time.monotonic()

    @classmethod
    def of_environment(cls) -> "Trial | None":
        path = os.environ.get(ENV_TRIAL, "")
        return cls(Orders(**json.loads(Path(path).read_text()))) if path else None

    def stepped(self, step: int, state: Mapping[str, Any], frame: FrameType | None) -> None:
        """Before anything is saved or left. `frame`: of what the loop has called."""
        loop = frame.f_back if frame else None
        line = {
            "step": step,
            "state": digests(state),
            "unsaved": _unsaved(loop, state),
        }
        self._file.write(json.dumps(line) + "\n")
        if step == self.orders.die_at and self.orders.death in (KILL, NOTICE):
            os.kill(os.getpid(), signal.SIGKILL if self.orders.death == KILL else signal.SIGTERM)

    def saved(self, step: int) -> None:
        """After what was due. Raises SystemExit where the trial is over."""
        # The next step lasts about as long as this one: half of it later, the kill falls into its
        # middle.
        step_s = time.monotonic() - self._began
        self._began = time.monotonic()
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
    # What tracked data keeps are random streams, and one that is not seeded differs from start to
    # start.
    tracked = {
        name for name, value in targets(state) if isinstance(value, TrackedIterable | TrackedDraw)
    }
    parts = {name: part for name, part in captured.skeleton.items() if name not in tracked}
    return found | {f"{name} (values)": _of_text(json.dumps(part)) for name, part in parts.items()}


def _unsaved(frame: FrameType | None, state: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Variables of the loop that may belong into the state: kind and digest by name."""
    if frame is None:
        return {}
    # By identity: a variable may equal an entry of the state and still be another object.
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
        return ("measure" if isinstance(value, float) else "value"), repr(value)
    stream = stream_of(value)
    if stream is not None:
        return "generator", _of_text(stream)
    if isinstance(value, Stateful) and not isinstance(value, type):
        try:
            own = {}
            for key, found in digests({"it": value}).items():
                if key.startswith("it"):
                    own[key] = found
            return "stateful", _of_text(json.dumps(own))
        except (InputError, TypeError, AssertionError):
            return None
    if isinstance(value, DataLoader):
        return "loader", ""
    return ("iterator", "") if isinstance(value, Iterator) else None


def _of_tensor(tensor: torch.Tensor) -> str:
    local = local_of(tensor).cpu().contiguous()
    return hashlib.sha256(memory_of(local)).hexdigest()[:16]


def _of_text(text: str) -> str:
    # 64 bits: compared with one other run, and not defended against forgery.
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExactnessResult:
    death: str
    at: int
    resumed_at: int | None = None
    """0: nothing had been committed yet, so it began at step 0; None: it differed before, so it was
    not resumed.
    """
    finding: str = ""
    """Empty: exact."""


def verify(
    command: list[str],
    folder: Path,
    *,
    steps: int,
    timeout_s: float,
) -> Iterator[ExactnessResult]:
    """Raises Unjudged if the command ends before `steps` or all starts together take longer than
    `timeout_s`, InputError if it trains without Checkpointer.
    """
    every = max(1, steps // 4)
    ends = time.monotonic() + timeout_s
    whole = _run(command, folder / "whole", Orders(steps=steps, every=every), ends)
    if not whole:
        raise InputError(
            "command trains without Checkpointer",
            got=" ".join(command)[:200],
            allowed="a command in which Checkpointer.tick() is called after each step",
            fix="run the script that holds the loop, with few steps",
        )
    if min(max(lines) for lines in whole.values()) < steps:
        raise Unjudged(f"the undisturbed run made fewer than {steps} steps: choose --steps")
    for death in DEATHS:
        # Between saves, so that steps have to be repeated; where a save is killed, in that step.
        at = 2 * every if death == KILL_SAVING else min(steps - 1, 2 * every + max(1, every // 2))
        orders = Orders(steps=steps, every=every, die_at=at, death=death)
        yield _judged(command, folder / death.replace(" ", "-"), orders, whole, ends)


def _judged(
    command: list[str],
    folder: Path,
    orders: Orders,
    whole: dict[str, dict[int, Line]],
    ends: float,
) -> ExactnessResult:
    killed = _run(
        command,
        folder,
        orders,
        ends,
        trace="killed",
        dies=True,
    )
    for rank, lines in whole.items():
        # First the part before the kill: where that differs, what comes after proves nothing about
        # checkpoints.
        before = killed.get(rank, {})
        unsteady = first_difference(lines, before, streams_in(lines))
        if unsteady:
            why = unseeded(lines, before) or _by_hashes(command, folder, orders, unsteady[0], ends)
            finding = f"step {unsteady[0]} differs before the kill ({unsteady[1][0]}): {why}"
            return ExactnessResult(
                death=orders.death,
                at=orders.die_at,
                finding=finding,
            )
    resumed = _run(command, folder, Orders(steps=orders.steps, every=orders.every), ends)
    first = min((min(lines) for lines in resumed.values()), default=orders.steps + 1)
    found = ""
    for rank, lines in whole.items():
        # A stream that is not seeded, and that nothing draws from, differs from start to start.
        different = first_difference(
            lines, resumed.get(rank, {}), unseeded_in(lines, killed.get(rank, {}))
        )
        if different:
            found = explain(lines, resumed[rank], *different)
            break
    return ExactnessResult(
        death=orders.death,
        at=orders.die_at,
        resumed_at=first - 1,
        finding=found,
    )


def _run(
    command: list[str],
    folder: Path,
    orders: Orders,
    ends: float,
    *,
    trace: str = "trace",
    dies: bool = False,
    env: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, dict[int, Line]]:
    """What each rank wrote: lines by step."""
    # A folder for each death: a run must not find the checkpoints of another.
    folder.mkdir(exist_ok=True)
    file = folder / "orders.json"
    file.write_text(
        json.dumps(asdict(replace(orders, store=str(folder / "store"), trace=f"{folder / trace}-")))
    )
    log = folder / f"{trace}.log"
    # A file and no pipe: one that is not read blocks the trainer once it is full.
    with log.open("w") as out:
        try:
            done = subprocess.run(
                command,
                env={
                    **os.environ,
                    **env,
                    ENV_TRIAL: str(file),
                },
                stdout=out,
                stderr=out,
                timeout=max(0.0, ends - time.monotonic()),
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Unjudged(
                "no end in time: choose a longer --timeout or fewer --steps; its output ends:"
                f" {log.read_text()[-600:]}"
            ) from error
        except OSError as error:
            raise InputError(
                "command cannot be started",
                got=str(error),
                allowed="a program",
                fix="check what follows --",
            ) from error
    if bool(done.returncode) != dies:
        raise Unjudged(
            f"the command ended with {done.returncode}; its output ends: {log.read_text()[-600:]}"
        )
    return {
        path.stem.removeprefix(f"{trace}-"): {
            line["step"]: line for line in map(json.loads, path.read_text().splitlines())
        }
        for path in sorted(folder.glob(f"{trace}-*.jsonl"))
    }


def _by_hashes(
    command: list[str],
    folder: Path,
    orders: Orders,
    step: int,
    ends: float,
) -> str:
    """Whether it is repeatable once strings have the same hash at each start."""
    short = Orders(steps=step, every=orders.every)
    env = {"PYTHONHASHSEED": "0"}
    one, other = (_run(command, folder / f"hashes-{n}", short, ends, env=env) for n in range(2))
    if any(first_difference(one[rank], lines, streams_in(lines)) for rank, lines in other.items()):
        return "the training itself is not repeatable"
    return (
        "it depends on the order of a set, which differs between starts; iterate over sorted(...),"
        " or set PYTHONHASHSEED"
    )
