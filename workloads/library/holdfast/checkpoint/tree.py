"""A user's state as named tensors plus a JSON skeleton, and back. Nothing else can be saved, so nothing can run.

A skeleton keeps what JSON loses: integer keys,
tuples, non-finite floats, and where each tensor belongs.
"""

import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol, runtime_checkable

import torch

from holdfast.checkpoint.errors import Damaged
from holdfast.contract.errors import InputError
from holdfast.contract.printable import printable

Skeleton = Any

# Written by capture beside the user's own entries.
RNG_KEY = "__rng__"


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
    for name, entry in state.items():
        value = entry.value if isinstance(entry, PerRank) else entry
        before = len(tensors)
        skeleton[name] = _encode(value.state_dict() if isinstance(value, Stateful) else value, name, tensors)
        if isinstance(entry, PerRank):
            per_rank.update(list(tensors)[before:])
    before = len(tensors)
    skeleton[RNG_KEY] = _encode(rng_state(), RNG_KEY, tensors)
    per_rank.update(list(tensors)[before:])
    return Captured(skeleton=skeleton, tensors=tensors, per_rank=frozenset(per_rank))


def encode(value: Any, key: str) -> Skeleton:
    """A value without tensors."""
    tensors: dict[str, torch.Tensor] = {}
    skeleton = _encode(value, key, tensors)
    assert not tensors, f"{key} holds tensors"
    return skeleton


def _encode(value: Any, key: str, tensors: dict[str, torch.Tensor]) -> Skeleton:
    if isinstance(value, torch.Tensor):
        assert key not in tensors, f"two tensors are called {key}"
        tensors[key] = _storable(value, key)
        return {"$tensor": key}
    if value is None or isinstance(value, bool | int | str):
        return value
    # JSON has no infinities; the standard module writes ones that no other reader takes.
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, Mapping):
        return _encode_mapping(value, key, tensors)
    if isinstance(value, list | tuple):
        items = [_encode(item, f"{key}/{i}", tensors) for i, item in enumerate(value)]
        return {"$tuple": items} if isinstance(value, tuple) else items
    raise InputError(
        f"state entry {key} can be neither stored as a tensor nor as JSON",
        got=f"a {type(value).__module__}.{type(value).__qualname__}",
        allowed="tensors, None, bool, int, float, str, and dicts, lists, tuples of these",
        fix="give the object a state_dict() that returns such values, or leave it out of the state",
    )


def _encode_mapping(value: Mapping[Any, Any], key: str, tensors: dict[str, torch.Tensor]) -> Skeleton:
    for name in value:
        # True equals 1 as a key, and JSON would give back either.
        if isinstance(name, bool) or not isinstance(name, str | int) or "/" in str(name):
            raise InputError(
                f"state entry {key} has a key that cannot be stored",
                got=repr(name)[:80],
                allowed="str keys without '/', or int keys",
                fix="convert the keys in state_dict()",
            )
    return {"$map": [[name, _encode(item, f"{key}/{name}", tensors)] for name, item in value.items()]}


def _storable(tensor: torch.Tensor, key: str) -> torch.Tensor:
    if tensor.layout is torch.strided and not tensor.is_quantized and tensor.device.type != "meta":
        return tensor.detach()
    raise InputError(
        f"tensor {key} has no plain memory to store",
        got=f"layout {tensor.layout}, device {tensor.device}",
        allowed="dense tensors on a real device",
        fix="convert it to a dense tensor, or leave it out of the state",
    )


def decode(skeleton: Skeleton, tensor_of: Callable[[str], torch.Tensor | None]) -> Any:
    if isinstance(skeleton, list):
        return [decode(item, tensor_of) for item in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    ((kind, value),) = skeleton.items()
    if kind == "$tensor":
        return tensor_of(value)
    if kind == "$float":
        return float(value)
    if kind == "$tuple":
        return tuple(decode(item, tensor_of) for item in value)
    if kind == "$map":
        return {name: decode(item, tensor_of) for name, item in value}
    raise ValueError(f"unknown mark {kind!r} in a skeleton")


def tensor_keys(skeleton: Skeleton) -> list[str]:
    found: list[str] = []
    decode(skeleton, lambda key: found.append(key) or torch.empty(0))
    return found


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
    return state
