"""A predictor whose items do to its process what their body names; `batch run --predictor` and tests name it."""

import ctypes
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.inference.predictor.spec import PredictorSpec
from holdfast.inference.values import Value


def _hang() -> None:
    while True:
        time.sleep(60)


FAULTS = {
    b"segfault": lambda: ctypes.string_at(0),
    b"exit": lambda: os._exit(3),
    b"out of memory": lambda: os.kill(os.getpid(), signal.SIGKILL),  # what the kernel does then
    b"hang": _hang,
}


class FaultyPredictor:
    configuration: Mapping[str, object] = {"predictor": "killer"}

    def __init__(self, spec: PredictorSpec) -> None:
        self._file = spec.model

    def load(self) -> None: ...

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        for body in bodies:
            if body in FAULTS:
                FAULTS[body]()
            if body.startswith(b"raise"):
                raise ValueError(f"asked to by {body.decode()}")
        return [{"environment": body.decode() in os.environ} for body in bodies]


class Echo(FaultyPredictor):
    """Answers with what it was asked; notes each beginning as a file, where the body names one."""

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        for body in bodies:
            if body.startswith(b"/"):
                Path(body.decode()).touch()
        super().predict(bodies)
        return [{"body": body.decode()} for body in bodies]


class Dying(FaultyPredictor):
    """As on a device that is broken: whatever it is asked, it dies."""

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        os.abort()


class Slow(FaultyPredictor):
    """Loads until a file is there, and announces it by another."""

    def load(self) -> None:
        Path(self._file).with_suffix(".loading").touch()
        while not Path(self._file).exists():
            time.sleep(0.01)


class SlowAgain(FaultyPredictor):
    """Loads at once the first time, and for ever when it is started again: `file` marks each start."""

    def load(self) -> None:
        if not Path(self._file).exists():
            Path(self._file).touch()
            return
        Path(f"{self._file}.again").touch()
        _hang()


class Odd(FaultyPredictor):
    def load(self) -> None:
        raise RuntimeError("a bug")


faulty, echo, dying, slow, slow_again, odd = FaultyPredictor, Echo, Dying, Slow, SlowAgain, Odd
