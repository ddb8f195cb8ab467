"""Moments are restored to the parameter of their name, even if its number has changed."""

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
    """A model whose parameters have the same shape and differ only in their names."""

    def __init__(self) -> None:
        super().__init__()
        for name in "abcd":
            self.register_parameter(name, nn.Parameter(torch.ones(3)))


def list_parameters(model: nn.Module) -> Any:
    return list(model.parameters())


def reverse_parameters(model: nn.Module) -> Any:
    return list(model.parameters())[::-1]


def reverse_named_parameters(model: nn.Module) -> Any:
    return list(model.named_parameters())[::-1]


def groups(*names: str) -> Order:
    rates = {"ab": 0.1, "ba": 0.1}

    def make_groups(model: nn.Module) -> list[dict[str, Any]]:
        parameter_groups: list[dict[str, Any]] = []
        for group in names:
            parameters = [model.get_parameter(name) for name in group]
            parameter_groups.append(
                {
                    "params": parameters,
                    "lr": rates.get(group, 0.2),
                }
            )
        return parameter_groups

    return make_groups


def list_settings(optimizer: torch.optim.Optimizer) -> list[tuple[Any, float]]:
    return [(group.keys(), group["lr"]) for group in optimizer.param_groups]


def train(
    url: Path,
    order: Order,
    until: int,
) -> dict[str, float]:
    """Train to step `until`, and return the first moment of each parameter by its name."""
    model = Model()
    optimizer = torch.optim.Adam(order(model), lr=0.1)
    settings = list_settings(optimizer)
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
    assert list_settings(optimizer) == settings
    moments: dict[str, float] = {}
    for name, parameter in model.named_parameters():
        if parameter in optimizer.state:
            moments[name] = optimizer.state[parameter]["exp_avg"][0].item()
    return moments


@pytest.mark.parametrize(
    ("saved_order", "live_order"),
    [
        (list_parameters, reverse_parameters),
        (reverse_named_parameters, list_parameters),
        (groups("ab", "cd"), groups("dc", "ba")),
    ],
)
def test_moments_are_restored_to_their_parameter_in_another_order(
    tmp_path: Path,
    saved_order: Order,
    live_order: Order,
) -> None:
    moments = train(tmp_path, saved_order, 2)
    assert len(set(moments.values())) == 4
    assert train(tmp_path, live_order, 2) == moments
    assert train(tmp_path, live_order, 3) != moments


@pytest.mark.parametrize(
    ("saved_order", "live_order", "message"),
    [
        (
            groups("ab", "cd"),
            groups("ac", "bd"),
            r"(?s)optimizer optimizer.*model/c.*another group",
        ),
        (groups("ab"), groups("ac"), r"model/c.*model/b"),
        (
            list_parameters,
            lambda _: Model().parameters(),
            r"(?s)no entry of the state holds.*add their module to the state",
        ),
    ],
    ids=["another group", "other parameters", "no names"],
)
def test_other_parameters_are_refused_by_name(
    tmp_path: Path,
    saved_order: Order,
    live_order: Order,
    message: str,
) -> None:
    train(tmp_path, saved_order, 2)
    with pytest.raises(InputError, match=message):
        train(tmp_path, live_order, 3)


def test_optimizer_without_a_module_is_restored_by_position(tmp_path: Path) -> None:
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
