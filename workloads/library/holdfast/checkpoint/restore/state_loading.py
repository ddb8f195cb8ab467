"""Load a verified checkpoint into the user's objects, and check that they hold it.

A load_state_dict() that does nothing would be an unnoticed fresh start. So the state is captured
again: modules and optimizers are compared bit by bit, other objects by their state_dict() before
and after.

Existing tensors are filled in place; a module whose state_dict() returned copies gets them by
load_state_dict. An optimizer that has not stepped yet has no tensors, so they are made like the
parameters that they belong to.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from holdfast.checkpoint.format import TensorPart
from holdfast.checkpoint.format.validation import MAPPINGS, NOTES_KEY
from holdfast.checkpoint.restore.optimizers import (
    Renumbering,
    check_kind,
    load_optimizer,
    match_parameters,
    new_moment,
)
from holdfast.checkpoint.restore.reader import Opened, empty_like_saved
from holdfast.checkpoint.state import (
    RNG_KEY,
    Captured,
    Skeleton,
    State,
    Stateful,
    decode,
    refill,
    targets,
    tensor_keys,
)
from holdfast.checkpoint.state.random_streams import check_rng_state, set_rng_state
from holdfast.checkpoint.state.tensors import (
    Tensors,
    dtype_name,
    saved_dtype,
    storage_address,
    to_local,
)
from holdfast.support.errors import InputError

# Objects whose state_dict() after load_state_dict() returns what was loaded; that of loaders and
# schedulers may not.
EXACT = (nn.Module, torch.optim.Optimizer, torch.Tensor)
# Elements of a tensor that show whether it changed: more would read each average of a model's
# weights again.
_HEAD_ELEMENTS = 1024


class StateLoader:
    """The tensors of a checkpoint for the entries of a state, and the way to load them."""

    def __init__(
        self,
        state: State,
        opened: Opened,
        rank: int,
        *,
        live: Captured,
    ) -> None:
        """`live` is the state as captured. Raises InputError if it does not fit the checkpoint."""
        self._opened = opened
        self._rank = rank
        self._saved = opened.values(rank)
        self.tensors: Tensors = {}
        """Tensors to fill, by their keys in the checkpoint."""
        self._entries = [*targets(state)]
        self._check_entries()
        self._optimizers = self._match_optimizers(live)
        self._live = self.map_keys(live.tensors)
        for name, value in self._entries:
            self._check_module(name, value)
            for key in tensor_keys(self._saved[name]):
                self.tensors[key] = self._find_memory(key, value)
        if self._restores_rng:
            for key in tensor_keys(self._saved[RNG_KEY]):
                self.tensors[key] = empty_like_saved(opened.part(key, rank))

    def _match_optimizers(self, live: Captured) -> dict[str, Renumbering]:
        matches: dict[str, Renumbering] = {}
        for name, value in self._entries:
            if not isinstance(value, torch.optim.Optimizer):
                continue
            saved_state = decode(self._saved[name], lambda _: None)
            live_state = decode(live.skeleton[name], lambda _: None)
            renumbering = match_parameters(name, saved_state, live_state)
            if renumbering:
                matches[name] = renumbering
        return matches

    def map_keys(self, live: Tensors) -> Tensors:
        """Return the tensors of the state by their keys in the checkpoint."""
        for name, renumbering in self._optimizers.items():
            live = renumbering.map_keys(name, live)
        return live

    @property
    def _restores_rng(self) -> bool:
        """True if this rank existed at the save.

        A new rank keeps its own seed, because two ranks must not draw the same numbers.
        """
        existed = self._rank < self._opened.commit.world_size
        return existed and RNG_KEY in self._saved

    @property
    def exact_tensors(self) -> Tensors:
        """The tensors that modules, optimizers and plain tensors must hold after `load`."""
        tensors: Tensors = {}
        for name, value in self._entries:
            if not isinstance(value, EXACT):
                continue
            for key in tensor_keys(self._saved[name]):
                if key in self.tensors:
                    tensors[key] = self.tensors[key]
        return tensors

    def check_own_formats(self, fingerprints: Mapping[str, str], after: Captured) -> list[str]:
        """Check the entries with a state format of their own. Returns what could not be checked.

        `fingerprints` are those of these entries before the load, `after` is the state after it.
        Raises InputError if an entry ignored what was loaded.
        """
        reports: list[str] = []
        for name, value in self._entries:
            if name not in fingerprints:
                continue
            differences = find_differences(
                name,
                self._saved[name],
                self.tensors,
                after,
            )
            changed = fingerprint(after, name) != fingerprints[name]
            report = check_changed(
                name,
                value,
                differences,
                changed=changed,
            )
            if report:
                reports.append(report)
        return reports

    def check_random_state(self) -> None:
        """Raise Damaged if no generator accepts the filled random state."""
        if self._restores_rng:
            check_rng_state(decode(self._saved[RNG_KEY], self.tensors.__getitem__))

    def load(self) -> None:
        """Load the tensors and values into the entries, and set the random streams."""
        for name, value in self._entries:
            saved = decode(self._saved[name], self.tensors.get)
            if name in self._optimizers:
                saved = self._optimizers[name].apply(saved)
            load_entry(name, value, saved)
        if self._restores_rng:
            set_rng_state(decode(self._saved[RNG_KEY], self.tensors.__getitem__))

    def _check_entries(self) -> None:
        # Extra entries are refused as well: one that keeps its initial values would be neither new
        # nor restored.
        live_names = {name for name, _ in self._entries}
        saved_names = set(self._saved) - {RNG_KEY, NOTES_KEY}
        if live_names != saved_names:
            raise _mismatch_error(
                f"entries {sorted(live_names)}; the checkpoint has {sorted(saved_names)}",
                "the entries of `state` that were saved",
            )

    def _check_module(self, name: str, value: Any) -> None:
        if not isinstance(value, nn.Module | torch.Tensor):
            return
        live_keys: set[str] = set()
        for key in self._live:
            if key == name or key.startswith(f"{name}/"):
                live_keys.add(key)
        saved_keys = set(tensor_keys(self._saved[name]))
        # Both ways: a tensor that keeps its initial values is as wrong as one that is not loaded.
        if live_keys != saved_keys:
            extra = sorted(live_keys - saved_keys)[:3]
            missing = sorted(saved_keys - live_keys)[:3]
            raise _mismatch_error(
                f"not in the checkpoint: {extra}; only in the checkpoint: {missing}",
                "the same tensors",
            )

    def _find_memory(self, key: str, owner: Any) -> torch.Tensor:
        """Return the live tensor of a key if it fits, else new memory."""
        part = self._opened.part(key, self._rank)
        dtype = saved_dtype(part)
        live = self._live.get(key)
        if live is None:
            return self._allocate(key, part, owner)
        same_shape = tuple(live.shape) == part.shape
        must_fit = isinstance(owner, nn.Module | torch.Tensor)
        if not same_shape and not must_fit:
            return self._allocate(key, part, owner)
        if not same_shape or live.dtype != dtype:
            raise _mismatch_error(
                f"{key}: {dtype_name(live.dtype)}{list(live.shape)} here",
                f"{part.dtype}{list(part.shape)} as saved",
            )
        return live

    def _allocate(
        self,
        key: str,
        part: TensorPart,
        owner: Any,
    ) -> torch.Tensor:
        name, _, rest = key.partition("/")
        number = rest.split("/")[1] if "/" in rest else ""
        is_optimizer = isinstance(owner, torch.optim.Optimizer)
        if not is_optimizer or not number.isdigit():
            # On the CPU: load_state_dict moves it to the device of its owner.
            return empty_like_saved(part)
        parameter_number = int(number)
        if name in self._optimizers:
            numbers = self._optimizers[name].numbers
            parameter_number = numbers.get(parameter_number, parameter_number)
        return new_moment(part, parameter_number, owner)


def load_entry(
    name: str,
    value: Any,
    saved: Any,
) -> None:
    """Load `saved` into the object of an entry; dicts and lists are filled in place.

    Raises InputError if an optimizer rejects it.
    """
    if isinstance(value, torch.optim.Optimizer):
        try:
            check_kind(name, value, saved)
            load_optimizer(value, saved)
        # PyTorch loads a saved state without checking it.
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:
            raise _mismatch_error(
                f"{name}: {error!r}"[:300], "the optimizer that was saved"
            ) from error
    elif isinstance(value, nn.Module) and _is_filled(value, saved):
        pass
    elif isinstance(value, Stateful):
        value.load_state_dict(saved)
    elif not isinstance(value, torch.Tensor):
        refill(value, saved)


def _is_filled(module: nn.Module, saved: dict[str, Any]) -> bool:
    """Return whether every saved value is memory of the module's own parameters and buffers."""
    # Types alone do not show it: FSDP1, state-dict hooks and get_extra_state return copies, and
    # filling those restores nothing.
    addresses: set[int] = set()
    for tensor in (*module.parameters(), *module.buffers()):
        addresses.add(storage_address(tensor))
    for value in saved.values():
        if not isinstance(value, torch.Tensor):
            return False
        if storage_address(value) not in addresses:
            return False
    return True


