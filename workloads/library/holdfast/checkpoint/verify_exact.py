"""`verify-exact`: a short training undisturbed, and killed at several points and resumed; the bits compared.

The trainer's side (`Trial`) writes down what each step left and ends the process where asked. It is off unless
HOLDFAST_TRIAL names a file of orders; checkpoints then go to a folder of the trial, never to the run's own. The first
thing that differs is named, with the line to add. The part of a killed run before its kill is compared as well: where
that differs, the training itself gives other bits each time, and no checkpoint can be at fault.
"""

import hashlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils.data import DataLoader

from holdfast.checkpoint.state import Stateful, capture, targets
from holdfast.checkpoint.state.tensors import local_of, memory_of
from holdfast.checkpoint.state.tracking import TrackedDraw, TrackedIterable
from holdfast.contract.environment import ENV_TRIAL
from holdfast.contract.errors import InputError, Unjudged

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
        # Line by line: what is buffered would be lost with a SIGKILL, and with it the step that matters.
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
        # The next step lasts about as long as this one: half of it later, the kill falls into its middle.
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
    # What tracked data keeps are random streams, and one that is not seeded differs from start to start.
    tracked = {name for name, value in targets(state) if isinstance(value, TrackedIterable | TrackedDraw)}
    parts = {name: part for name, part in captured.skeleton.items() if name not in tracked}
    return found | {f"{name} (values)": _of_text(json.dumps(part)) for name, part in parts.items()}


