"""Random streams as JSON: those of the process, and generators beside them."""

from collections.abc import Iterable
from typing import Any

import torch

from holdfast.checkpoint.pieces import dtype_name, dtype_of, memory_of
from holdfast.checkpoint.tree import rng_state, set_rng_state

Packed = Any


class Generators:
    """Random streams beside the process' own."""

    def __init__(self, generators: Iterable[torch.Generator | None]) -> None:
        self._all = [generator for generator in generators if generator is not None]

    def packed(self) -> list[Packed]:
        return [packed(generator.get_state()) for generator in self._all]

    def set(self, states: list[Packed]) -> None:
        for generator, state in zip(self._all, states, strict=True):
            generator.set_state(unpacked(state))


def packed_streams() -> Packed:
    """The random streams of this process as JSON."""
    return packed(rng_state())


def set_streams(streams: Packed) -> None:
    set_rng_state(unpacked({name: found for name, found in streams.items() if name != "own"}))


def packed(value: Any) -> Packed:
    if isinstance(value, torch.Tensor):
        return {"dtype": dtype_name(value.dtype), "hex": bytes(memory_of(value.contiguous())).hex()}
    return {name: packed(item) for name, item in value.items()} if isinstance(value, dict) else value


def unpacked(value: Packed) -> Any:
    if isinstance(value, dict) and value.keys() == {"dtype", "hex"}:
        return torch.frombuffer(bytearray.fromhex(value["hex"]), dtype=dtype_of(value["dtype"]) or torch.uint8).clone()
    return {name: unpacked(item) for name, item in value.items()} if isinstance(value, dict) else value
