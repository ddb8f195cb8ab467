"""Moments come back to the parameter of their name, whatever its number is at the next start."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.checkpoint import Checkpointer
from holdfast.support.errors import InputError

pytestmark = pytest.mark.process
Order = Callable[[nn.Module], Any]


class Model(nn.Module):
    """Every parameter has the same shape: only names tell them apart."""

    def __init__(self) -> None:
        super().__init__()
        for name in "abcd":
            self.register_parameter(name, nn.Parameter(torch.ones(3)))


def as_built(model: nn.Module) -> Any:
    return list(model.parameters())


def reversed_(model: nn.Module) -> Any:
    return list(model.parameters())[::-1]


def named(model: nn.Module) -> Any:
    return list(model.named_parameters())[::-1]


def groups(*names: str) -> Order:
    rates = {"ab": 0.1, "ba": 0.1}
    return lambda model: [
        {
            "params": [model.get_parameter(name) for name in group],
            "lr": rates.get(group, 0.2),
        }
        for group in names
    ]


def train(url: Path, order: Order, until: int) -> dict[str, float]:
    """The first moment of each parameter by its name."""
    model = Model()
    optimizer = torch.optim.Adam(order(model), lr=0.1)
    before = [(group.keys(), group["lr"]) for group in optimizer.param_groups]
    with Checkpointer(
        url,
        {"model": model, "optimizer": optimizer},
        run="r",
        every=1,
    ) as ckpt:
        for step in range(ckpt.step, until):
            for number, (_, parameter) in enumerate(model.named_parameters()):
                parameter.grad = torch.full((3,), float(number + 1))
            optimizer.step()
            ckpt.tick(step + 1)
    assert [(group.keys(), group["lr"]) for group in optimizer.param_groups] == before
    moments = {name: optimizer.state.get(p) for name, p in model.named_parameters()}
    return {name: found["exp_avg"][0].item() for name, found in moments.items() if found}


@pytest.mark.parametrize(
    ("saved", "here"),
    [(as_built, reversed_), (named, as_built), (groups("ab", "cd"), groups("dc", "ba"))],
)
def test_moments_come_back_to_their_parameter_in_another_order(
    tmp_path: Path, saved: Order, here: Order
) -> None:
    truth = train(tmp_path, saved, 2)
    assert len(set(truth.values())) == 4
    assert train(tmp_path, here, 2) == truth
    assert train(tmp_path, here, 3) != truth


@pytest.mark.parametrize(
    ("saved", "here", "why"),
    [
        (
            groups("ab", "cd"),
            groups("ac", "bd"),
            r"(?s)optimizer optimizer.*model/c.*another group",
        ),
        (groups("ab"), groups("ac"), r"model/c.*model/b"),
        (
            as_built,
            lambda _: Model().parameters(),
            r"(?s)names of its parameters.*add their module to the state",
        ),
    ],
    ids=["another group", "other parameters", "no names"],
)
def test_other_parameters_are_refused_by_name(
    tmp_path: Path, saved: Order, here: Order, why: str
) -> None:
    train(tmp_path, saved, 2)
    with pytest.raises(InputError, match=why):
        train(tmp_path, here, 3)


def test_an_optimizer_without_a_module_is_restored_by_position(tmp_path: Path) -> None:
    for until in (1, 2):
        weight = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.Adam([weight])
        with Checkpointer(
            tmp_path,
            {"weight": weight, "optimizer": optimizer},
            run="r",
            every=1,
        ) as ckpt:
            for step in range(ckpt.step, until):
                weight.grad = torch.ones(3)
                optimizer.step()
                ckpt.tick(step + 1)
    assert optimizer.state[weight]["step"].item() == 2
