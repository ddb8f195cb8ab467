"""Predictors for tests: with set times, and with bodies that name a fault of the process."""

import ctypes
import fcntl
import json
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
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),  # as the kernel does without memory
    "hang": lambda: time.sleep(1e6),
}


class Faulty:
    """Does what a body says.

    It is a fault with any words after it, `broken`, `raise ...`, `sleep S`, `wait FILE`,
    `environment NAME`, or the path of a file to create.
    """

    configuration: Mapping[str, object] = {"predictor": "playing"}

    def __init__(self, spec: PredictorSpec | None = None) -> None:
        self.model = spec.model if spec else ""

    def load(self) -> None: ...

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        values: list[Value] = []
        for body in bodies:
            text = _obey(body.decode(errors="replace"))
            values.append({"said": text, "length": len(body)})
        return values


def _obey(text: str) -> str:
    """Does what the text says, and returns it, or the value of an environment variable."""
    match text.split(" "):
        case [fault, *_] if fault in FAULTS:
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
    """Takes 10 ms and 0.5 ms an item, like a small model on a GPU, times the number `model`."""

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        scale = float(self.model) if self.model.replace(".", "").isdecimal() else 1.0
        time.sleep(scale * (BATCH_S + ITEM_S * len(bodies)))
        return super().predict(bodies)


class Stepped(GpuLike):
    """Has the step that a file names at its load; loading hangs while the file says `hangs`."""

    def load(self) -> None:
        text = ""
        while text in ("hangs", ""):
            time.sleep(0.005)
            text = Path(self.model).read_text()
        self.configuration = {
            "run": "run",
            "step": int(text),
            "attempt": "played",
        }


class Slow(Faulty):
    """Loads until a file exists, which it removes; another file has a letter for each load."""

    def load(self) -> None:
        file = Path(self.model)
        with file.with_suffix(".loading").open("a") as loads:
            loads.write("x")
        _wait_for(file)
        file.unlink()


class Lazy(Faulty):
    """Takes `model` seconds for the first prediction of a process, as a model that compiles."""

    is_warm = False

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        if not self.is_warm:
            time.sleep(float(self.model))
        self.is_warm = True
        return super().predict(bodies)


class Single(Faulty):
    """Refuses to load while another process holds the lock of a file: there is room for one."""

    def load(self) -> None:
        self.file = Path(self.model).open("w")  # noqa: SIM115  open as long as the process
        fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)


class Sum:
    """Adds the numbers of an item and takes no text. Its options name an attribute to leave out."""

    configuration: Mapping[str, object] = {"predictor": "sum"}

    def __init__(self, spec: PredictorSpec) -> None:
        if spec.model != "undescribed":
            shape = [2] if spec.model == "misdescribed" else [-1, 2]
            self.inputs = [
                {"name": "x", "datatype": "FP32", "shape": shape},
                {"name": "flag", "datatype": "BOOL", "shape": [-1]},
            ]

    def load(self) -> None: ...

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        values: list[Value] = []
        for body in bodies:
            item = json.loads(body)
            values.append({"sum": float(sum(item["x"])), "flag": item["flag"]})
        return values


def bug(_: PredictorSpec) -> Faulty:
    raise RuntimeError("a bug")


faulty = Faulty
gpu_like = GpuLike
stepped = Stepped
slow = Slow
lazy = Lazy
single = Single
adding = Sum
