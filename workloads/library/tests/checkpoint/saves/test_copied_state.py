"""Entries whose state_dict() returns copies: their values come back, or the start is refused."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.checkpoint import Checkpointer
from holdfast.support.errors import InputError

State = dict[str, Any]
pytestmark = pytest.mark.process


class Overridden(nn.Linear):
    """Returns copies, like frameworks that clean names or move tensors to the CPU."""

    def state_dict(self, *args: Any, **options: Any) -> Any:
        tensors = super().state_dict(*args, **options)
        prefixed: Any = {}
        for name, tensor in tensors.items():
            prefixed[name] = tensor.cpu().clone()
        return prefixed


class Extra(nn.Linear):
    """A tensor that is neither a parameter nor a buffer."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.scale = torch.rand(3)

    def get_extra_state(self) -> torch.Tensor:
        return self.scale.clone()

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.scale = state


class Forgetful(Overridden):
    def load_state_dict(self, *args: Any, **options: Any) -> Any: ...


class Average:
    """An object of the loop: its state is a copy, and so are numbers in it."""

    def __init__(self, *_: int) -> None:
        self.value = torch.zeros(3)
        self.count = 0

    def state_dict(self) -> State:
        return {
            "value": self.value.clone(),
            "count": self.count,
        }

    def load_state_dict(self, state: State) -> None:
        self.value = state["value"]
        self.count = state["count"]


class Unloaded(Average):
    def load_state_dict(self, state: State) -> None: ...


class UnloadedNumbers(Unloaded):
    def state_dict(self) -> State:
        return {"count": self.count}


class Shifted(Average):
    """Converts its state, so that a comparison cannot know whether it was restored."""

    def load_state_dict(self, state: State) -> None:
        self.value = state["value"] + 1
        self.count = state["count"]


class Lazy(Average):
    """Loads its state at the next iteration, like loaders."""

    def load_state_dict(self, state: State) -> None:
        self.pending = state

    def __iter__(self) -> Iterator[int]:
        super().load_state_dict(self.pending)
        return iter([self.count])


def change_and_save(url: Path, entry: Any) -> Any:
    """Changes the entry, saves it, and returns a copy of it."""
    with Checkpointer(
        url,
        {"entry": entry},
        run="r",
        every=1,
    ) as ckpt:
        if isinstance(entry, nn.Module):
            nn.init.constant_(entry.weight, 7.0)
            entry.scale = torch.full((3,), 7.0)
        else:
            entry.value = torch.ones(3)
            entry.count = 5
        ckpt.tick(1)
    return copy.deepcopy(entry)


@pytest.mark.parametrize("make", [Overridden, Extra])
def test_a_module_whose_state_is_a_copy_comes_back(tmp_path: Path, make: type[Any]) -> None:
    saved = change_and_save(tmp_path, make(4, 4))
    entry = make(4, 4)
    with Checkpointer(tmp_path, {"entry": entry}, run="r"):
        assert torch.equal(entry.weight, saved.weight)
        assert make is not Extra or torch.equal(entry.scale, saved.scale)


@pytest.mark.parametrize("make", [Forgetful, Unloaded, UnloadedNumbers])
def test_what_loads_nothing_is_refused_by_its_name(tmp_path: Path, make: type[Any]) -> None:
    change_and_save(tmp_path, make(4, 4))
    refused = pytest.raises(InputError, match=r"was not restored.*entry")
    with refused, Checkpointer(tmp_path, {"entry": make(4, 4)}, run="r"):
        pytest.fail("training began with fresh weights")


@pytest.mark.parametrize(("make", "named"), [(Average, False), (Shifted, True), (Lazy, True)])
def test_an_object_that_cannot_be_compared_is_restored_and_named(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    make: type[Average],
    named: bool,
) -> None:
    change_and_save(tmp_path, make(4, 4))
    entry = make(4, 4)
    with Checkpointer(tmp_path, {"entry": entry}, run="r"):
        assert not isinstance(entry, Lazy) or list(entry) == [5]
        assert entry.count == 5
    assert ("entry: could not be checked" in caplog.text) is named
