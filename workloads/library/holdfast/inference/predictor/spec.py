"""What computes: bodies in, one JSON value for each out, in order; and which one a worker's options
name.

A predictor must give an item the same value with any other items in its micro-batch, on any worker:
that is what makes a run with evictions equal to one without. It is built in the process that
predicts, which has no business with the database: no module of it is imported here.
"""

import hashlib
import importlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from holdfast.inference.values import Value
from holdfast.support.errors import InputError
from holdfast.support.extensions import extensions

# A distribution adds predictors by entry points: NAME = MODULE:FUNCTION, which is given the spec.
GROUP = "holdfast.predictors"


class Predictor(Protocol):
    @property
    def configuration(self) -> Mapping[str, object]:
        """Everything that decides a result: model commit, settings. Its hash is part of every
        result's key.
        """
        ...

    def load(self) -> None:
        """Called once, before the first batch; may take minutes."""
        ...

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        """One value for each body. An exception fails the batch, which is then halved to find the
        bad item.
        """
        ...


class ByteEntropy:
    """Bits per byte of a body's histogram. For trials: needs no model and no torch."""

    configuration: Mapping[str, object] = {"predictor": "entropy", "version": 1}

    def load(self) -> None:
        """Nothing to load."""

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        return [
            {
                "score": _entropy(body),
                "bytes": len(body),
            }
            for body in bodies
        ]


def _entropy(body: bytes) -> float:
    counts = Counter(body).values()
    if body:
        return -math.fsum(n / len(body) * math.log2(n / len(body)) for n in counts)
    return 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictorSpec:
    name: str
    """`gpt`, `entropy`, the name of an entry point, or MODULE:FUNCTION; the function is given this
    spec.
    """
    model: str = ""
    """Folder of a model, for a FUNCTION that loads one."""
    checkpoints: str = ""
    """URL that the training writes to (gpt)."""
    run: str = ""
    pinned: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Configuration of the job's first worker: the same model commit is loaded again."""


Maker = Callable[[PredictorSpec], Predictor]


def build(spec: PredictorSpec) -> Predictor:
    """Raises InputError for a name that names no predictor, and for options that it needs."""
    if ":" in spec.name:
        return _factory(spec.name)(spec)
    known: dict[str, Maker] = {"gpt": _gpt, "entropy": lambda _: ByteEntropy()}
    if spec.name not in known:
        known |= {name: cast(Maker, make) for _, name, make in extensions(GROUP)}
    if spec.name not in known:
        raise InputError(
            "the predictor is unknown",
            got=spec.name,
            allowed=f"{', '.join(known)}, or MODULE:FUNCTION",
            fix="give another --predictor",
        )
    return known[spec.name](spec)


def _gpt(spec: PredictorSpec) -> Predictor:
    if not spec.checkpoints:
        raise InputError(
            "the predictor needs a model",
            got="no --checkpoints",
            allowed="the checkpoint URL of the training",
            fix="give --checkpoints, or --predictor entropy",
        )
    from holdfast.inference.predictor.gpt import GptLoss, load_model

    return GptLoss(load_model(spec.checkpoints, spec.run, spec.pinned))


def _factory(name: str) -> Maker:
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            "the predictor cannot be imported",
            got=f"{name}: {error}",
            allowed="MODULE:FUNCTION that can be imported here",
            fix="check the name, and PYTHONPATH",
        ) from None


def checked_folder(folder: str) -> Path:
    """InputError for one that holds no model as `save_pretrained` writes it."""
    if not folder or not (Path(folder) / "config.json").is_file():
        raise InputError(
            "the model cannot be loaded",
            got=f"{folder or 'no --model'}: no config.json",
            allowed="a folder with config.json, the tokenizer's files and *.safetensors",
            fix="give --model FOLDER, as save_pretrained() wrote it",
        )
    return Path(folder)


def digest_of(folder: Path) -> str:
    """Of names and bytes of all files: weights, vocabulary, labels."""
    total = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{path.relative_to(folder).as_posix()}\0{digest}\n".encode())
    return total.hexdigest()[:32]
