"""Which predictor, with which model: named by the worker's options, built in the process that predicts.

No database module is imported here: the predicting process has no business there.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from holdfast.contract.errors import InputError
from holdfast.contract.extensions import extensions
from holdfast.inference.predictor.byte_entropy import ByteEntropy
from holdfast.inference.predictor.protocol import Predictor

BUILT_IN = ("gpt", "hf", "entropy")
# A distribution adds predictors by entry points: NAME = MODULE:FUNCTION, which is given the spec.
GROUP = "holdfast.predictors"


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictorSpec:
    name: str
    """One of BUILT_IN, the name of an entry point, or MODULE:FUNCTION; the function is given this spec."""
    model: str = ""
    """Folder of a Hugging Face model (hf)."""
    checkpoints: str = ""
    """URL that the training writes to (gpt)."""
    run: str = ""
    pinned: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Configuration of the job's first worker: the same model commit is loaded again."""


def build(spec: PredictorSpec) -> Predictor:
    if ":" in spec.name:
        return _factory(spec.name)(spec)
    builders: dict[str, Callable[[PredictorSpec], Predictor]] = {
        "entropy": _entropy,
        "gpt": _gpt,
        "hf": _hugging_face,
    }
    added = {name: make for _, name, make in extensions(GROUP)} if spec.name not in builders else {}
    if spec.name in added:
        return cast(Callable[[PredictorSpec], Predictor], added[spec.name])(spec)
    if spec.name not in builders:
        raise InputError(
            "the predictor is unknown",
            got=spec.name,
            allowed=f"{', '.join([*BUILT_IN, *added])}, or MODULE:FUNCTION",
            fix="give another --predictor",
        )
    return builders[spec.name](spec)


def _entropy(_: PredictorSpec) -> Predictor:
    return ByteEntropy()


def _gpt(spec: PredictorSpec) -> Predictor:
    if not spec.checkpoints:
        raise InputError(
            "the predictor needs a model",
            got="no --checkpoints",
            allowed="the checkpoint URL of the training",
            fix="give --checkpoints, or --predictor entropy",
        )
    from holdfast.inference.predictor.gpt import GptLoss
    from holdfast.inference.predictor.model_source import load_model

    return GptLoss(load_model(spec.checkpoints, spec.run, spec.pinned))


def _hugging_face(spec: PredictorSpec) -> Predictor:
    from holdfast.inference.predictor.hugging_face import TextClassifier

    return TextClassifier(spec.model)


def _factory(name: str) -> Callable[[PredictorSpec], Predictor]:
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
