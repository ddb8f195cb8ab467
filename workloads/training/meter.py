"""What a run reports: windows of steps as it goes, and the digest of its result."""

import hashlib
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from workloads.runtime.events import EventLog


class Meter:
    """Writes a `window` event every few steps. Asking a GPU for the loss waits for it, so not every step."""

    def __init__(self, events: EventLog | None, *, every: int) -> None:
        self._events, self._every = events, every
        self._first = self._last = 0
        self._since = time.monotonic()
        self._loss: Tensor | None = None

    def begin(self, done: int) -> None:
        self._first, self._last, self._since = done + 1, done, time.monotonic()

    def step(self, done: int, loss: Tensor) -> None:
        self._last, self._loss = done, loss
        if done % self._every == 0:
            self.flush()

    def flush(self) -> None:
        if self._events is None or self._loss is None or self._last < self._first:
            return
        now = time.monotonic()
        self._events.emit(
            "window",
            first_step=self._first,
            last_step=self._last,
            seconds=round(now - self._since, 6),
            loss=float(self._loss),
        )
        self.begin(self._last)


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """sha256 over every parameter, buffer and optimizer tensor, to the last bit."""
    total = hashlib.sha256()
    for name, tensor in _tensors({"model": model.state_dict(), "optimizer": optimizer.state_dict()}):
        total.update(name.encode())
        total.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _tensors(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value.reshape(-1)
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from _tensors(value[key], f"{path}/{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _tensors(item, f"{path}/{index}")