def _mismatch_error(got: str, allowed: str) -> InputError:
    return InputError(
        "checkpoint was written by another model or state",
        got=got,
        allowed=allowed,
        fix="build the model that was saved, or choose another run name",
    )


def has_own_format(value: Any) -> bool:
    """Return whether an entry has a state format of its own, as loaders and schedulers have."""
    return isinstance(value, Stateful) and not isinstance(value, EXACT)


def fingerprint(captured: Captured, name: str) -> str:
    """Return a digest of an entry's values and of the first elements of its tensors.

    It stays the same if load_state_dict() did nothing.
    """
    skeleton = captured.skeleton[name]
    digest = hashlib.sha256(json.dumps(skeleton).encode())
    for key in tensor_keys(skeleton):
        local = to_local(captured.tensors[key])
        head = _view_bytes(local.flatten()[:_HEAD_ELEMENTS])
        digest.update(bytes(head.tolist()))
    return digest.hexdigest()


def find_differences(
    name: str,
    saved: Skeleton,
    tensors: Mapping[str, torch.Tensor],
    after: Captured,
) -> dict[str, bool]:
    """Return the keys in which an entry's state_dict() differs from the saved one.

    The value is True if the key is present in the state_dict() after the load.
    """
    saved_items = _list_items(saved)
    live_items = _list_items(after.skeleton[name])
    differences: dict[str, bool] = {}
    for key, item in saved_items.items():
        is_present = key in live_items
        same_values = is_present and live_items[key] == item
        if not same_values or not _same_tensors(item, after, tensors):
            full_key = f"{name}/{key}".rstrip("/")
            differences[full_key] = is_present
    return differences


