"""DataLoader workers that leave SIGTERM to the trainer, and end when the trainer itself ends them.

torchrun sends SIGTERM to the whole process group. A worker that dies of it makes the trainer's next batch
raise, in the very step that was to be finished.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable


class Shielded:
    """A worker's start that shields it; a class, so that spawned workers can have it."""

    def __init__(self, then: Callable[[int], object] | None) -> None:
        self._then = then

    def __call__(self, worker: int) -> None:
        if (trainer := multiprocessing.parent_process()) and trainer.pid:
            obey_only(trainer.pid)
        if self._then is not None:
            self._then(worker)


def obey_only(trainer: int) -> None:
    """This process ends by SIGTERM from `trainer` only."""
    # Never ignored: multiprocessing ends what is left of an epoch by SIGTERM when the trainer exits, and then waits
    # for it without end. Blocked and not handled: Python code of a handler would run only after the batch.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_wait_for, args=(trainer,), name="shield", daemon=True).start()


def _wait_for(trainer: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != trainer:
        pass
    os._exit(0)
