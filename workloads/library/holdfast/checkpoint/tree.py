"""A user's state as named tensors plus a JSON skeleton. Nothing else can be saved, so nothing can run."""

import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol, runtime_checkable

import torch

from holdfast.checkpoint.errors import Damaged
from holdfast.checkpoint.storable import storable
from holdfast.checkpoint.values import Skeleton, encode_value
from holdfast.contract.errors import InputError
from holdfast.contract.printable import printable

# Written by capture beside the user's own entries.
RNG_KEY = "__rng__"
IMMUTABLE = (type(None), bool, int, float, complex, str, bytes, tuple, Enum)


@runtime_checkable
class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


@dataclass(frozen=True, slots=True)
class PerRank:
    """Marks an entry that differs between ranks: its tensors are saved by every rank, not once."""

    value: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Captured:
    skeleton: Skeleton
    tensors: dict[str, torch.Tensor]
    """Live tensors by key, not copies."""
    per_rank: frozenset[str]
    """Keys of tensors that belong to this rank alone."""


def capture(state: Mapping[str, Any]) -> Captured:
    tensors: dict[str, torch.Tensor] = {}
    per_rank: set[str] = set()
    skeleton: dict[str, Skeleton] = {}

    def put(key: str, tensor: torch.Tensor) -> None:
        tensors[key] = storable(tensor, key)

    for name, entry in state.items():
        value = entry.value if isinstance(entry, PerRank) else entry
        before = len(tensors)
        skeleton[name] = encode_value(_state_of(name, value), name, put)
        if isinstance(entry, PerRank):
            per_rank.update(list(tensors)[before:])
    before = len(tensors)
    skeleton[RNG_KEY] = encode_value(rng_state(), RNG_KEY, put)
    per_rank.update(list(tensors)[before:])
    return Captured(skeleton=skeleton, tensors=tensors, per_rank=frozenset(per_rank))


def encode(value: Any, key: str) -> Skeleton:
    """A value without tensors."""

    def put(key: str, tensor: torch.Tensor) -> None:
        raise AssertionError(f"{key} is a tensor of shape {tensor.shape}")

    return encode_value(value, key, put)


def _state_of(name: str, value: Any) -> Any:
    if not isinstance(value, Stateful):
        return value
    # By name: to import it would cost every start a second.
    if any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(value).__mro__):
        raise InputError(
            f"optimizer {name} holds the moments of this rank's parameters only",
            got="a ZeroRedundancyOptimizer, whose state exists whole on no rank",
            allowed="an optimizer of torch.optim, or one over the parameters of fully_shard (FSDP2), which shards it too",
            fix=f'fully_shard(model), then "{name}": torch.optim.AdamW(model.parameters())',
        )
    return value.state_dict()


def rng_state() -> dict[str, Any]:
    version, internal, gauss = random.getstate()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": {"version": version, "state": torch.tensor(internal, dtype=torch.int64), "gauss": gauss},
    }
    # To ask a GPU that nobody uses would initialise it: a context takes hundreds of megabytes of its memory.
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    # Only a program that has imported it can have drawn from it. Through sys.modules: `numpy.random` as an attribute
    # would import it, and with it whatever file beside the user's script has the name of one of its needs.
    if (generator := sys.modules.get("numpy.random")) is not None:
        name, keys, position, has_gauss, cached = generator.get_state()
        if name == "MT19937":
            keys = torch.from_numpy(keys.astype("int64"))
            state["numpy"] = {"keys": keys, "at": int(position), "gauss": int(has_gauss), "cached": float(cached)}
    return state


def set_rng_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    random.setstate(_python_state(state["python"]))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    if "numpy" in state and find_spec("numpy") is not None:
        # Imported here if need be: the program may do so only later, and would then draw from a fresh seed.
        import_module("numpy.random").set_state(_numpy_state(state["numpy"]))


def check_rng_state(state: Any) -> None:
    """Raises Damaged unless generators take it. Tried on generators of its own: those of the program stay."""
    try:
        torch.Generator().set_state(state["torch"])
        random.Random().setstate(_python_state(state["python"]))
        if "numpy" in state and find_spec("numpy") is not None:
            import_module("numpy.random").RandomState().set_state(_numpy_state(state["numpy"]))
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise Damaged(f"its random state is none: {printable(repr(error))}") from error


def _python_state(saved: Mapping[str, Any]) -> tuple[Any, ...]:
    return saved["version"], tuple(saved["state"].tolist()), saved["gauss"]


def _numpy_state(saved: Mapping[str, Any]) -> tuple[Any, ...]:
    keys = saved["keys"].numpy().astype("uint32")
    # NumPy does not look at it, and would read the memory there.
    if not 0 <= saved["at"] <= len(keys):
        raise ValueError("the position lies outside the state")
    return "MT19937", keys, saved["at"], saved["gauss"], saved["cached"]


def targets(state: Mapping[str, Any]) -> Sequence[tuple[str, Any]]:
    """The entries of a state without their PerRank marks."""
    return [(name, entry.value if isinstance(entry, PerRank) else entry) for name, entry in state.items()]


def checked_state(state: dict[str, Any]) -> dict[str, Any]:
    wrong = [name for name in state if not name or "/" in name or name.startswith("__")]
    if wrong or not state:
        raise InputError(
            "state has an entry name that cannot be stored" if wrong else "state is empty",
            got=repr(wrong[:3]),
            allowed="at least one entry, with a name without '/' that does not begin with '__'",
            fix='for example {"model": model, "optimizer": optimizer}',
        )
    for name, value in targets(state):
        if isinstance(value, IMMUTABLE) or type(value).__module__ == "numpy":
            raise _immutable(name, value)
    return state


def _immutable(name: str, value: object) -> InputError:
    # Nothing that the caller does to a variable of his reaches what was passed here: each save would store the
    # value of the start, and a resume would begin with it.
    return InputError(
        f"state entry {name} cannot change: every save would store what it is now",
        got=f"{value!r:.80} (a {type(value).__name__})",
        allowed="objects with a state_dict(), tensors, and dicts and lists that the loop changes in place",
        fix=f'progress = {{"{name}": {value!r:.80}}}, then {{"progress": progress}} in the state; '
        f'progress["{name}"] = ... in the loop, where it changes',
    )
