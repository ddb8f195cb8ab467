"""A world of stated churn and short waits, for tests of what is chosen in it."""

from dataclasses import replace

import numpy as np

from holdfast.contract.capacity import Placement
from holdfast.place import advice, hazard, outages, prices
from holdfast.place.advice import World

A100, L4, H100, A100_80 = "nvidia-tesla-a100", "nvidia-l4", "nvidia-h100-80gb", "nvidia-a100-80gb"
REGION = "us-central1"


SHORT_WAITS = outages.lognormal(0.25, 0.08)


def world(churn: float = 0.1, **changes: object) -> World:
    plain = World(prices=prices.load(), churn=hazard.fixed(churn), outages=SHORT_WAITS)
    return replace(plain, **changes)  # type: ignore[arg-type]


def by(options: list[advice.Option]) -> dict[Placement, advice.Option]:
    """Of two mixes of one placement, the plain one."""
    return {option.placement: option for option in reversed(options)}


def option(placement: Placement, usd: float, p95_h: float, late: float = 0.0) -> advice.Option:
    return advice.Option(
        placement=placement,
        policy="made up",
        region=REGION,
        usd=np.array([usd]),
        finish_h=np.array([p95_h]),
        lateness=np.array([late]),
    )
