"""A predictor whose items do to its process what their body names; `batch run --predictor` and tests name it."""

import ctypes
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.inference.errors import PredictorBroken
from holdfast.inference.predictor.spec import PredictorSpec
from holdfast.inference.values import Value

FAULTS = {
    b"segfault": lambda: ctypes.string_at(0),
    b"exit": lambda: os._exit(3),
    b"out of memory": lambda: os.kill(os.getpid(), signal.SIGKILL),  # what the kernel does then
    b"hang": lambda: time.sleep(1e6),
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
    """Loads until a file is there, which it takes away; another has a letter for each time that it was loaded."""

    def load(self) -> None:
        file = Path(self._file)
        with file.with_suffix(".loading").open("a") as loads:
            loads.write("x")
        while not file.exists():
            time.sleep(0.01)
        file.unlink()


class Broken(FaultyPredictor):
    """It knows that its device is broken."""

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        raise PredictorBroken("gone")


class Odd(FaultyPredictor):
    def load(self) -> None:
        raise RuntimeError("a bug")


faulty, echo, dying, broken, slow, odd = FaultyPredictor, Echo, Dying, Broken, Slow, Odd