def _same_tensors(
    skeleton: Skeleton,
    after: Captured,
    tensors: Mapping[str, torch.Tensor],
) -> bool:
    keys = tensor_keys(skeleton)
    return all(_same_bits(after.tensors[key], tensors[key]) for key in keys)


def _list_items(skeleton: Skeleton) -> dict[str, Skeleton]:
    """Return the items of a mapping's skeleton by key; any other skeleton under an empty key."""
    if isinstance(skeleton, dict):
        ((mark, content),) = skeleton.items()
        if mark in MAPPINGS:
            return {str(key): item for key, item in content}
    return {"": skeleton}


def check_changed(
    name: str,
    value: Any,
    differences: dict[str, bool],
    *,
    changed: bool,
) -> str:
    """Return a report of what could not be checked in an entry, or an empty string.

    `changed` tells whether the load changed its state_dict(). Raises InputError if a value differs
    from the saved one although nothing changed.
    """
    present = [key for key, is_present in differences.items() if is_present]
    # A loader may apply its position only when it is iterated.
    if present and not changed and not isinstance(value, Iterable):
        raise _not_restored_error(present[0])
    keys = ", ".join([*differences][:3])
    if not keys:
        return ""
    return (
        f"{name}: could not be checked: after load_state_dict() its state_dict() differs in {keys}"
    )


def count_writes(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Return how often PyTorch has written each tensor; -1 if it does not count them."""
    return {key: _count_writes(tensor) for key, tensor in tensors.items()}


def _count_writes(tensor: torch.Tensor) -> int:
    local = to_local(tensor)
    return -1 if local.is_inference() else local._version


def find_rewritten(
    loaded: Mapping[str, torch.Tensor],
    live: Mapping[str, torch.Tensor],
    write_counts: Mapping[str, int],
) -> list[str]:
    """Compare live tensors with the loaded ones. Returns the keys that need a second reading.

    These are live tensors in the memory that was verified, but written since. `write_counts` are
    those of `loaded` when its bytes were verified. Raises InputError for a key with other bits.
    """
    rewritten: list[str] = []
    for key, tensor in loaded.items():
        if key not in live:
            raise _not_restored_error(key)
        if storage_address(live[key]) != storage_address(tensor):
            check_same(key, live[key], tensor)
            continue
        count = write_counts[key]
        if count < 0 or count != _count_writes(live[key]):
            rewritten.append(key)
    return rewritten


def check_same(
    key: str,
    live: torch.Tensor,
    expected: torch.Tensor,
) -> None:
    """Raise InputError unless both tensors have the same bits."""
    if not _same_bits(live, expected):
        raise _not_restored_error(key)


def _same_bits(live: torch.Tensor, expected: torch.Tensor) -> bool:
    live = to_local(live)
    expected = to_local(expected)
    if live.shape != expected.shape:
        return False
    if live.dtype != expected.dtype:
        return False
    live_bytes = _view_bytes(live)
    expected_bytes = _view_bytes(expected).to(live.device)
    return torch.equal(live_bytes, expected_bytes)


def _view_bytes(tensor: torch.Tensor) -> torch.Tensor:
    # As bytes: a NaN equals no NaN, and -0.0 equals 0.0.
    flat = tensor.detach().contiguous().view(-1)
    return flat.view(torch.uint8)


def _not_restored_error(key: str) -> InputError:
    return InputError(
        "state was not restored: it holds other bits than the checkpoint that was loaded into it",
        got=key,
        allowed="a load_state_dict() after which state_dict() returns what was loaded",
        fix=(
            "fix load_state_dict() (or set_extra_state) of this entry, or leave the entry out of"
            " the state"
        ),
    )
