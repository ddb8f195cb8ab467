"""The interface of predictors, and how a worker's options select one.

A predictor takes bodies and returns one JSON value for each, in order. An item must get the same
value with any other items in its micro-batch and on any worker: that makes a run with evictions
equal to one without. The predicting process builds it; that process has no access to the database,
so this module imports nothing of it.
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
from holdfast.support.extensions import load_extensions

# A distribution adds predictors by entry points: NAME = MODULE:FUNCTION, called with the spec.
GROUP = "holdfast.predictors"


class Predictor(Protocol):
    """Defines what every predictor has.

    It may also have `inputs`, the tensors that it takes: a list of name, datatype and shape as in
    the metadata of the Open Inference Protocol. The first size of each shape is -1.
    """

    @property
    def configuration(self) -> Mapping[str, object]:
        """Everything that determines a result: the model's commit, settings.

        Its hash is part of every result's key.
        """
        ...

    def load(self) -> None:
        """Loads the model: called once, before the first batch; may take minutes."""
        ...

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        """Returns one value for each body.

        An exception fails the batch, which is then halved to find the bad item.
        """
        ...


class ByteEntropy:
    """Computes bits per byte of a body's histogram, for trials without a model or torch."""

    configuration: Mapping[str, object] = {
        "predictor": "entropy",
        "version": 1,
    }

    def load(self) -> None:
        """Does nothing: there is no model."""

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        return [{"score": _entropy(body), "bytes": len(body)} for body in bodies]


def _entropy(body: bytes) -> float:
    if not body:
        return 0.0
    shares = [count / len(body) for count in Counter(body).values()]
    return -math.fsum(share * math.log2(share) for share in shares)


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictorSpec:
    """Options of a worker or a server that concern its predictor.

    The function of `--predictor MODULE:FUNCTION` gets it.

        def build(spec: PredictorSpec) -> MyPredictor:
            return MyPredictor(spec.model)
    """

    name: str
    """One of `gpt`, `entropy`, the name of an entry point, or MODULE:FUNCTION.

    The function is called with this spec.
    """
    model: str = ""
    """The folder of a model, for a FUNCTION that loads one."""
    checkpoints: str = ""
    """The URL of the training's checkpoints (gpt)."""
    run: str = ""
    pinned: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The configuration of the job's first worker, whose model commit is loaded again."""


Maker = Callable[[PredictorSpec], Predictor]


def build(spec: PredictorSpec) -> Predictor:
    """Builds a predictor. Raises InputError for an unknown name or missing options."""
    if ":" in spec.name:
        return _import_maker(spec.name)(spec)
    makers: dict[str, Maker] = {
        "gpt": _make_gpt,
        "entropy": lambda _: ByteEntropy(),
    }
    if spec.name not in makers:
        for _, name, make in load_extensions(GROUP):
            makers[name] = cast(Maker, make)
    if spec.name not in makers:
        raise InputError(
            "the predictor is unknown",
            got=spec.name,
            allowed=f"{', '.join(makers)}, or MODULE:FUNCTION",
            fix="give another --predictor",
        )
    return makers[spec.name](spec)


def _make_gpt(spec: PredictorSpec) -> Predictor:
    if not spec.checkpoints:
        raise InputError(
            "the predictor needs a model",
            got="no --checkpoints",
            allowed="the checkpoint URL of the training",
            fix="give --checkpoints, or --predictor entropy",
        )
    from holdfast.inference.predictor.gpt import GptLoss, load_model

    return GptLoss(load_model(spec.checkpoints, spec.run, spec.pinned))


def _import_maker(name: str) -> Maker:
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


def require_model_folder(folder: str) -> Path:
    """Returns the path of a model. Raises InputError if `save_pretrained` did not write one.

    A predictor calls it before it loads anything.

        folder = require_model_folder(spec.model)
    """
    path = Path(folder)
    if not folder or not (path / "config.json").is_file():
        raise InputError(
            "the model cannot be loaded",
            got=f"{folder or 'no --model'}: no config.json",
            allowed="a folder with config.json, the tokenizer's files and *.safetensors",
            fix="give --model FOLDER, as save_pretrained() wrote it",
        )
    return path


def digest_folder(folder: Path) -> str:
    """Returns a digest of the names and bytes of all files: weights, vocabulary, labels.

    A predictor's configuration names it.

        configuration = {"predictor": "mine", "model": digest_folder(folder)}
    """
    total = hashlib.sha256()
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in sorted(files):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        name = path.relative_to(folder).as_posix()
        total.update(f"{name}\0{digest}\n".encode())
    return total.hexdigest()[:32]
