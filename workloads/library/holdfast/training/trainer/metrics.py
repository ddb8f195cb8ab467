"""Reports of a run: a `window` event every few steps, and the digest of its result."""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.runtime import logs
from holdfast.runtime.events import EventLog
from holdfast.runtime.phases import Phases

SLOW = 1.5
"""Ratio to the median time of the other ranks from which on a rank is reported as slow."""
_MIN_MEDIAN_S = 0.05  # shorter windows are mostly noise


class Stopwatch:
    """Measures the seconds that a rank computes by itself: the parts of its steps before an
    exchange, which waits for all ranks.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._now: Callable[[], Any] = _record_event if self._on_gpu else time.perf_counter
        self._parts: list[tuple[Any, Any]] = []
        """Start and end of each part: CUDA events on a GPU, else seconds."""
        self._start: Any = None

    def start(self) -> None:
        self._start = self._now()

    def stop(self) -> None:
        end = self._now()
        self._parts.append((self._start, end))

    def taken_s(self) -> float:
        """Returns the seconds of the parts since the last call.

        Waits until the GPU has finished the last part.
        """
        parts = self._parts
        self._parts = []
        if self._on_gpu and parts:
            _, last_end = parts[-1]
            last_end.synchronize()
        seconds = 0.0
        for start, end in parts:
            if self._on_gpu:
                seconds += start.elapsed_time(end) / 1e3
            else:
                seconds += end - start
        return seconds


def _record_event() -> torch.cuda.Event:
    """Returns an event that the GPU reaches in the stream's order, so its waits count too."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def describe_slowest(seconds: Mapping[int, float]) -> dict[str, Any]:
    """Returns fields of a `window` event that name the slowest rank and its ratio to the others.

    `seconds` maps rank to seconds. Returns an empty dict if the median of the other ranks is too
    short to compare with.
    """
    rank = max(seconds, key=seconds.__getitem__)
    seconds_of_others = [value for other, value in seconds.items() if other != rank]
    if not seconds_of_others:
        return {}
    median_s = median(seconds_of_others)
    if median_s < _MIN_MEDIAN_S:
        return {}
    return {
        "slowest_rank": rank,
        "slowest_by": round(seconds[rank] / median_s, 2),
    }


class Meter:
    """Writes a `window` event every few steps. Reading the loss waits for the GPU, so not every
    step.
    """

    def __init__(
        self,
        events: EventLog,
        *,
        every: int,
        phases: Phases | None = None,
        on_step: Callable[[int], None] = lambda done: None,
    ) -> None:
        self.slowest: Callable[[], dict[str, Any]] | None = None
        """Returns the fields that name the slowest rank. If set, every rank has to call `step` and
        `flush`, because it is a collective.
        """
        self._slow_rank: int | None = None
        self._events = events
        self._every = every
        self._on_step = on_step
        self._phases = phases
        self._lead = False
        self._first = 0
        self._last = 0
        self._window_start = time.monotonic()
        self._loss: Tensor | None = None

    def lap(self, name: str) -> None:
        if self._phases:
            self._phases.lap(name)

    def begin(self, done: int, *, lead: bool) -> None:
        """Starts after `done` restored steps. The rank with `lead` writes for all."""
        self._lead = lead
        self._open_window(done)

    def follow(self, *, lead: bool) -> None:
        """Updates the lead of a gang. The windows of a new lead start with its next step."""
        if lead and not self._lead:
            self._open_window(self._last)
        self._lead = lead

    def step(self, done: int, loss: Tensor) -> None:
        self._last = done
        self._loss = loss
        self._on_step(done)
        self._emit_startup()
        if done % self._every == 0:
            self.flush()

    def flush(self) -> None:
        """Ends the window and writes its event."""
        if self._loss is None or self._last < self._first:
            return
        slowest: dict[str, Any] = {}
        try:
            if self.slowest:
                slowest = self.slowest()
        finally:  # a lost rank fails the exchange, and the others may commit this step
            if self._lead:
                self._warn(**slowest)
                self._emit_window(float(self._loss), slowest)
            self._open_window(self._last)

    def _emit_window(self, loss: float, slowest: dict[str, Any]) -> None:
        seconds = time.monotonic() - self._window_start
        self._events.emit(
            "window",
            seconds=round(seconds, 6),
            loss=loss,
            first_step=self._first,
            last_step=self._last,
            **slowest,
        )

    def _warn(self, slowest_rank: int | None = None, slowest_by: float = 0.0) -> None:
        """Logs a warning once for each rank that becomes slow."""
        slow_rank = slowest_rank if slowest_by >= SLOW else None
        if slow_rank is not None and slow_rank != self._slow_rank:
            logs.warning(
                "train",
                f"rank {slow_rank} takes {slowest_by:g} times as long as the others, which wait for"
                " it",
            )
        self._slow_rank = slow_rank

    def _open_window(self, done: int) -> None:
        self._first = done + 1
        self._last = done
        self._window_start = time.monotonic()

    def _emit_startup(self) -> None:
        if self._phases and self._lead:
            self._phases.lap("first step")
            self._events.emit("startup", phases=self._phases.seconds)
        self._phases = None


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Returns the sha256 over the bits of every parameter, buffer and optimizer tensor."""
    sha256 = hashlib.sha256()
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    for name, tensor in _walk_tensors(state):
        sha256.update(name.encode())
        host_tensor = tensor.detach().cpu().contiguous()
        # Bytes instead of numbers: -0.0 equals 0.0, and a NaN does not equal itself.
        octets = host_tensor.view(torch.uint8)
        sha256.update(octets.numpy().tobytes())
    return sha256.hexdigest()


def _walk_tensors(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yields the path of each tensor in nested dicts and lists, and the tensor in one dimension."""
    if isinstance(value, Tensor):
        yield path, value.reshape(-1)
        return
    if isinstance(value, dict):
        # A restored state need not have its entries in the order of the saved one.
        for key in sorted(value, key=str):
            yield from _walk_tensors(value[key], f"{path}/{key}")
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _walk_tensors(item, f"{path}/{index}")
