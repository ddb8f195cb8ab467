"""Predictors that take their time, and whose items do to their process what their body names."""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from holdfast.inference.errors import PredictorBroken
from holdfast.inference.predictor.spec import PredictorSpec
from holdfast.inference.values import Value

BATCH_S = 0.010
ITEM_S = 0.0005
FAULTS: dict[str, Callable[[], object]] = {
    "segfault": lambda: ctypes.string_at(0),
    "exit": lambda: os._exit(3),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),  # as the kernel does when memory is out
    "hang": lambda: time.sleep(1e6),
}


class Faulty:
    """A body is a fault, `broken`, `raise ...`, `sleep S`, `wait FILE`, `environment NAME`, or a
    file, which is made.
    """

    configuration: Mapping[str, object] = {"predictor": "playing"}

    def __init__(self, spec: PredictorSpec | None = None) -> None:
        self.model = spec.model if spec else ""

    def load(self) -> None: ...

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        return [
            {
                "said": _said(body.decode(errors="replace")),
                "length": len(body),
            }
            for body in bodies
        ]


def _said(text: str) -> str:
    match text.split(" "):
        case [fault] if fault in FAULTS:
            FAULTS[fault]()
        case ["broken"]:
            raise PredictorBroken("gone")
        case ["raise", *_]:
            raise ValueError(f"asked to by {text}")
        case ["sleep", seconds]:
            time.sleep(float(seconds))
        case ["wait", path]:
            Path(path).with_suffix(".begun").touch()
            _wait_for(Path(path))
        case ["environment", name]:
            return os.environ.get(name, "nothing")
        case [path] if path.startswith("/"):
            Path(path).touch()
        case _:
            pass
    return text


def _wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.005)


class GpuLike(Faulty):
    """10 ms and 0.5 ms an item, as a small model on a GPU, times the model's number."""

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        scale = float(self.model) if self.model.replace(".", "").isdecimal() else 1.0
        time.sleep(scale * (BATCH_S + ITEM_S * len(bodies)))
        return super().predict(bodies)


class Stepped(GpuLike):
    """The commit that a file names when it is loaded; `hangs` takes until the file names another."""

    def load(self) -> None:
        while (text := Path(self.model).read_text()) in ("hangs", ""):
            time.sleep(0.005)
        self.configuration = {
            "run": "run",
            "step": int(text),
            "attempt": "played",
        }


class Slow(Faulty):
    """Loads until a file exists, which it removes; another file has a letter for each time that it
    was loaded.
    """

    def load(self) -> None:
        file = Path(self.model)
        with file.with_suffix(".loading").open("a") as loads:
            loads.write("x")
        _wait_for(file)
        file.unlink()


def bug(_: PredictorSpec) -> Faulty:
    raise RuntimeError("a bug")


faulty = Faulty
gpu_like = GpuLike
stepped = Stepped
slow = Slow
