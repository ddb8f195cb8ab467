"""What the options of an answer are called, and which policy a row stands for."""

from holdfast.place import policies
from holdfast.place.belief import Option
from holdfast.place.policies import Policy

QUEUE = "wait in the queue"
QUEUE_IN_TIME = "queue, on-demand in time"
ANY_ZONE = ", any zone"
_SPOT = {
    policies.WAIT.name: "wait for Spot",
    policies.HYBRID.name: "Spot, else on-demand at once",
    policies.STAY.name: "Spot, else on-demand to the end",
    policies.PATIENT.name: "Spot, on-demand in time",
    policies.EAGER.name: "Spot, on-demand in time, back at once",
    policies.STEADY.name: "Spot, on-demand in time, seldom back",
    policies.UNIFORM.name: "Spot, on-demand when behind",
    policies.GREEDY.name: "Spot, on-demand at the last",
}


def on_spot(policy: Policy) -> str:
    return _SPOT[policy.name]


def any_zone(option: Option) -> bool:
    """It begins anew in another zone of the region when its own has no machines."""
    return option.policy.endswith(ANY_ZONE)


def in_time(option: Option) -> Policy | None:
    """The policy of this row, if it is one that watches a deadline."""
    if option.policy == QUEUE_IN_TIME:
        return policies.QUEUE
    name = option.policy.removesuffix(ANY_ZONE)
    return next((p for p in policies.IN_TIME if name == on_spot(p)), None)
