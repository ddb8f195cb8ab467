"""The random streams of the process, and generators in addition to them: read, set, and as JSON."""

import random
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from holdfast.checkpoint.errors import Damaged
from holdfast.checkpoint.state.tensors import dtype_name, dtype_of, memory_of
from holdfast.support.printable import printable

Packed = Any


class Generators:
    """Random streams in addition to the process' own."""

    def __init__(self, generators: Iterable[torch.Generator | None]) -> None:
        self._all = [generator for generator in generators if generator is not None]

    def packed(self) -> list[Packed]:
        return [packed(generator.get_state()) for generator in self._all]

    def set(self, states: list[Packed]) -> None:
        for generator, state in zip(self._all, states, strict=True):
            generator.set_state(unpacked(state))


def stream_of(value: object) -> str | None:
    """The state of a generator that a program has made for itself; None for anything else."""
    if isinstance(value, random.Random):
        return repr(value.getstate())
    if isinstance(value, torch.Generator):
        return repr(value.get_state().tolist())
    if type(value).__module__.startswith("numpy.random"):
        bits = getattr(value, "bit_generator", None)
        if bits is not None:
            return repr(getattr(bits, "state", None))
        return repr(getattr(value, "get_state", str)())
    return None


def packed_streams() -> Packed:
    """The random streams of this process as JSON."""
    return packed(rng_state())


def set_streams(streams: Packed) -> None:
    set_rng_state(unpacked({name: found for name, found in streams.items() if name != "own"}))


def packed(value: Any) -> Packed:
    if isinstance(value, torch.Tensor):
        return {
            "dtype": dtype_name(value.dtype),
            "hex": bytes(memory_of(value.contiguous())).hex(),
        }
    if isinstance(value, dict):
        return {name: packed(item) for name, item in value.items()}
    return value


def unpacked(value: Packed) -> Any:
    if isinstance(value, dict) and value.keys() == {"dtype", "hex"}:
        return torch.frombuffer(
            bytearray.fromhex(value["hex"]), dtype=dtype_of(value["dtype"]) or torch.uint8
        ).clone()
    if isinstance(value, dict):
        return {name: unpacked(item) for name, item in value.items()}
    return value


def rng_state() -> dict[str, Any]:
    version, internal, gauss = random.getstate()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": {
            "version": version,
            "state": torch.tensor(internal, dtype=torch.int64),
            "gauss": gauss,
        },
    }
    # To ask a GPU that is not used would initialise it: a context takes hundreds of megabytes of
    # its memory.
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    # Only a program that has imported it can have drawn from it. Through sys.modules:
    # `numpy.random` as an attribute would import it, and with it whatever file next to the user's
    # script has the name of one of its needs.
    generator = sys.modules.get("numpy.random")
    if generator is not None:
        name, keys, position, has_gauss, cached = generator.get_state()
        if name == "MT19937":
            keys = torch.from_numpy(keys.astype("int64"))
            state["numpy"] = {
                "keys": keys,
                "at": int(position),
                "gauss": int(has_gauss),
                "cached": float(cached),
            }
    return state


def set_rng_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    random.setstate(_python_state(state["python"]))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    if "numpy" in state and find_spec("numpy") is not None:
        # Imported here if need be: the program may do so only later, and would then draw from a
        # fresh seed.
        import_module("numpy.random").set_state(_numpy_state(state["numpy"]))


def check_rng_state(state: Any) -> None:
    """Raises Damaged unless generators take it. Tried on generators of its own: those of the
    program stay.
    """
    try:
        torch.Generator().set_state(state["torch"])
        random.Random().setstate(_python_state(state["python"]))
        if "numpy" in state and find_spec("numpy") is not None:
            import_module("numpy.random").RandomState().set_state(_numpy_state(state["numpy"]))
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise Damaged(f"no generator accepts its random state: {printable(repr(error))}") from error


def _python_state(saved: Mapping[str, Any]) -> tuple[Any, ...]:
    return saved["version"], tuple(saved["state"].tolist()), saved["gauss"]


def _numpy_state(saved: Mapping[str, Any]) -> tuple[Any, ...]:
    keys = saved["keys"].numpy().astype("uint32")
    # NumPy does not look at it, and would read the memory there.
    if not 0 <= saved["at"] <= len(keys):
        raise ValueError("the position is outside the state")
    return "MT19937", keys, saved["at"], saved["gauss"], saved["cached"]
