"""Putting a verified checkpoint back into the user's objects.

Tensors that exist are filled in place; an optimizer that has not stepped yet has none, so its tensors are
made like the parameters they belong to (a DTensor for a DTensor). A shape, dtype or key that differs is the
user's to mend: InputError, before anything is changed.
"""

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from holdfast.checkpoint.pieces import box_of, dtype_name
from holdfast.checkpoint.reading import Opened, Wanted, saved_dtype
from holdfast.checkpoint.tree import NOTES_KEY, RNG_KEY, Stateful, capture, decode, set_rng_state, targets, tensor_keys
from holdfast.contract.errors import InputError


class Target:
    def __init__(self, state: dict[str, Any], opened: Opened, rank: int) -> None:
        self._state, self._opened, self._rank = state, opened, rank
        self._saved = opened.values(rank)
        self._live = capture(state).tensors
        self._tensors: dict[str, torch.Tensor] = {}
        self._entries = [*targets(state)]
        self._check_entries()
        for name, value in self._entries:
            self._check_module(name, value)
            for key in tensor_keys(self._saved[name]):
                self._tensors[key] = self._fitting(key, value)
        if self._own_rng:
            for key in tensor_keys(self._saved[RNG_KEY]):
                part = opened.sources[key][0].part
                self._tensors[key] = torch.empty(part.shape, dtype=saved_dtype(part))

    @property
    def _own_rng(self) -> bool:
        """A rank that did not exist at the save keeps its own seed: two ranks must not draw the same numbers."""
        return RNG_KEY in self._saved and self._rank < self._opened.commit.world_size

    def wanted(self) -> list[Wanted]:
        boxes = [box_of(key, tensor) for key, tensor in self._tensors.items()]
        return [Wanted(key=box.key, offset=box.offset, into=box.local) for box in boxes]

    def load(self) -> None:
        for name, value in self._entries:
            self._load_entry(name, value, decode(self._saved[name], self._tensors.__getitem__))
        if self._own_rng:
            set_rng_state(decode(self._saved[RNG_KEY], self._tensors.__getitem__))

    def _load_entry(self, name: str, value: Any, saved: Any) -> None:
        if isinstance(value, torch.optim.Optimizer):
            _load_optimizer(value, saved)
        elif isinstance(value, nn.Module) and all(isinstance(item, torch.Tensor) for item in saved.values()):
            pass  # its tensors were filled in place
        elif isinstance(value, Stateful):
            value.load_state_dict(saved)
        elif not isinstance(value, torch.Tensor):
            self._state[name] = saved

    def _check_entries(self) -> None:
        # Extra entries are refused as well: one that stays as it was built would be neither new nor restored.
        mine, theirs = {name for name, _ in self._entries}, set(self._saved) - {RNG_KEY, NOTES_KEY}
        if mine != theirs:
            raise _other_model(
                f"entries {sorted(mine)}; the checkpoint has {sorted(theirs)}",
                "the entries of `state` that were saved",
            )

    def _check_module(self, name: str, value: Any) -> None:
        if not isinstance(value, nn.Module | torch.Tensor):
            return
        live = {key for key in self._live if key == name or key.startswith(f"{name}/")}
        saved = set(tensor_keys(self._saved[name]))
        if live != saved:
            extra, missing = sorted(live - saved)[:3], sorted(saved - live)[:3]
            raise _other_model(f"not in the checkpoint: {extra}; only in the checkpoint: {missing}", "the same tensors")

    def _fitting(self, key: str, owner: Any) -> torch.Tensor:
        part = self._opened.sources[key][0].part
        dtype = saved_dtype(part)
        live = self._live.get(key)
        if live is None or (not isinstance(owner, nn.Module | torch.Tensor) and tuple(live.shape) != part.shape):
            return _new_tensor(key, part.shape, dtype, owner)
        if tuple(live.shape) != part.shape or live.dtype != dtype:
            raise _other_model(
                f"{key}: {dtype_name(live.dtype)}{list(live.shape)} here", f"{part.dtype}{list(part.shape)} as saved"
            )
        return live


def _new_tensor(key: str, shape: tuple[int, ...], dtype: torch.dtype, owner: Any) -> torch.Tensor:
    if isinstance(owner, torch.optim.Optimizer):
        parameters = [p for group in owner.param_groups for p in group["params"]]
        _, _, place, *_ = [*key.split("/"), "", ""]
        if place.isdigit() and int(place) < len(parameters):
            parameter = parameters[int(place)].detach()
            if tuple(parameter.shape) == shape and (shape or isinstance(parameter, DTensor)):
                return torch.empty_like(parameter, dtype=dtype)
    # On the CPU: load_state_dict moves it to where its owner wants it.
    return torch.empty(shape, dtype=dtype)


def _load_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    optimizer.load_state_dict(saved)
    # load_state_dict casts to the parameter's dtype: fp32 moments of bf16 parameters would lose bits.
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, entries in saved["state"].items():
        loaded = optimizer.state[parameters[index]]
        for name, value in entries.items():
            if isinstance(value, torch.Tensor) and loaded[name].dtype != value.dtype:
                loaded[name] = value.to(loaded[name].device)


def _other_model(got: str, allowed: str) -> InputError:
    return InputError(
        "checkpoint was written by another model or state",
        got=got,
        allowed=allowed,
        fix="build the model that was saved, or choose another run name",
    )