def _beside(frame: FrameType | None, state: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
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
    # 64 bits: compared with one other run, and not defended against forgery.
    return hashlib.sha256(text.encode()).hexdigest()[:16]


Line = dict[str, Any]
STREAMS = "__rng__"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    death: str
    at: int
    resumed_at: int
    """0: nothing had been committed yet, so it began at step 0."""
    finding: str = ""
    """Empty: exact."""
    beside: tuple[str, ...] = ()
    """Variables that are no state and differ, in a run that is exact all the same."""


def verify(
    command: list[str], folder: Path, *, steps: int, timeout_s: float, deaths: Sequence[str] = DEATHS
) -> Iterator[Verdict]:
    """Raises Unjudged if the command ends before `steps`, InputError if it trains without Checkpointer."""
    every = max(1, steps // 4)
    whole = _run(command, folder / "whole", Orders(store="", trace="", steps=steps, every=every), timeout_s)
    if not whole:
        raise InputError(
            "command trains without Checkpointer",
            got=" ".join(command)[:200],
            allowed="a command in which Checkpointer.tick() is called after each step",
            fix="run the script that holds the loop, with few steps",
        )
    if min(max(lines) for lines in whole.values()) < steps:
        raise Unjudged(f"the undisturbed run made fewer than {steps} steps: choose --steps")
    for death in deaths:
        # Between saves, so that steps have to be repeated; where a save is killed, in that step.
        at = 2 * every if death == KILL_SAVING else min(steps - 1, 2 * every + max(1, every // 2))
        orders = Orders(store="", trace="", steps=steps, every=every, die_at=at, death=death)
        yield _judged(command, folder / death.replace(" ", "-"), orders, whole, timeout_s)


def _judged(
    command: list[str], folder: Path, orders: Orders, whole: dict[str, dict[int, Line]], timeout_s: float
) -> Verdict:
    killed = _run(command, folder, orders, timeout_s, trace="killed", dies=True)
    resumed = _run(command, folder, Orders(store="", trace="", steps=orders.steps, every=orders.every), timeout_s)
    first = min((min(lines) for lines in resumed.values()), default=orders.steps + 1)
    found, beside = "", tuple[str, ...]()
    for rank, lines in whole.items():
        # First the part before the kill: where that differs, what comes after proves nothing about checkpoints.
        before = killed.get(rank, {})
        if unsteady := _first_difference(lines, before, _streams(lines)):
            found = (
                f"step {unsteady[0]} differs before the kill ({unsteady[1][0]}): the training itself is not repeatable"
            )
            break
        # A stream that is not seeded, and that nothing draws from, differs from start to start.
        if different := _first_difference(lines, resumed.get(rank, {}), _unseeded(lines, before)):
            found = explain(lines, resumed[rank], *different)
            break
        beside += tuple(sorted(_variables(lines, resumed.get(rank, {}), orders.steps)))
    return Verdict(death=orders.death, at=orders.die_at, resumed_at=first - 1, finding=found, beside=beside)


def _run(
    command: list[str], folder: Path, orders: Orders, timeout_s: float, *, trace: str = "trace", dies: bool = False
) -> dict[str, dict[int, Line]]:
    """What each rank wrote: lines by step."""
    # A folder for each death: a run must not find the checkpoints of another.
    folder.mkdir(exist_ok=True)
    file = folder / "orders.json"
    values = {name: getattr(orders, name) for name in ("steps", "every", "die_at", "death")}
    Orders(store=str(folder / "store"), trace=f"{folder / trace}-", **values).write(file)
    log = folder / f"{trace}.log"
    # A file and no pipe: one that is not read blocks the trainer once it is full.
    with log.open("w") as out:
        try:
            done = subprocess.run(
                command, env=os.environ | {ENV_TRIAL: str(file)}, stdout=out, stderr=out, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise Unjudged(f"no end within {timeout_s:.0f} s; its output is in {log}") from error
        except OSError as error:
            raise InputError(
                "command cannot be started", got=str(error), allowed="a program", fix="check what follows --"
            ) from error
    if bool(done.returncode) != dies:
        raise Unjudged(f"the command ended with {done.returncode}; its output ends: {log.read_text()[-600:]}")
    return {path.stem.removeprefix(f"{trace}-"): _lines(path) for path in sorted(folder.glob(f"{trace}-*.jsonl"))}


def _lines(path: Path) -> dict[int, Line]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["step"]: line for line in found}


def _first_difference(
    whole: Mapping[int, Line], other: Mapping[int, Line], but: set[str]
) -> tuple[int, list[str]] | None:
    """Step and keys. `but`: keys that do not count."""
    for step in sorted(other):
        mine, theirs = whole[step]["state"], other[step]["state"]
        if keys := [key for key in mine if mine[key] != theirs.get(key) and key not in but]:
            return step, keys
    return None


def _streams(whole: Mapping[int, Line]) -> set[str]:
    """Keys of the random streams, and of what belongs to them."""
    return {key for line in whole.values() for key in line["state"] if key.startswith(STREAMS)}


def _unseeded(whole: Mapping[int, Line], before: Mapping[int, Line]) -> set[str]:
    differing = {
        key
        for step, line in before.items()
        for key, found in line["state"].items()
        if found != whole[step]["state"].get(key)
    }
    return differing & _streams(whole)


def _variables(whole: Mapping[int, Line], other: Mapping[int, Line], step: int) -> dict[str, str]:
    """Kinds of the variables that differ at this step, by name."""
    if step not in other:
        return {}
    mine, theirs = whole[step]["beside"], other[step]["beside"]
    return {name: kind for name, (kind, value) in mine.items() if name in theirs and theirs[name][1] != value}


def explain(whole: Mapping[int, Line], resumed: Mapping[int, Line], step: int, keys: list[str]) -> str:
    """The first thing that differs and the line to add, by what else differs at that step."""
    kinds = _variables(whole, resumed, step)
    of_kind = {kind: sorted(name for name, found in kinds.items() if found == kind) for kind in set(kinds.values())}
    loaders = sorted(name for name, (kind, _) in whole[step]["beside"].items() if kind == "loader")
    lead = f"step {step}: {_what(keys)} differs"
    if names := of_kind.get("stateful"):
        return f'{lead}, and so does {names[0]}, which is not in the state; add "{names[0]}": {names[0]} to it'
    if names := of_kind.get("tensor"):
        if loaders:
            line = f"{loaders[0]} = track({loaders[0]})"
            return f'{lead}, since it saw other data ({", ".join(names)}); write {line}, and add "data": {loaders[0]}'
        line = "draw = track(draw, ahead=1)"
        return (
            f"{lead}, since it saw other data ({', '.join(names)}); where a loop draws a batch before it is needed, "
            f'write {line} for the function that draws it, and add "data": draw'
        )
    if names := of_kind.get("value"):
        return f"{lead}, and so do {', '.join(names)}, which are not in the state"
    if all(key.startswith(STREAMS) for key in keys):
        return (
            f"{lead}: a resumed start draws more or fewer random numbers before its first step than the whole run did"
        )
    return f"{lead}; nothing else that could be seen does: look for what the step reads elsewhere"


def _what(keys: list[str]) -> str:
    ordered = sorted(keys, key=lambda key: key.startswith(STREAMS))
    more = f" (and {len(keys) - 1} more)" if len(keys) > 1 else ""
    return f"{ordered[0]}{more}"
