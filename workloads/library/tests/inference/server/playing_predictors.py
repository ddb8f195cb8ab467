"""Predictors that take their time, and whose items do to their process what their body names."""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.inference.predictor.spec import PredictorSpec
from holdfast.inference.values import Value

BATCH_S, ITEM_S = 0.010, 0.0005


class GpuLike:
    """10 ms and 0.5 ms an item, as a small model on a GPU, times the model's number; `sleep S` and `wait FILE` take longer."""

    configuration: Mapping[str, object] = {"predictor": "gpu-like"}

    def __init__(self, spec: PredictorSpec | None = None) -> None:
        model = spec.model if spec else ""
        self._path, self._scale = Path(model), float(model) if model.replace(".", "").isdecimal() else 1.0

    def load(self) -> None: ...

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        time.sleep(self._scale * (BATCH_S + ITEM_S * len(bodies)))
        for body in bodies:
            match body.decode(errors="replace").split(" "):
                case ["kill"]:
                    os.kill(os.getpid(), signal.SIGKILL)
                case ["raise"]:
                    raise ValueError("asked to")
                case ["sleep", seconds]:
                    time.sleep(float(seconds))
                case ["wait", path]:
                    _wait_for(Path(path))
                case _:
                    pass
        return [{"said": body.decode(errors="replace"), "length": len(body)} for body in bodies]


def _wait_for(path: Path) -> None:
    path.with_suffix(".begun").touch()
    while not path.exists():
        time.sleep(0.005)


class Stepped(GpuLike):
    """The commit that a file names when it is loaded; `hangs` takes until the file names another."""

    def load(self) -> None:
        while (text := self._path.read_text()) in ("hangs", ""):
            time.sleep(0.005)
        self.configuration = {"run": "run", "step": int(text), "attempt": "played"}


gpu_like, stepped = GpuLike, Stepped
