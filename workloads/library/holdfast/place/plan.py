"""The plan of a job that may be moved: the policy that was priced, its numbers, and its queues.

The plan is written into the job's object when it is rendered, and read by the mover. Hours count
from the object's creation. Why: infra/decisions/0058.
"""

import json
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

import numpy as np

from holdfast.place import policies
from holdfast.place.policies import Policy, decide
from holdfast.place.simulation_arrays import Runs, make_runs
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
    """The capacity that a job is on now."""

    WAITING = "waiting"
    """The job has no capacity: its queue or its pods wait for the cheaper one."""
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
    """Price of the cheaper capacity, which may be flex-start."""
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
        both_named = self.spot_queue and self.on_demand_queue
        if not both_named or self.spot_queue == self.on_demand_queue:
            raise InputError(
                "queues of a plan",
                got=f"{self.spot_queue!r}, {self.on_demand_queue!r}",
                allowed="two different names",
                fix="render the job again",
            )

    @property
    def cheaper(self) -> Standing:
        """The capacity that the job waits for, and leaves for on-demand in time."""
        if self.policy == policies.QUEUE.name:
            return Standing.FLEX_START
        return Standing.SPOT

    def runs(self) -> Runs:
        return make_runs(
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
        """Return the remaining time less the remaining work.

        Below 0 the deadline cannot be kept by working on.
        """
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
        """Return the capacity that the job moves to now, or None if it stays.

        up: the cheaper capacity is available, for `up_for_h` hours already.
        """
        work_left_h = max(self.work_h - done_h, 0.0)
        # The simulator's own function on a single run: the mover must decide as it was priced.
        moves = decide(
            POLICIES[self.policy].lines(self.runs()),
            left_h=np.array([work_left_h]),
            slack_h=np.array([self.slack_h(now_h, done_h)]),
            on_spot=np.array([standing is self.cheaper]),
            on_demand=np.array([standing is Standing.ON_DEMAND]),
            up=np.array([up]),
            up_for_h=np.array([up_for_h]),
        )
        if moves.to_demand[0]:
            return Standing.ON_DEMAND
        return self.cheaper if moves.to_spot[0] else None

    def text(self) -> str:
        """Return one line of JSON, for an annotation."""
        body: dict[str, Any] = {}
        for name, value in asdict(self).items():
            # A millionth of an hour is 4 ms; more digits only lengthen the annotation.
            body[name] = round(value, 6) if isinstance(value, float) else value
        return json.dumps(body, separators=(",", ":"))


def parse_plan(text: str) -> Plan:
    """Parse the plan of an annotation, which any user may have written.

    Raises InputError if it is no plan.
    """
    try:
        return _parse(text)
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        raise InputError(
            "placement plan",
            got=f"{text[:80]!r}: {error}",
            allowed="the annotation as it was rendered",
            fix="render the job again",
        ) from error


_TEXTS = frozenset({"policy", "spot_queue", "on_demand_queue"})


def _parse(text: str) -> Plan:
    # Checked before parsing: the mover reads the annotation of every job.
    if len(text) > MAX_TEXT:
        raise ValueError(f"{len(text)} characters")
    body: Any = json.loads(text)
    names = {field.name for field in fields(Plan)}
    if not isinstance(body, dict) or not body.keys() <= names:
        raise ValueError("fields that no plan has")
    if not all(isinstance(body.get(name, ""), str) for name in _TEXTS):
        raise ValueError("a number where a name belongs")
    return Plan(**body)
