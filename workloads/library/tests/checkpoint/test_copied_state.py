"""Modules whose state_dict() returns copies: their values come back, or the start is refused."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.checkpoint import Checkpointer
from holdfast.contract.errors import InputError

pytestmark = pytest.mark.process


class Hooked(nn.Linear):
    """As frameworks do that clean names or move to the CPU."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_state_dict_post_hook(_clone)


def _clone(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    for name in list(state):
        state[name] = state[name].clone()


class Overridden(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)

    def state_dict(self, *args: Any, **more: Any) -> Any:
        return {name: tensor.cpu().clone() for name, tensor in super().state_dict(*args, **more).items()}


class Extra(nn.Linear):
    """A tensor that is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.scale = torch.rand(3)

    def get_extra_state(self) -> torch.Tensor:
        return self.scale.clone()

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.scale = state


class Forgetful(Overridden):
    def load_state_dict(self, *args: Any, **more: Any) -> Any: ...


def values(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *([model.scale] if isinstance(model, Extra) else [])]


def saved_and_changed(url: Path, make: Callable[[], nn.Module]) -> list[torch.Tensor]:
    """What was saved."""
    model = make()
    with Checkpointer(str(url), {"model": model}, run="r", every=1) as ckpt:
        with torch.no_grad():
            for value in values(model):
                value.fill_(7.0)
        ckpt.tick(1)
    return copy.deepcopy(values(model))


@pytest.mark.parametrize("make", [nn.Linear, Hooked, Overridden, Extra])
def test_a_module_whose_state_is_a_copy_comes_back(tmp_path: Path, make: Callable[..., nn.Module]) -> None:
    def build() -> nn.Module:
        return make(4, 4) if make is nn.Linear else make()

    truth = saved_and_changed(tmp_path, build)
    again = build()
    with Checkpointer(str(tmp_path), {"model": again}, run="r", every=1) as ckpt:
        assert ckpt.step == 1
        assert all(torch.equal(a, b) for a, b in zip(values(again), truth, strict=True))


def test_a_module_that_loads_nothing_is_refused_by_the_name_of_its_tensor(tmp_path: Path) -> None:
    saved_and_changed(tmp_path, Forgetful)
    with (
        pytest.raises(InputError, match=r"was not restored.*model/"),
        Checkpointer(str(tmp_path), {"model": Forgetful()}, run="r"),
    ):
        pytest.fail("training began with fresh weights")


class Average:
    """Of the loop's own: its state is a copy, and so are numbers in it."""

    def __init__(self) -> None:
        self.value, self.count = torch.zeros(3), 0

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value.clone(), "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value, self.count = state["value"], state["count"]


class Unloaded(Average):
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class UnloadedNumbers(Unloaded):
    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}


class Shifted(Average):
    """What it keeps is right in its own way, which a comparison cannot know."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value, self.count = state["value"] + 1, state["count"]


class Lazy(Average):
    """As loaders: what is loaded shows at the next iteration."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.pending = state

    def __iter__(self) -> Iterator[int]:
        super().load_state_dict(self.pending)
        return iter([self.count])


def saved_average(url: Path, kind: type[Average]) -> None:
    average = kind()
    with Checkpointer(url, {"average": average}, run="r", every=1) as ckpt:
        average.value, average.count = torch.ones(3), 5
        ckpt.tick(1)


@pytest.mark.parametrize("kind", [Unloaded, UnloadedNumbers])
def test_an_object_that_loads_nothing_is_refused_by_its_name(tmp_path: Path, kind: type[Average]) -> None:
    saved_average(tmp_path, kind)
    with (
        pytest.raises(InputError, match=r"was not restored.*average"),
        Checkpointer(tmp_path, {"average": kind()}, run="r"),
    ):
        pytest.fail("training began with a fresh object")


@pytest.mark.parametrize(("kind", "named"), [(Average, False), (Shifted, True), (Lazy, True)])
def test_an_object_that_cannot_be_compared_is_restored_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: type[Average], named: bool
) -> None:
    saved_average(tmp_path, kind)
    with Checkpointer(tmp_path, {"average": (average := kind())}, run="r"):
        assert not isinstance(average, Lazy) or list(average) == [5]
        assert average.count == 5
    assert ("average: could not be checked" in capsys.readouterr().out) is named
