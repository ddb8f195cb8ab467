"""Load a verified checkpoint into the user's objects, and check that they hold it.

A load_state_dict() that does nothing would be an unnoticed fresh start. So the state is captured
again: modules and optimizers are compared bit by bit, other objects by their state_dict() before
and after.

Existing tensors are filled in place; a module whose state_dict() returned copies gets them by
load_state_dict. An optimizer that has not stepped yet has no tensors, so they are made like the
parameters that they belong to.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from holdfast.checkpoint.format import TensorPart
from holdfast.checkpoint.format.validation import NOTES_KEY
from holdfast.checkpoint.restore.comparison import (
    EXACT,
    check_values,
    find_differences,
    fingerprint,
    has_own_format,
    judge_differences,
)
from holdfast.checkpoint.restore.optimizers import (
    Renumbering,
    check_kind,
    check_moment,
    load_optimizer,
    match_parameters,
    new_moment,
)
from holdfast.checkpoint.restore.reader import Opened, allocate_tensor
from holdfast.checkpoint.restore.shared_memory import SharedMemory
from holdfast.checkpoint.state import (
    RNG_KEY,
    Captured,
    State,
    Stateful,
    decode,
    refill,
    targets,
    tensor_keys,
)
from holdfast.checkpoint.state.module_keys import restore_keys, strip_key, strip_keys
from holdfast.checkpoint.state.random_streams import check_rng_state, set_rng_state
from holdfast.checkpoint.state.tensors import (
    Tensors,
    dtype_name,
    get_dtype,
    storage_address,
)
from holdfast.checkpoint.state.values import list_wrapper_types, same_container
from holdfast.support.errors import InputError


class StateLoader:
    """The tensors of a checkpoint for the entries of a state, and the way to load them."""

    def __init__(
        self,
        state: State,
        opened: Opened,
        rank: int,
        *,
        live: Captured,
        is_partial: bool = False,
    ) -> None:
        """`live` is the state as captured. Raises InputError if it does not fit the checkpoint.

        `is_partial`: entries that only one of the two has are left alone.
        """
        self._opened = opened
        self._rank = rank
        self._saved = opened.values(rank)
        self.tensors: Tensors = {}
        """Tensors to fill, by their keys in the checkpoint."""
        self.reports: list[str] = []
        """Lines for the log, about matches that could not be proved."""
        self._entries = [*targets(state)]
        if is_partial:
            self._leave_out_entries()
        self._check_entries()
        self._compiled_keys = self._find_compiled_keys()
        self._optimizers = self._match_optimizers(live)
        self._live = self.map_keys(live.tensors)
        self._live_skeleton = live.skeleton
        for name, value in self._entries:
            self._check_module(name, value)
            for key in tensor_keys(self._saved[name]):
                self.tensors[key] = self._find_memory(key, value)
        self._shared = SharedMemory(self.tensors)
        if self._restores_rng:
            for key in tensor_keys(self._saved[RNG_KEY]):
                self.tensors[key] = allocate_tensor(opened.part(key, rank))

    def _find_compiled_keys(self) -> dict[str, str]:
        """Map keys of captured modules to the checkpoint's keys with torch.compile's prefix.

        The captured keys are without the prefix.
        """
        keys: dict[str, str] = {}
        for name, value in self._entries:
            saved_keys = tensor_keys(self._saved[name]) if isinstance(value, nn.Module) else []
            for key in saved_keys:
                # Of two keys that would become one, none was renamed in the captured state either.
                if strip_key(key) not in saved_keys:
                    keys[strip_key(key)] = key
        return keys

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
            else:
                self._check_order(name, value)
        return matches

    def _check_order(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        """Check moments that are matched by the order of parameters, for lack of names."""
        self.reports.append(
            f"{name}: the checkpoint has no names of its parameters: matched by their order"
        )
        for key in tensor_keys(self._saved[name]):
            check_moment(key, self._opened.part(key, self._rank), optimizer)

    def map_keys(self, live: Tensors) -> Tensors:
        """Return the tensors of the state by their keys in the checkpoint."""
        tensors: Tensors = {}
        for key, tensor in live.items():
            saved_key = self._compiled_keys.get(key, key)
            tensors[saved_key] = tensor
        for name, renumbering in self._optimizers.items():
            tensors = renumbering.map_keys(name, tensors)
        return tensors

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
        reports = [*self.reports]
        for name, value in self._entries:
            if isinstance(value, nn.Module | torch.optim.Optimizer):
                self._check_values(name, value, after)
            if not has_own_format(value):
                continue
            differences = find_differences(
                name,
                self._saved[name],
                self.tensors,
                after,
            )
            # An entry that was not captured before the load has no fingerprint.
            changed = fingerprint(after, name) != fingerprints.get(name)
            report = judge_differences(
                name,
                value,
                differences,
                changed=changed,
            )
            if report:
                reports.append(report)
        return reports

    def _check_values(self, name: str, value: Any, after: Captured) -> None:
        numbers = self._optimizers[name].numbers if name in self._optimizers else {}

        def find_live_key(key: str) -> str:
            if isinstance(value, nn.Module):
                return strip_key(key)
            return str(numbers.get(int(key), key)) if key.isdigit() else key

        check_values(name, self._saved[name], after.skeleton[name], find_live_key)

    def merge_aliases(self) -> None:
        """Finish the tensors that share memory. Raises InputError if they cannot all be right."""
        self._shared.merge(self.tensors)

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

    def _leave_out_entries(self) -> None:
        """Drop the entries that only the state or only the checkpoint has. Raises InputError."""
        saved_names = set(self._saved) - {RNG_KEY, NOTES_KEY}
        live_names = {name for name, _ in self._entries}
        common = live_names & saved_names
        if not common:
            raise _mismatch_error(
                f"entries {sorted(live_names)}; the checkpoint has {sorted(saved_names)}",
                "at least one entry that both have",
            )
        for name in sorted(live_names - common):
            self.reports.append(f"{name}: not in the checkpoint: it begins as it was built")
        for name in sorted(saved_names - common):
            self.reports.append(f"{name}: only in the checkpoint: it is not used")
            del self._saved[name]
        self._entries = [(name, value) for name, value in self._entries if name in common]

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
        saved_types = list_wrapper_types(self._saved[name])
        live_types = list_wrapper_types(self._live_skeleton[name])
        for key, kind in saved_types.items():
            live_kind = live_types.get(strip_key(key))
            if live_kind != kind:
                raise _mismatch_error(f"{key}: {live_kind} here", f"{kind} as saved")
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
        dtype = get_dtype(part)
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
            return allocate_tensor(part)
        parameter_number = int(number)
        if name in self._optimizers:
            numbers = self._optimizers[name].numbers
            parameter_number = numbers.get(parameter_number, parameter_number)
        return new_moment(
            part,
            parameter_number,
            owner,
            is_inside=rest.count("/") > 2,
        )


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
        if isinstance(value, nn.Module):
            saved = restore_keys(value, strip_keys(saved))
        value.load_state_dict(saved)
    elif isinstance(value, torch.Tensor):
        pass
    elif same_container(value, saved):
        refill(value, saved)
    else:
        raise _mismatch_error(
            f"{name}: a {type(value).__name__} here", f"a {type(saved).__name__} as saved"
        )


def _is_filled(module: nn.Module, saved: Any) -> bool:
    """Return whether every saved value is memory of the module's own parameters and buffers."""
    # Types alone do not show it: FSDP1, state-dict hooks and get_extra_state return copies, and
    # filling those restores nothing.
    if not isinstance(saved, Mapping):
        return False
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
