"""What a run reports: windows of steps as it goes, and the digest of its result."""

import hashlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.runtime.events import EventLog
from holdfast.runtime.phases import Phases


class Meter:
    """Writes a `window` event every few steps. Asking a GPU for the loss waits for it, so not every step."""

    def __init__(
        self,
        events: EventLog,
        *,
        every: int,
        phases: Phases | None = None,
        on_step: Callable[[int], None] = lambda done: None,
    ) -> None:
        self._events, self._every, self._on_step = events, every, on_step
        self._phases: Phases | None = phases
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
        self._last, self._loss = done, loss
        self._on_step(done)
        self._emit_startup()
        if done % self._every == 0:
            self.flush()

    def flush(self) -> None:
        if not self._lead or self._loss is None or self._last < self._first:
            return
        self._events.emit(
            "window",
            first_step=self._first,
            last_step=self._last,
            seconds=round(time.monotonic() - self._since, 6),
            loss=float(self._loss),
        )
        self._open_window(self._last)

    def _open_window(self, done: int) -> None:
        self._first, self._last, self._since = done + 1, done, time.monotonic()

    def _emit_startup(self) -> None:
        if self._phases and self._lead:
            self._phases.lap("first step")
            self._events.emit("startup", phases=self._phases.seconds)
        self._phases = None


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """sha256 over every parameter, buffer and optimizer tensor, to the last bit."""
    total = hashlib.sha256()
    for name, tensor in _tensors({"model": model.state_dict(), "optimizer": optimizer.state_dict()}):
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
