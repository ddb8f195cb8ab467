"""Putting a verified checkpoint back into the user's objects, and checking that they hold it.

A load_state_dict() that keeps nothing is a fresh start that is not noticed. So the state is
captured again: modules and optimizers are compared bit by bit, other objects by what their
state_dict() was before and is now.

Tensors that exist are filled in place, and a module whose state_dict() gave copies gets them by
load_state_dict. An optimizer that has not stepped yet has none, so its tensors are made like the
parameters they belong to.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from holdfast.checkpoint.format import TensorPart
from holdfast.checkpoint.format.soundness import MAPPINGS, NOTES_KEY
from holdfast.checkpoint.restore.optimizers import (
    Renumbering,
    check_kind,
    load_optimizer,
    new_moment,
    renumbering,
)
from holdfast.checkpoint.restore.reading import Opened, empty_like_saved
from holdfast.checkpoint.state import (
    RNG_KEY,
    Captured,
    Skeleton,
    Stateful,
    decode,
    refill,
    targets,
    tensor_keys,
)
from holdfast.checkpoint.state.random_streams import check_rng_state, set_rng_state
from holdfast.checkpoint.state.tensors import dtype_name, local_of, memory_at, saved_dtype
from holdfast.support.errors import InputError

# Of these a state_dict() after load_state_dict() gives back what was loaded; loaders and schedulers
# may not.
EXACT = (nn.Module, torch.optim.Optimizer, torch.Tensor)
# Of a tensor, to see that it changed at all: more would read every average of a model's weights
# again.
_HEAD_ELEMENTS = 1024


class Target:
    def __init__(
        self,
        state: dict[str, Any],
        opened: Opened,
        rank: int,
        *,
        live: Captured,
    ) -> None:
        """`live`: what `capture` gave of `state`, on every rank."""
        self._opened = opened
        self._rank = rank
        self._saved = opened.values(rank)
        self.tensors: dict[str, torch.Tensor] = {}
        """To be filled, by their keys in the checkpoint."""
        self._entries = [*targets(state)]
        self._check_entries()
        self._optimizers = self._renumberings(live)
        self._live = self.saved_keys(live.tensors)
        for name, value in self._entries:
            self._check_module(name, value)
            self.tensors |= {
                key: self._fitting(key, value) for key in tensor_keys(self._saved[name])
            }
        if self._own_rng:
            for key in tensor_keys(self._saved[RNG_KEY]):
                self.tensors[key] = empty_like_saved(opened.part(key, rank))

    def _renumberings(self, live: Captured) -> dict[str, Renumbering]:
        names = [name for name, value in self._entries if isinstance(value, torch.optim.Optimizer)]
        pairs = [
            (name, *(decode(one[name], lambda _: None) for one in (self._saved, live.skeleton)))
            for name in names
        ]
        return {pair[0]: found for pair in pairs if (found := renumbering(*pair))}

    def saved_keys(self, live: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Tensors of the state, under their keys in the checkpoint."""
        for name, one in self._optimizers.items():
            live = one.saved_keys(name, live)
        return live

    @property
    def _own_rng(self) -> bool:
        """A rank that did not exist at the save keeps its own seed: two ranks must not draw the
        same numbers.
        """
        return RNG_KEY in self._saved and self._rank < self._opened.commit.world_size

    @property
    def loaded(self) -> dict[str, torch.Tensor]:
        """What modules, optimizers and plain tensors must hold after `load`."""
        exact = [name for name, value in self._entries if isinstance(value, EXACT)]
        keys = (key for name in exact for key in tensor_keys(self._saved[name]))
        return {key: self.tensors[key] for key in keys if key in self.tensors}

    def check_others(self, before: Mapping[str, str], after: Captured) -> list[str]:
        """Of objects that keep their state in their own way, what could not be checked. Raises
        InputError.

        `before`: of each, its sketch before anything was loaded.
        """
        reported = []
        for name, value in self._entries:
            if name in before:
                found = unlike(name, self._saved[name], self.tensors, after)
                reported.append(
                    check_loaded(name, value, found, changed=sketch(after, name) != before[name])
                )
        return [line for line in reported if line]

    def check_random_state(self) -> None:
        """Raises Damaged, once the tensors are filled, where no generator would take what is in
        them.
        """
        if self._own_rng:
            check_rng_state(decode(self._saved[RNG_KEY], self.tensors.__getitem__))

    def load(self) -> None:
        for name, value in self._entries:
            saved = decode(self._saved[name], self.tensors.get)
            if name in self._optimizers:
                saved = self._optimizers[name].of(saved)
            load_entry(name, value, saved)
        if self._own_rng:
            set_rng_state(decode(self._saved[RNG_KEY], self.tensors.__getitem__))

    def _check_entries(self) -> None:
        # Extra entries are refused as well: one that stays as it was built would be neither new nor
        # restored.
        mine = {name for name, _ in self._entries}
        theirs = set(self._saved) - {RNG_KEY, NOTES_KEY}
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
        # Both ways: a tensor that stays as it was built is as wrong as one that finds no place.
        if live != saved:
            extra = sorted(live - saved)[:3]
            missing = sorted(saved - live)[:3]
            raise _other_model(
                f"not in the checkpoint: {extra}; only in the checkpoint: {missing}",
                "the same tensors",
            )

    def _fitting(self, key: str, owner: Any) -> torch.Tensor:
        part = self._opened.part(key, self._rank)
        dtype = saved_dtype(part)
        live = self._live.get(key)
        if live is None or (
            not isinstance(owner, nn.Module | torch.Tensor) and tuple(live.shape) != part.shape
        ):
            return self._new_tensor(key, part, owner)
        if tuple(live.shape) != part.shape or live.dtype != dtype:
            raise _other_model(
                f"{key}: {dtype_name(live.dtype)}{list(live.shape)} here",
                f"{part.dtype}{list(part.shape)} as saved",
            )
        return live

    def _new_tensor(self, key: str, part: TensorPart, owner: Any) -> torch.Tensor:
        name, _, number, *_ = [*key.split("/"), "", ""]
        if isinstance(owner, torch.optim.Optimizer) and number.isdigit():
            one = self._optimizers.get(name)
            return new_moment(
                part, one.numbers.get(int(number), int(number)) if one else int(number), owner
            )
        # On the CPU: load_state_dict moves it to where its owner wants it.
        return empty_like_saved(part)


