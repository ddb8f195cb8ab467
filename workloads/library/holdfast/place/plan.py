"""What was priced for a job, as its object carries it: the policy, its numbers, and the queues that
it moves between.

Written when the job is rendered, read by the mover. Hours count from the object's creation. Why:
infra/decisions/0058.
"""

import json
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

import numpy as np

from holdfast.place import policies
from holdfast.place.policies import Policy, decide
from holdfast.place.simulation_arrays import Runs, runs_of
from holdfast.support.errors import InputError
from holdfast.support.values import between

# From the deciding pass to pods that are gone: a pass, Kueue's answer and the grace of a Spot pod.
REACTION_S = 180.0
MAX_TEXT = 2_048
MAX_HOURS = 10_000.0
MAX_USD = 1e6
POLICIES: dict[str, Policy] = {
    policy.name: policy for policy in (*policies.IN_TIME, policies.QUEUE)
}


class Standing(StrEnum):
    """Where a job is now."""

    WAITING = "waiting"
    """On nothing: its queue or its pods wait for the cheaper capacity."""
    SPOT = "spot"
    FLEX_START = "flex-start"
    ON_DEMAND = "on-demand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    policy: str
    work_h: float
    deadline_h: float
    restart_h: float
    interval_h: float
    checkpoint_h: float
    spot_usd: float
    """Of the cheaper capacity, whichever it is."""
    on_demand_usd: float
    spot_queue: str = "spot"
    on_demand_queue: str = "on-demand"

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise InputError(
                "policy",
                got=self.policy,
                allowed=", ".join(POLICIES),
                fix="render the job again",
            )
        between("work_h", self.work_h, 1e-3, MAX_HOURS)
        # With less time than work the job is late however it moves.
        between("deadline_h", self.deadline_h, self.work_h, MAX_HOURS)
        for name in ("restart_h", "interval_h", "checkpoint_h"):
            between(name, getattr(self, name), 0, MAX_HOURS)
        for name in ("spot_usd", "on_demand_usd"):
            between(name, getattr(self, name), 0, MAX_USD)
        if (
            not (self.spot_queue and self.on_demand_queue)
            or self.spot_queue == self.on_demand_queue
        ):
            raise InputError(
                "queues of a plan",
                got=f"{self.spot_queue!r}, {self.on_demand_queue!r}",
                allowed="two different names",
                fix="render the job again",
            )

    @property
    def cheaper(self) -> Standing:
        """What the job waits for, and leaves for on-demand in time."""
        if self.policy == policies.QUEUE.name:
            return Standing.FLEX_START
        return Standing.SPOT

    def runs(self) -> Runs:
        return runs_of(
            1,
            work_h=self.work_h,
            restart_h=self.restart_h,
            deadline_h=self.deadline_h,
            interval_h=self.interval_h,
            checkpoint_h=self.checkpoint_h,
            spot_usd=self.spot_usd,
            on_demand_usd=self.on_demand_usd,
        )

    def slack_h(self, now_h: float, done_h: float) -> float:
        """Time left less work left; below 0 the deadline cannot be kept by working on."""
        return self.deadline_h - now_h - max(self.work_h - done_h, 0.0)

    def move(
        self,
        standing: Standing,
        *,
        now_h: float,
        done_h: float,
        up: bool,
        up_for_h: float,
    ) -> Standing | None:
        """Where the job goes now; None: it stays. up: the cheaper one could be had now, and since
        `up_for_h`.
        """
        # The simulator's own function on a single run: the mover must decide as it was priced.
        found = decide(
            POLICIES[self.policy].lines(self.runs()),
            left_h=np.array([max(self.work_h - done_h, 0.0)]),
            slack_h=np.array([self.slack_h(now_h, done_h)]),
            on_spot=np.array([standing is self.cheaper]),
            on_demand=np.array([standing is Standing.ON_DEMAND]),
            up=np.array([up]),
            up_for_h=np.array([up_for_h]),
        )
        if found.to_demand[0]:
            return Standing.ON_DEMAND
        return self.cheaper if found.to_spot[0] else None

    def text(self) -> str:
        """One line of JSON, for an annotation."""
        # A millionth of an hour is 4 ms; more digits only lengthen the annotation.
        numbers = {k: round(v, 6) if isinstance(v, float) else v for k, v in asdict(self).items()}
        return json.dumps(numbers, separators=(",", ":"))


def read(text: str) -> Plan:
    """Of an annotation, which any user may have written; InputError where it is no plan."""
    try:
        # Before it is parsed: any user may write the annotation, and the mover reads that of every
        # job.
        if len(text) > MAX_TEXT:
            raise ValueError(f"{len(text)} characters")
        body: Any = json.loads(text)
        if not isinstance(body, dict) or not body.keys() <= {field.name for field in fields(Plan)}:
            raise ValueError("fields that no plan has")
        if not all(isinstance(body.get(name, ""), str) for name in _TEXTS):
            raise ValueError("a number where a name belongs")
        return Plan(**body)
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        raise InputError(
            "placement plan",
            got=f"{text[:80]!r}: {error}",
            allowed="the annotation as it was rendered",
            fix="render the job again",
        ) from error


_TEXTS = frozenset({"policy", "spot_queue", "on_demand_queue"})
