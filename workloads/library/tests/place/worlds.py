"""Builds beliefs with a given churn and short waits, for tests of recommendations."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from holdfast.cost import prices
from holdfast.place import preemption_rate
from holdfast.place.options import Case, Option, World
from holdfast.vocabulary.capacity import Placement

A100 = "nvidia-tesla-a100"
L4 = "nvidia-l4"
H100 = "nvidia-h100-80gb"
A100_80 = "nvidia-a100-80gb"
REGION = "us-central1"
SHORT_WAIT_H = 0.25 / 3
"""Median; the mean is a quarter of an hour."""


def world(churn: float = 0.1, **changes: object) -> World:
    plain = World(
        prices=prices.load(),
        churn=preemption_rate.assume(churn),
        spot_wait_h=SHORT_WAIT_H,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def by(options: list[Option]) -> dict[Placement, Option]:
    """Index options by placement; of two mixes of one placement the plain one stays."""
    return {option.placement: option for option in reversed(options)}


def select_skus(world: World, condition: Callable[[prices.Sku], bool]) -> World:
    """Returns the world with the prices that fulfill a condition."""
    skus = tuple(sku for sku in world.prices.skus if condition(sku))
    return replace(world, prices=replace(world.prices, skus=skus))


def list_by_placement(options: list[Option], placement: Placement) -> list[Option]:
    return [option for option in options if option.placement is placement]


def option(
    placement: Placement,
    usd: float,
    p95_h: float,
    late: float = 0.0,
    worst_late: float = 0.0,
) -> Option:
    usual = Case(
        usd=np.array([usd]),
        finish_h=np.array([p95_h]),
        late=late,
    )
    return Option(
        placement=placement,
        policy="made up",
        region=REGION,
        cases=(replace(usual, late=0.0), usual, replace(usual, late=max(late, worst_late))),
    )
