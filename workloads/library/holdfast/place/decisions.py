"""What a policy does now: the one place where its lines are read, for the simulator and for the jobs of a cluster."""

from dataclasses import dataclass

from holdfast.place.policies import Lines
from holdfast.place.runs import Bools, Floats

# Sums of event times differ in the last bits; without it a run stands at its own event for ever.
EPS_H = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Who starts on what now, from nothing or from the other capacity; nobody does both."""

    to_spot: Bools
    to_demand: Bools


def decide(
    lines: Lines, *, left_h: Floats, slack_h: Floats, on_spot: Bools, on_demand: Bools, up: Bools, up_for_h: Floats
) -> Moves:
    """One element a run. left_h: work; slack_h: time left less that work; up_for_h: how long Spot has been there."""
    idle = ~(on_spot | on_demand)
    near_limit = slack_h <= lines.enter + EPS_H
    behind = slack_h <= lines.wait_base + lines.wait_slope * left_h + EPS_H
    buy = idle & (near_limit | (behind & ~up))
    ahead = slack_h >= lines.back_base + lines.back_slope * left_h - EPS_H
    patient = up_for_h >= lines.patience_h - EPS_H
    back = on_demand & up & ahead & patient & ~near_limit
    leaving = on_spot & (slack_h <= lines.leave + EPS_H)
    return Moves(to_spot=back | (idle & up & ~buy), to_demand=buy | leaving)
