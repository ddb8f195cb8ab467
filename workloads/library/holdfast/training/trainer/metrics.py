"""What a run reports: windows of steps as it goes, and the digest of its result."""

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
"""Times the usual pace of the others, from which on a rank is reported."""
_LEAST_S = 0.05  # of a window: below it, noise is as large


class Stopwatch:
    """Seconds that a rank computes by itself: the parts of its steps up to an exchange, which waits
    for all.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._now: Callable[[], Any] = _event if self._on_gpu else time.perf_counter
        self._parts: list[tuple[Any, Any]] = []
        self._began: Any = None

    def start(self) -> None:
        self._began = self._now()

    def stop(self) -> None:
        self._parts.append((self._began, self._now()))

    def taken_s(self) -> float:
        """Of the parts since the last call. Waits for a GPU that has not come to the end of the
        last one.
        """
        parts = self._parts
        self._parts = []
        if self._on_gpu and parts:
            parts[-1][1].synchronize()
        return sum(a.elapsed_time(b) / 1e3 if self._on_gpu else b - a for a, b in parts)


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()  # in the stream's order: it does not wait, and what the GPU waits for counts
    return event


def slowest_of(seconds: Mapping[int, float]) -> dict[str, Any]:
    """Rank -> seconds, as fields of a `window` event: who took longest, and how many times as long
    as the others.
    """
    rank = max(seconds, key=seconds.__getitem__)
    others_s = median([each for other, each in seconds.items() if other != rank] or [0.0])
    if others_s < _LEAST_S:
        return {}
    return {
        "slowest_rank": rank,
        "slowest_by": round(seconds[rank] / others_s, 2),
    }


class Meter:
    """Writes a `window` event every few steps. Asking a GPU for the loss waits for it, so not every
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
        """Of a gang: then every rank calls `step` and `flush`."""
        self._slow: int | None = None
        self._events = events
        self._every = every
        self._on_step = on_step
        self._phases = phases
        self._lead = False
        self._first = self._last = 0
        self._since = time.monotonic()
        self._loss: Tensor | None = None

    def lap(self, name: str) -> None:
        if self._phases:
            self._phases.lap(name)

    def begin(self, done: int, *, lead: bool) -> None:
        """`done` steps are restored; one rank takes the lead and writes for all."""
        self._lead = lead
        self._open_window(done)

    def follow(self, *, lead: bool) -> None:
        """In a gang whose lead may change: the new one's windows begin with its next step."""
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
        if self._loss is None or self._last < self._first:
            return
        slowest: dict[str, Any] = {}
        try:
            slowest = self.slowest() if self.slowest else {}
        finally:  # a rank that is gone ends the exchange, and the others may commit this step
            if self._lead:
                self._warn(**slowest)
                steps = {"first_step": self._first, "last_step": self._last}
                seconds = round(time.monotonic() - self._since, 6)
                self._events.emit(
                    "window",
                    seconds=seconds,
                    loss=float(self._loss),
                    **steps,
                    **slowest,
                )
            self._open_window(self._last)

    def _warn(self, slowest_rank: int | None = None, slowest_by: float = 0.0) -> None:
        """Once for each rank that becomes slow."""
        slow = slowest_rank if slowest_by >= SLOW else None
        if slow is not None and slow != self._slow:
            logs.warning(
                "train",
                f"rank {slow} takes {slowest_by:g} times as long as the others, which wait for it",
            )
        self._slow = slow

    def _open_window(self, done: int) -> None:
        self._first = done + 1
        self._last = done
        self._since = time.monotonic()

    def _emit_startup(self) -> None:
        if self._phases and self._lead:
            self._phases.lap("first step")
            self._events.emit("startup", phases=self._phases.seconds)
        self._phases = None


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """sha256 over every parameter, buffer and optimizer tensor, to the last bit."""
    total = hashlib.sha256()
    for name, tensor in _tensors(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
        }
    ):
        total.update(name.encode())
        # As bytes: in numbers -0.0 equals 0.0, and a NaN does not equal itself.
        total.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _tensors(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value.reshape(-1)
    elif isinstance(value, dict):
        # A restored state need not have its entries in the order of the one that was saved.
        for key in sorted(value, key=str):
            yield from _tensors(value[key], f"{path}/{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _tensors(item, f"{path}/{index}")
