"""Predictors of the batch benchmarks.

They are quick to import, because each kill of the kill matrix starts a process with one.
"""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.inference.predictor.spec import ByteEntropy, PredictorSpec
from holdfast.inference.values import Value

FOR_EVER_S = 600.0


def score(bodies: Sequence[bytes]) -> list[Value]:
    return [{"score": len(body)} for body in bodies]


class Fixed:
    """A device that takes `model` seconds for a micro-batch of any size; zero skips the wait."""

    configuration: Mapping[str, object] = {"predictor": "fixed"}

    def __init__(self, spec: PredictorSpec) -> None:
        self._seconds = float(spec.model)

    def load(self) -> None: ...

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        if self._seconds:
            time.sleep(self._seconds)
        return score(bodies)


class Marking:
    """Leaves a file in the folder `model` when its phase, `run`, is reached."""

    configuration: Mapping[str, object] = {"predictor": "marking"}

    def __init__(self, spec: PredictorSpec) -> None:
        self._folder = Path(spec.model)
        self._phase = spec.run

    def load(self) -> None:
        loads = len(list(self._folder.glob("load-*")))
        (self._folder / f"load-{loads}").touch()
        if (self._phase, loads) in (("loading", 0), ("loading_again", 1)):
            self._mark()
            time.sleep(FOR_EVER_S)

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        if self._phase == "loading_again":
            os._exit(3)
        if self._phase in ("predicting", "anywhere"):
            self._mark()
            time.sleep(1.0)  # the longest that the sizer of micro-batches allows
        return score(bodies)

    def _mark(self) -> None:
        (self._folder / "reached").touch()


class Recording(ByteEntropy):
    """Records each prediction in the file `model`, with the worker's name `run`.

    A file is used because the memory of a killed worker is lost.
    """

    def __init__(self, spec: PredictorSpec) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.open(spec.model, flags)
        self._worker = spec.run

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        os.write(self._file, f"{self._worker}\n".encode() * len(bodies))
        time.sleep(0.002)
        return super().predict(bodies)
