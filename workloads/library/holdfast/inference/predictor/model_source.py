"""A model's tensors from the newest committed checkpoint, and the name of exactly that commit.

The job pins the commit: a worker that starts later, while training goes on, loads the job's step.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, empty

from holdfast.checkpoint import committed_steps, load_tensors, runs
from holdfast.checkpoint.errors import Damaged
from holdfast.checkpoint.parts import decode, open_step, read_whole
from holdfast.checkpoint.stores import Storage, open_storage
from holdfast.contract.errors import InputError

MODEL_PREFIX = "model/"
_NOT_READ = empty(0)  # stands for the optimizer's tensors, which nobody here looks at


@dataclass(frozen=True, kw_only=True)
class Model:
    identity: Mapping[str, object]
    """Run, step and attempt: names one commit for ever, as commits are create-only."""
    config: Mapping[str, Any]
    """What the trainer saved beside the tensors to build the network with."""
    tensors: Mapping[str, Tensor]


def model_key(key: str) -> str:
    return key.removeprefix(MODEL_PREFIX)


def load_model(url: str, run: str, pinned: Mapping[str, object]) -> Model:
    """The commit that the job is pinned to, or the newest that verifies when it is not pinned yet."""
    storage = open_storage(url)
    run = run or str(pinned.get("run") or _only_run(storage, url))
    if pinned.get("run") == run and isinstance(step := pinned.get("step"), int):
        return _at(storage, run, step)
    step, tensors = load_tensors(url, run, [MODEL_PREFIX])
    return _model(storage, run, step, tensors)


def _only_run(storage: Storage, url: str) -> str:
    found = [run for run in runs(storage) if committed_steps(storage, run)]
    if len(found) != 1:
        raise InputError(
            "the model is ambiguous",
            got=f"{url}: {', '.join(found) or 'no run with a committed checkpoint'}",
            allowed="one run with a committed checkpoint, or its name",
            fix="name the run with --run, or train one: python -m holdfast train run",
        )
    return found[0]


def _at(storage: Storage, run: str, step: int) -> Model:
    try:
        return _model(storage, run, step, read_whole(storage, open_step(storage, run, step), [MODEL_PREFIX]))
    except Damaged as error:
        raise InputError(
            "the checkpoint that this job started with is no longer readable",
            got=f"{run} step {step}: {error}",
            allowed=f"one of the steps {committed_steps(storage, run)[:5]}",
            fix="use --recompute to start again with the newest checkpoint",
        ) from None


def _model(storage: Storage, run: str, step: int, tensors: Mapping[str, Tensor]) -> Model:
    opened = open_step(storage, run, step)
    identity = {"run": run, "step": step, "attempt": opened.commit.attempt}
    # Names with "__" are the library's own notes, not the trainer's state.
    saved = {name: value for name, value in opened.values(0).items() if not name.startswith("__")}
    values = {name: decode(value, lambda key: tensors.get(key, _NOT_READ)) for name, value in saved.items()}
    return Model(identity=identity, config=_find_config(values) or {}, tensors=tensors)


def _find_config(values: object) -> dict[str, Any] | None:
    """The mapping that describes a network, wherever in the state the trainer put it."""
    if isinstance(values, dict):
        if {"context", "width", "layers", "heads"} <= values.keys():
            return values
        return next((found for value in values.values() if (found := _find_config(value))), None)
    return None