def load_entry(name: str, value: Any, saved: Any) -> None:
    """Put `saved` into the entry's object; dicts and lists are filled in place. Raises InputError
    where an optimizer does not take it.
    """
    if isinstance(value, torch.optim.Optimizer):
        try:
            check_kind(name, value, saved)
            load_optimizer(value, saved)
        # PyTorch reads what is saved without checking it.
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:
            raise _other_model(
                f"{name}: {error!r}"[:300], "the optimizer that was saved"
            ) from error
    elif isinstance(value, nn.Module) and _filled_in_place(value, saved):
        pass
    elif isinstance(value, Stateful):
        value.load_state_dict(saved)
    elif not isinstance(value, torch.Tensor):
        refill(value, saved)


def _filled_in_place(module: nn.Module, saved: dict[str, Any]) -> bool:
    """Whether every saved value of it is memory of its own parameters and buffers."""
    # Not shown by the types alone: FSDP1, state-dict hooks and get_extra_state hand out copies, and
    # to fill those is to restore nothing.
    own = {memory_at(tensor) for tensor in (*module.parameters(), *module.buffers())}
    return all(isinstance(item, torch.Tensor) and memory_at(item) in own for item in saved.values())


def _other_model(got: str, allowed: str) -> InputError:
    return InputError(
        "checkpoint was written by another model or state",
        got=got,
        allowed=allowed,
        fix="build the model that was saved, or choose another run name",
    )


def unproven(value: Any) -> bool:
    """Whether it keeps its state in its own way."""
    return isinstance(value, Stateful) and not isinstance(value, EXACT)


def sketch(captured: Captured, name: str) -> str:
    """Of an entry's values and of where its tensors begin: the same if load_state_dict() did
    nothing.
    """
    skeleton = captured.skeleton[name]
    found = hashlib.sha256(json.dumps(skeleton).encode())
    for key in tensor_keys(skeleton):
        head = _bits(local_of(captured.tensors[key]).flatten()[:_HEAD_ELEMENTS])
        found.update(bytes(head.tolist()))
    return found.hexdigest()


def unlike(
    name: str,
    saved: Skeleton,
    tensors: Mapping[str, torch.Tensor],
    after: Captured,
) -> dict[str, bool]:
    """What an entry's state_dict() gives otherwise than it was saved, and whether it gives it at
    all.
    """
    mine = _items(saved)
    theirs = _items(after.skeleton[name])
    return {
        f"{name}/{key}".rstrip("/"): key in theirs
        for key, item in mine.items()
        if key not in theirs
        or theirs[key] != item
        or not all(_same(after.tensors[one], tensors[one]) for one in tensor_keys(item))
    }


def _items(skeleton: Skeleton) -> dict[str, Skeleton]:
    ((mark, content),) = skeleton.items() if isinstance(skeleton, dict) else (("", skeleton),)
    if mark in MAPPINGS:
        return {str(key): item for key, item in content}
    return {"": skeleton}


def check_loaded(
    name: str,
    value: Any,
    found: dict[str, bool],
    *,
    changed: bool,
) -> str:
    """What could not be checked. Raises InputError where a value is unlike the saved one and
    nothing changed.
    """
    given = [key for key, is_given in found.items() if is_given]
    # A loader may take its place up only when it is iterated.
    if given and not changed and not isinstance(value, Iterable):
        raise not_restored(given[0])
    keys = ", ".join([*found][:3])
    if keys:
        return (
            f"{name}: could not be checked: after load_state_dict() its state_dict() differs in"
            f" {keys}"
        )
    return ""


def versions(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """How often each was written through PyTorch; -1 where PyTorch does not count."""
    return {key: _version(local_of(tensor)) for key, tensor in tensors.items()}


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def compare(
    loaded: Mapping[str, torch.Tensor], live: Mapping[str, torch.Tensor], before: Mapping[str, int]
) -> list[str]:
    """Keys whose memory was filled and then written again, to be compared with a second reading.

    `before`: versions of `loaded` when its bytes were verified. Raises InputError for a key that
    holds other bits.
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
    if not _same(live, truth):
        raise not_restored(key)


def _same(live: torch.Tensor, truth: torch.Tensor) -> bool:
    a = local_of(live)
    b = local_of(truth)
    return (
        a.shape == b.shape and a.dtype == b.dtype and torch.equal(_bits(a), _bits(b).to(a.device))
    )


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    # As bytes: a NaN equals no NaN, and -0.0 equals 0.0.
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def not_restored(key: str) -> InputError:
    return InputError(
        "state was not restored: it holds other bits than the checkpoint that was loaded into it",
        got=key,
        allowed="a load_state_dict() after which state_dict() gives back what was loaded",
        fix=(
            "fix load_state_dict() (or set_extra_state) of this entry, or leave the entry out of"
            " the state"
        ),
    )
