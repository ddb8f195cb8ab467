"""What the options of an answer are called, and which policy a row is of."""

from holdfast.place import policies
from holdfast.place.belief import Option
from holdfast.place.policies import Policy

QUEUE = "wait in the queue"
QUEUE_IN_TIME = "queue, on-demand in time"
_SPOT = {
    policies.WAIT.name: "wait for Spot", policies.HYBRID.name: "Spot, else on-demand at once",
    policies.PATIENT.name: "Spot, on-demand in time", policies.EAGER.name: "Spot, on-demand in time, back at once",
    policies.STEADY.name: "Spot, on-demand in time, rarely back",
}  # fmt: skip


def on_spot(policy: Policy) -> str:
    return _SPOT[policy.name]


def in_time(option: Option) -> Policy | None:
    """The policy of this row, if it is one that watches a deadline."""
    if option.policy == QUEUE_IN_TIME:
        return policies.QUEUE
    return next((policy for policy in policies.IN_TIME if option.policy == on_spot(policy)), None)
