"""DataLoader workers that leave SIGTERM to the trainer.

torchrun sends SIGTERM to the whole process group. A worker that dies of it makes the trainer's next batch
raise, in the very step that was to be finished.
"""

import signal
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader


class _Shielded:
    """Picklable, because workers may be spawned."""

    def __init__(self, then: Callable[[int], Any] | None) -> None:
        self._then = then

    def __call__(self, worker: int) -> None:
        # Ignored and not handled: Python code in a worker would run only after the batch it is computing.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self._then is not None:
            self._then(worker)


def shielded(then: Callable[[int], Any] | None) -> Callable[[int], None]:
    """A worker's start that leaves SIGTERM to the trainer."""
    return then if isinstance(then, _Shielded) else _Shielded(then)


def shield(loader: Any) -> Iterator[Any]:
    if isinstance(loader, DataLoader) and not isinstance(loader.worker_init_fn, _Shielded):
        loader.worker_init_fn = _Shielded(loader.worker_init_fn)
    return iter(loader)
