"""Read and set the random streams of the process and of other generators, as JSON."""

import random
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from holdfast.checkpoint.errors import Damaged
from holdfast.checkpoint.state.tensors import dtype_name, dtype_of, view_memory
from holdfast.support.printable import printable

Packed = Any


class Generators:
    """Random streams of generators that a program has made, next to the process' own streams."""

    def __init__(self, generators: Iterable[torch.Generator | None]) -> None:
        self._generators = [generator for generator in generators if generator is not None]

    def packed(self) -> list[Packed]:
        """Return the streams as JSON."""
        return [_pack(generator.get_state()) for generator in self._generators]

    def set(self, states: list[Packed]) -> None:
        """Set the streams to what `packed` returned."""
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(_unpack(state))


def describe_stream(value: object) -> str | None:
    """Return the state of a generator that a program has made; None for anything else."""
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


def pack_streams() -> Packed:
    """Return the random streams of this process as JSON."""
    return _pack(get_rng_state())


def set_streams(streams: Packed) -> None:
    """Set the random streams of this process to what `pack_streams` returned."""
    process_streams = dict(streams)
    process_streams.pop("own", None)
    set_rng_state(_unpack(process_streams))


def _pack(value: Any) -> Packed:
    if isinstance(value, torch.Tensor):
        data = bytes(view_memory(value.contiguous()))
        return {"dtype": dtype_name(value.dtype), "hex": data.hex()}
    if isinstance(value, dict):
        return {name: _pack(item) for name, item in value.items()}
    return value


def _unpack(value: Packed) -> Any:
    if not isinstance(value, dict):
        return value
    if value.keys() == {"dtype", "hex"}:
        data = bytearray.fromhex(value["hex"])
        dtype = dtype_of(value["dtype"]) or torch.uint8
        return torch.frombuffer(data, dtype=dtype).clone()
    return {name: _unpack(item) for name, item in value.items()}


def get_rng_state() -> dict[str, Any]:
    """Return the random streams of this process: PyTorch, Python, and CUDA and NumPy if in use."""
    version, internal, gauss = random.getstate()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": {
            "version": version,
            "state": torch.tensor(internal, dtype=torch.int64),
            "gauss": gauss,
        },
    }
    # A request to an unused GPU would initialize it, and a context takes hundreds of megabytes of
    # its memory.
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    # Only a program that has imported NumPy can have drawn from it. It is looked up in sys.modules,
    # because the attribute `numpy.random` would import it, and with it any file next to the user's
    # script that has the name of one of its dependencies.
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is None:
        return state
    name, keys, position, has_gauss, cached = numpy_random.get_state()
    if name == "MT19937":
        state["numpy"] = {
            "keys": torch.from_numpy(keys.astype("int64")),
            "at": int(position),
            "gauss": int(has_gauss),
            "cached": float(cached),
        }
    return state


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Set the random streams of this process to what `get_rng_state` returned."""
    torch.set_rng_state(state["torch"])
    random.setstate(_python_state(state["python"]))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    if "numpy" in state and find_spec("numpy") is not None:
        # Imported here if need be: the program may import it only later, and would then draw from a
        # fresh seed.
        import_module("numpy.random").set_state(_numpy_state(state["numpy"]))


def check_rng_state(state: Any) -> None:
    """Raise Damaged unless generators accept the state.

    It is tried on new generators; those of the program do not change.
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
    internal = tuple(saved["state"].tolist())
    return saved["version"], internal, saved["gauss"]


def _numpy_state(saved: Mapping[str, Any]) -> tuple[Any, ...]:
    keys = saved["keys"].numpy().astype("uint32")
    # NumPy does not check the position, and would read the memory there.
    if not 0 <= saved["at"] <= len(keys):
        raise ValueError("the position is outside the state")
    return "MT19937", keys, saved["at"], saved["gauss"], saved["cached"]
