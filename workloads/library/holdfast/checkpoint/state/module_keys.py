"""Keys of a module's state without torch.compile's prefix, so that both forms are one model."""

from collections.abc import Mapping
from typing import Any

from torch import nn

_COMPILED = "_orig_mod."


def strip_key(key: str) -> str:
    """Return a key of a module's state as the module without torch.compile has it."""
    return key.replace(_COMPILED, "")


def strip_keys(state: Any) -> Any:
    """Return a module's state by the keys of the module without torch.compile."""
    if not isinstance(state, Mapping):
        return state
    stripped = {strip_key(key) if isinstance(key, str) else key for key in state}
    # Two keys that would become one keep their names.
    if stripped == set(state) or len(stripped) < len(state):
        return state
    renamed: Any = type(state)()
    for key, value in state.items():
        renamed[strip_key(key)] = value
    return renamed


def restore_keys(module: nn.Module, saved: dict[str, Any]) -> dict[str, Any]:
    """Return a saved state by the keys of `module`, whether it is compiled or not."""
    is_compiled = any(_COMPILED in f"{name}." for name, _ in module.named_modules())
    if not is_compiled:
        return saved
    # state_dict() may be a collective: called for compiled modules only, on every rank.
    live_keys = {strip_key(key): key for key in module.state_dict()}
    renamed = type(saved)()
    for key, value in saved.items():
        renamed[live_keys.get(key, key)] = value
    return renamed
