"""Moments come back to the parameter of their name, whatever its number is at the next start."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.checkpoint import Checkpointer
from holdfast.contract.errors import InputError

pytestmark = pytest.mark.process
Parameters = Sequence[nn.Parameter] | list[dict[str, Any]]
Order = Callable[[nn.Module], Parameters]


class Model(nn.Module):
    """Every parameter has the same shape: only names tell them apart."""

    def __init__(self) -> None:
        super().__init__()
        for name in "abcd":
            self.register_parameter(name, nn.Parameter(torch.ones(3)))


def as_built(model: nn.Module) -> Parameters:
    return list(model.parameters())


def reversed_(model: nn.Module) -> Parameters:
    return list(model.parameters())[::-1]


def _groups(model: nn.Module, *names: str) -> Parameters:
    rates = {"ab": 0.1, "ba": 0.1, "cd": 0.2, "dc": 0.2}
    return [{"params": [model.get_parameter(name) for name in group], "lr": rates[group]} for group in names]


def in_groups(model: nn.Module) -> Parameters:
    return _groups(model, "ab", "cd")


def in_groups_reversed(model: nn.Module) -> Parameters:
    return _groups(model, "dc", "ba")


def named(model: nn.Module) -> Any:
    return list(model.named_parameters())[::-1]


def train(url: Path, order: Order, until: int) -> dict[str, float]:
    """The first moment of each parameter by its name."""
    model = Model()
    optimizer = torch.optim.Adam(order(model), lr=0.1)
    before = [{**group, "params": []} for group in optimizer.param_groups]
    with Checkpointer(url, {"model": model, "optimizer": optimizer}, run="r", every=1) as ckpt:
        for step in range(ckpt.step, until):
            for number, (_, parameter) in enumerate(model.named_parameters()):
                parameter.grad = torch.full((3,), float(number + 1))
            optimizer.step()
            ckpt.tick(step + 1)
    assert [group.keys() for group in optimizer.param_groups] == [group.keys() for group in before]
    assert [group["lr"] for group in optimizer.param_groups] == [group["lr"] for group in before]
    moments = {name: optimizer.state.get(p) for name, p in model.named_parameters()}
    return {name: found["exp_avg"][0].item() for name, found in moments.items() if found}


@pytest.mark.parametrize(
    ("saved", "here"),
    [(as_built, reversed_), (named, as_built), (in_groups, in_groups_reversed)],
)
def test_moments_come_back_to_their_parameter_in_another_order(tmp_path: Path, saved: Order, here: Order) -> None:
    truth = train(tmp_path, saved, 2)
    assert len(set(truth.values())) == 4
    assert train(tmp_path, here, 2) == truth
    assert train(tmp_path, here, 3) != truth


def test_parameters_of_another_group_are_refused(tmp_path: Path) -> None:
    train(tmp_path, in_groups, 2)
    with pytest.raises(InputError, match=r"(?s)optimizer optimizer.*model/c.*another group"):
        train(tmp_path, lambda model: [{"params": [model.get_parameter(n) for n in g]} for g in ("ac", "bd")], 3)


def test_other_parameters_are_refused_by_name(tmp_path: Path) -> None:
    train(tmp_path, lambda model: [model.get_parameter("a"), model.get_parameter("b")], 2)
    with pytest.raises(InputError, match=r"model/c.*model/b"):
        train(tmp_path, lambda model: [model.get_parameter("a"), model.get_parameter("c")], 3)


def test_an_optimizer_whose_parameters_have_no_name_here_is_refused(tmp_path: Path) -> None:
    train(tmp_path, as_built, 2)
    state = {"model": Model(), "optimizer": torch.optim.Adam(Model().parameters())}
    refused = pytest.raises(InputError, match=r"(?s)names of its parameters.*add their module to the state")
    with refused, Checkpointer(tmp_path, state, run="r"):
        pytest.fail("it began")


def test_an_optimizer_without_a_module_is_restored_by_position(tmp_path: Path) -> None:
    for until in (1, 2):
        weight = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.Adam([weight])
        with Checkpointer(tmp_path, {"weight": weight, "optimizer": optimizer}, run="r", every=1) as ckpt:
            for step in range(ckpt.step, until):
                weight.grad = torch.ones(3)
                optimizer.step()
                ckpt.tick(step + 1)
    assert optimizer.state[weight]["step"].item() == 2
