"""`verify-exact`: runs a short training undisturbed, then killed at several points and resumed, and
compares the bits.

The trainer's side (`Trial`) records the state after each step and ends the process as the orders
state. It is off unless HOLDFAST_TRIAL names a file of orders; checkpoints then go to a folder of
the trial, never to that of the run. The report names the first difference, with the line to add.
The part of a killed run before its kill is compared as well: if that differs, the training itself
is not repeatable, and no checkpoint can be at fault.
"""

import hashlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

import torch
from torch.utils.data import DataLoader

from holdfast.checkpoint.commit_listeners import CommitListener
from holdfast.checkpoint.state import Stateful, capture, targets
from holdfast.checkpoint.state.random_streams import describe_stream
from holdfast.checkpoint.state.tensors import to_local, view_memory
from holdfast.checkpoint.state.tracking import TrackedDraw, TrackedIterable
from holdfast.checkpoint.trace_comparison import (
    Trace,
    explain,
    explain_streams,
    find_streams,
    find_unseeded_streams,
    first_difference,
)
from holdfast.support.errors import InputError, Unjudged
from holdfast.vocabulary.environment import ENV_TRIAL

KILL = "SIGKILL"
KILL_SAVING = "SIGKILL in a save"
KILL_IN_STEP = "SIGKILL in a step"
NOTICE = "SIGTERM"
GRACE_S = 5.0
Variable = tuple[str, str]
"""Kind and digest of a variable of the loop."""
DEATHS = (KILL, KILL_SAVING, KILL_IN_STEP, NOTICE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Orders:
    """Orders of a trial, which the trainer reads from a file."""

    steps: int
    """Number of steps after which the process exits cleanly."""
    every: int
    die_at: int = 0
    death: str = ""
    store: str = ""
    trace: str = ""
    """Path to which each rank adds its number and `.jsonl`."""


class Trial:
    """The trainer's side of a trial: records each step, and ends the process as ordered."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        # Line by line: a buffer would be lost with a SIGKILL, and with it the step that matters.
        rank = os.environ.get("RANK", "0")
        path = Path(f"{orders.trace}{rank}.jsonl")
        self._file = path.open("a", buffering=1)
        self._step_started_at = time.monotonic()

    @classmethod
    def from_environment(cls) -> "Trial | None":
        path = os.environ.get(ENV_TRIAL, "")
        if not path:
            return None
        fields = json.loads(Path(path).read_text())
        return cls(Orders(**fields))

    def record_step(
        self,
        step: int,
        state: Mapping[str, Any],
        frame: FrameType | None,
    ) -> None:
        """Records the state of `step`, before a save or a stop.

        `frame` is the frame of the function that the loop called.
        """
        loop = frame.f_back if frame else None
        line = {
            "step": step,
            "state": digest_state(state),
            "unsaved": _digest_variables(loop, state),
        }
        self._file.write(json.dumps(line) + "\n")
        if step != self.orders.die_at:
            return
        if self.orders.death == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.orders.death == NOTICE:
            os.kill(os.getpid(), signal.SIGTERM)

    def end_if_due(self, step: int) -> None:
        """Ends the process if the orders say so, after a save that was due. Raises SystemExit."""
        # The next step takes about as long as this one, so a kill after half that time falls into
        # its middle.
        step_s = time.monotonic() - self._step_started_at
        self._step_started_at = time.monotonic()
        if step == self.orders.die_at and self.orders.death == KILL_SAVING:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == self.orders.die_at and self.orders.death == KILL_IN_STEP:
            victim = (os.getpid(), signal.SIGKILL)
            threading.Timer(step_s / 2, os.kill, victim).start()
        if step >= self.orders.steps:
            raise SystemExit(0)


def digest_state(state: Mapping[str, Any]) -> dict[str, str]:
    """Returns digests of every tensor, by its key, and of the values of every entry."""
    captured = capture(state)
    digests: dict[str, str] = {}
    for key, tensor in captured.tensors.items():
        digests[key] = _digest_tensor(tensor)
    # The values of tracked data are random streams, and an unseeded stream differs from start to
    # start, as do the times of a listener such as a curve.
    tracked: set[str] = set()
    for name, entry in targets(state):
        if isinstance(entry, TrackedIterable | TrackedDraw | CommitListener):
            tracked.add(name)
    for name, values in captured.skeleton.items():
        if name not in tracked:
            digests[f"{name} (values)"] = _digest_text(json.dumps(values))
    return digests


def _digest_variables(frame: FrameType | None, state: Mapping[str, Any]) -> dict[str, Variable]:
    """Returns kind and digest of the loop's variables that may belong to the state, by name."""
    if frame is None:
        return {}
    # By identity: a variable may equal an entry of the state and still be another object.
    entry_ids = {id(entry) for _, entry in targets(state)}
    variables = {**frame.f_globals, **frame.f_locals}
    digests: dict[str, Variable] = {}
    for name, value in variables.items():
        if name.startswith("_") or id(value) in entry_ids:
            continue
        digest = _digest_variable(value)
        if digest:
            digests[name] = digest
    return digests


def _digest_variable(value: Any) -> Variable | None:
    if isinstance(value, torch.Tensor):
        return "tensor", _digest_tensor(value)
    if isinstance(value, float):
        return "measure", repr(value)
    if isinstance(value, bool | int | str):
        return "value", repr(value)
    stream = describe_stream(value)
    if stream is not None:
        return "generator", _digest_text(stream)
    if isinstance(value, Stateful) and not isinstance(value, type):
        return _digest_stateful(value)
    if isinstance(value, DataLoader):
        return "loader", ""
    return ("iterator", "") if isinstance(value, Iterator) else None


def _digest_stateful(value: Stateful) -> Variable | None:
    """Returns kind and digest of an object; None: it cannot be saved."""
    try:
        digests = digest_state({"it": value})
    except (InputError, TypeError, AssertionError):
        return None
    # The other digests are those of the random streams, which every state holds.
    digests = {key: digest for key, digest in digests.items() if key.startswith("it")}
    return "stateful", _digest_text(json.dumps(digests))


def _digest_tensor(tensor: torch.Tensor) -> str:
    local = to_local(tensor).cpu().contiguous()
    return hashlib.sha256(view_memory(local)).hexdigest()[:16]


def _digest_text(text: str) -> str:
    # 64 bits: compared with one other run, and not defended against forgery.
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExactnessResult:
    """The outcome of one way to die."""

    death: str
    step: int
    """Step at which the run was killed."""
    resumed_at: int | None = None
    """Step from which it resumed; 0: nothing had been committed yet; None: it was not resumed,
    since it differed before the kill.
    """
    finding: str = ""
    """The first difference and its cause; empty: exact."""


def verify(
    command: list[str],
    folder: Path,
    *,
    steps: int,
    timeout_s: float,
) -> Iterator[ExactnessResult]:
    """Runs `command` undisturbed, then once for each way to die, and yields a result for each.

    Raises Unjudged if the command ends before `steps` or all starts together take longer than
    `timeout_s`, InputError if it trains without Checkpointer.
    """
    every = max(1, steps // 4)
    deadline = time.monotonic() + timeout_s
    reference = _run(
        command,
        folder / "whole",
        Orders(steps=steps, every=every),
        deadline,
    )
    if not reference:
        raise InputError(
            "command trains without Checkpointer",
            got=" ".join(command)[:200],
            allowed="a command in which Checkpointer.tick() is called after each step",
            fix="run the script that holds the loop, with few steps",
        )
    last_steps = [max(trace) for trace in reference.values()]
    if min(last_steps) < steps:
        raise Unjudged(f"the undisturbed run made fewer than {steps} steps: choose --steps")
    for death in DEATHS:
        # Between saves, so that steps have to be repeated; to kill a save, in the step of a save.
        die_at = 2 * every
        if death != KILL_SAVING:
            half = max(1, every // 2)
            die_at = min(steps - 1, 2 * every + half)
        orders = Orders(
            steps=steps,
            every=every,
            die_at=die_at,
            death=death,
        )
        yield _verify_death(
            command,
            folder / death.replace(" ", "-"),
            orders,
            reference,
            deadline,
        )


def _verify_death(
    command: list[str],
    folder: Path,
    orders: Orders,
    reference: dict[str, Trace],
    deadline: float,
) -> ExactnessResult:
    killed = _run(
        command,
        folder,
        orders,
        deadline,
        trace="killed",
        dies=True,
    )
    for rank, trace in reference.items():
        # First the part before the kill: if that differs, what comes after proves nothing about
        # checkpoints.
        killed_trace = killed.get(rank, {})
        difference = first_difference(trace, killed_trace, find_streams(trace))
        if difference:
            step, keys = difference
            cause = explain_streams(trace, killed_trace)
            if not cause:
                cause = _explain_by_hashes(
                    command,
                    folder,
                    orders,
                    step,
                    deadline,
                )
            return ExactnessResult(
                death=orders.death,
                step=orders.die_at,
                finding=f"step {step} differs before the kill ({keys[0]}): {cause}",
            )
    resumed = _run(
        command,
        folder,
        Orders(steps=orders.steps, every=orders.every),
        deadline,
    )
    first_steps = [min(trace) for trace in resumed.values()]
    first_step = min(first_steps, default=orders.steps + 1)
    finding = ""
    for rank, trace in reference.items():
        # An unseeded stream that nothing draws from differs from start to start.
        unseeded = find_unseeded_streams(trace, killed.get(rank, {}))
        difference = first_difference(trace, resumed.get(rank, {}), unseeded)
        if difference:
            step, keys = difference
            finding = explain(
                trace,
                resumed[rank],
                step,
                keys,
            )
            break
    return ExactnessResult(
        death=orders.death,
        step=orders.die_at,
        resumed_at=first_step - 1,
        finding=finding,
    )


def _run(
    command: list[str],
    folder: Path,
    orders: Orders,
    deadline: float,
    *,
    trace: str = "trace",
    dies: bool = False,
    env: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Trace]:
    """Runs the command under `orders`, and returns the trace of each rank.

    Raises Unjudged, InputError.
    """
    # One folder for each death: a run must not find the checkpoints of another.
    folder.mkdir(exist_ok=True)
    store = str(folder / "store")
    orders = replace(orders, store=store, trace=f"{folder / trace}-")
    orders_file = folder / "orders.json"
    orders_file.write_text(json.dumps(asdict(orders)))
    environment = {**os.environ, **env, ENV_TRIAL: str(orders_file)}
    log = folder / f"{trace}.log"
    # A file and no pipe: one that is not read blocks the trainer once it is full.
    with log.open("w") as output:
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except OSError as error:
            raise InputError(
                "command cannot be started",
                got=str(error),
                allowed="a program",
                fix="check what follows --",
            ) from error
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            raise Unjudged(
                "no end in time: choose a longer --timeout or fewer --steps; its output ends:"
                f" {_read_end(log)}"
            ) from error
        finally:
            _end_group(process)
    if bool(process.returncode) != dies:
        raise Unjudged(
            f"the command ended with {process.returncode}; its output ends: {_read_end(log)}"
        )
    traces: dict[str, Trace] = {}
    for path in sorted(folder.glob(f"{trace}-*.jsonl")):
        rank = path.stem.removeprefix(f"{trace}-")
        lines = map(json.loads, path.read_text().splitlines())
        traces[rank] = {line["step"]: line for line in lines}
    if dies:
        last_steps = map(max, filter(None, traces.values()))
        steps = max(last_steps, default=0)
        if steps < orders.die_at:
            raise Unjudged(
                f"the command ended with {process.returncode} after {steps} of {orders.die_at}"
                f" steps, before it was killed; its output ends: {_read_end(log)}"
            )
    return traces


def _read_end(log: Path) -> str:
    return log.read_bytes()[-600:].decode(errors="replace")


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a command that still runs, and the processes that it has started.

    A launcher gets time to end its ranks, which may have groups of their own.
    """
    if process.poll() is not None:
        return
    with suppress(subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _explain_by_hashes(
    command: list[str],
    folder: Path,
    orders: Orders,
    step: int,
    deadline: float,
) -> str:
    """Runs the training twice with the same hashes of strings, and explains by the result why it
    was not repeatable.
    """
    short = Orders(steps=step, every=orders.every)
    env = {"PYTHONHASHSEED": "0"}
    first = _run(
        command,
        folder / "hashes-0",
        short,
        deadline,
        env=env,
    )
    second = _run(
        command,
        folder / "hashes-1",
        short,
        deadline,
        env=env,
    )
    for rank, trace in second.items():
        if first_difference(first[rank], trace, find_streams(trace)):
            return "the training itself is not repeatable"
    return (
        "it depends on the order of a set, which differs between starts; iterate over sorted(...),"
        " or set PYTHONHASHSEED"
    )
