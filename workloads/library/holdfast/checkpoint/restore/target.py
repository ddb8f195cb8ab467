"""Putting a verified checkpoint back into the user's objects, and checking that they hold it.

Tensors that exist are filled in place, and a module whose state_dict() gave copies gets them by load_state_dict. An
optimizer that has not stepped yet has none, so its tensors are made like the parameters they belong to (a DTensor for
a DTensor). A load_state_dict() that keeps nothing, or something else, is a fresh start that is not noticed: so the live
state is captured once more and compared bit by bit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from holdfast.checkpoint.format import TensorPart
from holdfast.checkpoint.format.soundness import NOTES_KEY
from holdfast.checkpoint.restore.reading import Opened, Wanted, empty_like_saved, saved_dtype
from holdfast.checkpoint.state import RNG_KEY, Stateful, decode, refill, targets, tensor_keys
from holdfast.checkpoint.state.random_streams import check_rng_state, set_rng_state
from holdfast.checkpoint.state.tensors import as_dtensor, boxes_of, dtype_name, local_of, memory_at
from holdfast.contract.errors import InputError
from holdfast.runtime import logs

# Of these a state_dict() after load_state_dict() gives back what was loaded; loaders and schedulers may not.
EXACT = (nn.Module, torch.optim.Optimizer, torch.Tensor)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """How closely a state must match the checkpoint."""

    some: bool = False
    """The state may lack entries of the checkpoint; random streams are left alone."""
    cast: bool = False
    """Tensors of modules keep their dtype."""
    partial: bool = False
    """Tensors of modules that are not there in their shape stay as they are."""
    step: int | None = None
    """Only this one."""


EXACTLY = Fit()


class Target:
    def __init__(
        self, state: dict[str, Any], opened: Opened, rank: int, *, live: dict[str, torch.Tensor], fit: Fit = EXACTLY
    ) -> None:
        """`live`: tensors of `state`, as `capture` gave them on every rank alike."""
        self._opened, self._rank, self._fit = opened, rank, fit
        self._saved = opened.values(rank)
        self._live = live
        self._tensors: dict[str, torch.Tensor] = {}
        self._entries = [*targets(state)]
        self._check_entries()
        for name, value in self._entries:
            self._check_module(name, value)
            keys = tensor_keys(self._saved[name])
            fitting = {key: self._fitting(key, value) for key in keys if not self._left_out(key, value)}
            if keys and not fitting:
                raise _other_model(
                    f"no tensor of {name} has the name and shape of a saved one", "at least one that fits"
                )
            self._tensors |= fitting
        if self._own_rng:
            for key in tensor_keys(self._saved[RNG_KEY]):
                self._tensors[key] = empty_like_saved(opened.part(key, rank))

    @property
    def _own_rng(self) -> bool:
        """A rank that did not exist at the save keeps its own seed: two ranks must not draw the same numbers."""
        return not self._fit.some and RNG_KEY in self._saved and self._rank < self._opened.commit.world_size

    @property
    def loaded(self) -> dict[str, torch.Tensor]:
        """What modules, optimizers and plain tensors must hold after `load`."""
        exact = [name for name, value in self._entries if isinstance(value, EXACT)]
        keys = (key for name in exact for key in tensor_keys(self._saved[name]))
        return {key: self._tensors[key] for key in keys if key in self._tensors}

    @property
    def unfilled(self) -> list[str]:
        """Tensors of modules that stay as they are."""
        modules = {name for name, value in self._entries if isinstance(value, nn.Module)}
        return [key for key in self._live if key.split("/")[0] in modules and key not in self._tensors]

    def wanted(self) -> list[Wanted]:
        return wanted_of(self._tensors)

    def check_random_state(self) -> None:
        """Raises Damaged, once the tensors are filled, where no generator would take what is in them."""
        if self._own_rng:
            check_rng_state(decode(self._saved[RNG_KEY], self._tensors.__getitem__))

    def load(self) -> None:
        self._report_overflows()
        for name, value in self._entries:
            saved = decode(self._saved[name], self._tensors.get)
            if self._fit.partial and isinstance(value, nn.Module):
                saved = {key: item for key, item in saved.items() if item is not None}
            load_entry(name, value, saved, partial=self._fit.partial)
        if self._own_rng:
            set_rng_state(decode(self._saved[RNG_KEY], self._tensors.__getitem__))

    def _report_overflows(self) -> None:
        """Where a cast made values infinite."""
        for key, tensor in self._tensors.items():
            if tensor.is_floating_point() and tensor.dtype != saved_dtype(self._opened.part(key, self._rank)):
                local = local_of(tensor)
                # Eight bits have no isfinite.
                lost = int((~torch.isfinite(local if local.element_size() > 1 else local.float())).sum())
                if lost:
                    of = f"{lost} of {local.numel()} values of {key}"
                    logs.warning("restore", f"{of} are not finite as {dtype_name(tensor.dtype)}")

    def _check_entries(self) -> None:
        # Extra entries are refused as well: one that stays as it was built would be neither new nor restored.
        mine, theirs = {name for name, _ in self._entries}, set(self._saved) - {RNG_KEY, NOTES_KEY}
        if mine - theirs or (theirs - mine and not self._fit.some):
            raise _other_model(
                f"entries {sorted(mine)}; the checkpoint has {sorted(theirs)}", "the entries of `state` that were saved"
            )

    def _check_module(self, name: str, value: Any) -> None:
        if not isinstance(value, nn.Module | torch.Tensor) or self._fit.partial:
            return
        live = {key for key in self._live if key == name or key.startswith(f"{name}/")}
        saved = set(tensor_keys(self._saved[name]))
        # Both ways: a tensor that stays as it was built is as wrong as one that finds no place.
        if live != saved:
            extra, missing = sorted(live - saved)[:3], sorted(saved - live)[:3]
            raise _other_model(f"not in the checkpoint: {extra}; only in the checkpoint: {missing}", "the same tensors")

    def _left_out(self, key: str, owner: Any) -> bool:
        if not (self._fit.partial and isinstance(owner, nn.Module)):
            return False
        live = self._live.get(key)
        return live is None or tuple(live.shape) != self._opened.sources[key][0].part.shape

    def _fitting(self, key: str, owner: Any) -> torch.Tensor:
        part = self._opened.part(key, self._rank)
        dtype = saved_dtype(part)
        live = self._live.get(key)
        if live is None or (not isinstance(owner, nn.Module | torch.Tensor) and tuple(live.shape) != part.shape):
            return _new_tensor(key, part, owner)
        if tuple(live.shape) != part.shape or not (
            live.dtype == dtype or (self._fit.cast and _keeps_values(dtype, live.dtype))
        ):
            raise _other_model(
                f"{key}: {dtype_name(live.dtype)}{list(live.shape)} here", f"{part.dtype}{list(part.shape)} as saved"
            )
        return live


def _keeps_values(saved: torch.dtype, here: torch.dtype) -> bool:
    """A cast drops no imaginary part and no fraction, and wraps no integer. Floats may round."""
    if not torch.can_cast(saved, here):
        return False
    if saved == torch.bool or here.is_floating_point or here.is_complex:
        return True
    return torch.iinfo(here).min <= torch.iinfo(saved).min and torch.iinfo(saved).max <= torch.iinfo(here).max


def load_entry(name: str, value: Any, saved: Any, *, partial: bool = False) -> None:
    """Put `saved` into the entry's object; dicts and lists are filled in place. `partial`: a module may lack some.

    Raises InputError where an optimizer does not take it."""
    if isinstance(value, torch.optim.Optimizer):
        try:
            _load_optimizer(value, saved)
        # PyTorch reads what is saved without checking it.
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise _other_model(f"{name}: {error!r}"[:300], "the optimizer that was saved") from error
    elif isinstance(value, nn.Module) and _filled_in_place(value, saved):
        pass
    elif isinstance(value, nn.Module) and partial:
        value.load_state_dict(saved, strict=False)
    elif isinstance(value, Stateful):
        value.load_state_dict(saved)
    elif not isinstance(value, torch.Tensor):
        refill(value, saved)


def _filled_in_place(module: nn.Module, saved: dict[str, Any]) -> bool:
    """Whether every saved value of it is memory of its own parameters and buffers."""
    # Not shown by the types alone: FSDP1, state-dict hooks and get_extra_state hand out copies, and to fill those is
    # to restore nothing.
    own = {memory_at(tensor) for tensor in (*module.parameters(), *module.buffers())}
    return all(isinstance(item, torch.Tensor) and memory_at(item) in own for item in saved.values())


def wanted_of(tensors: dict[str, torch.Tensor]) -> list[Wanted]:
    boxes = [box for key, tensor in tensors.items() for box in boxes_of(key, tensor)]
    return [Wanted(key=box.key, offset=box.offset, into=box.local) for box in boxes]


def _new_tensor(key: str, part: TensorPart, owner: Any) -> torch.Tensor:
    if isinstance(owner, torch.optim.Optimizer):
        parameters = [p for group in owner.param_groups for p in group["params"]]
        _, _, place, *_ = [*key.split("/"), "", ""]
        if place.isdigit() and int(place) < len(parameters):
            parameter = parameters[int(place)].detach()
            if tuple(parameter.shape) == part.shape and (part.shape or as_dtensor(parameter) is not None):
                return torch.empty_like(parameter, dtype=saved_dtype(part))
    # On the CPU: load_state_dict moves it to where its owner wants it.
    return empty_like_saved(part)


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


def versions(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """How often each was written through PyTorch; -1 where PyTorch does not count."""
    return {key: _version(local_of(tensor)) for key, tensor in tensors.items()}


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def compare(
    loaded: Mapping[str, torch.Tensor], live: Mapping[str, torch.Tensor], before: Mapping[str, int]
) -> list[str]:
    """Keys whose memory was filled and then written again, to be compared with a second reading.

    `before`: versions of `loaded` when its bytes were verified. Raises InputError for a key that holds other bits.
    """
    again: list[str] = []
    for key, tensor in loaded.items():
        if key not in live:
            raise not_restored(key)
        if memory_at(live[key]) != memory_at(tensor):
            check_same(key, live[key], tensor)
        # The very memory that was verified: only a later write can have changed it.
        elif before[key] < 0 or before[key] != _version(local_of(live[key])):
            again.append(key)
    return again


def check_same(key: str, live: torch.Tensor, truth: torch.Tensor) -> None:
    """Raises InputError."""
    a, b = local_of(live), local_of(truth)
    if a.shape != b.shape or a.dtype != b.dtype or not torch.equal(_bits(a), _bits(b).to(a.device)):
        raise not_restored(key)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    # As bytes: a NaN equals no NaN, and -0.0 equals 0.0.
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def not_restored(key: str) -> InputError:
    return InputError(
        "state was not restored: it holds other bits than the checkpoint that was loaded into it",
        got=key,
        allowed="a load_state_dict() after which state_dict() gives back what was loaded",
        fix="fix load_state_dict() (or set_extra_state) of this entry, or leave the entry out of the state",
    )
