"""A trainer by the hours of a fake clock: what it has done where it stands, what that costs, and the lines it writes.

It follows the simulator's rules (workloads/library/holdfast/place/simulate.py) and knows nothing of how it came to where it is.
"""

import json
import math
from dataclasses import dataclass, field

from holdfast.ledger.events import Event, parse
from holdfast.place.plan import Plan, Standing

STEPS_PER_H = 1_000.0


@dataclass
class Trainer:
    name: str
    plan: Plan
    standing: Standing = Standing.WAITING
    done_h: float = 0.0
    finished_h: float = math.inf
    usd: float = 0.0
    events: list[Event] = field(default_factory=list[Event])
    _committed_h: float = 0.0
    _warm_h: float = 0.0
    _step: float = 0.0

    def is_placed(self, standing: Standing, *, evicted: bool = False) -> None:
        """Its pods are there now. After a notice it has saved all; evicted, it goes on from its last checkpoint."""
        if evicted:
            self.done_h = self._committed_h
        if evicted or standing is not self.standing:
            self._committed_h, self._warm_h = self.done_h, self.plan.restart_h
        self.standing = standing

    def works(self, from_h: float, until_h: float) -> None:
        if self.standing is Standing.WAITING or self.finished_h < math.inf:
            return
        spot = self.standing is Standing.SPOT
        speed = self.plan.interval_h / (self.plan.interval_h + self.plan.checkpoint_h) if spot else 1.0
        # To the very moment at which it is done: a bill by whole steps of the clock would not be the simulator's.
        took_h = min(until_h - from_h, self._warm_h + (self.plan.work_h - self.done_h) / speed)
        self.usd += took_h * (self.plan.spot_usd if spot else self.plan.on_demand_usd)
        useful_h = max(took_h - self._warm_h, 0.0)
        self._warm_h = max(self._warm_h - took_h, 0.0)
        began = self._committed_h
        self.done_h += useful_h * speed
        self._committed_h = began + math.floor((self.done_h - began) / self.plan.interval_h) * self.plan.interval_h
        if self.done_h >= self.plan.work_h - 1e-9:
            self.finished_h = from_h + took_h

    def writes(self, now_s: float) -> None:
        """A window where it went on, a restore where it was set back."""
        step = self.done_h * STEPS_PER_H
        if step > self._step:
            # Fields as the trainer writes them; the step may be a fraction, so that nothing is rounded.
            seconds = (step - self._step) / STEPS_PER_H * 3_600
            fields = {"first_step": self._step + 1, "last_step": step, "seconds": seconds}
            self._line(now_s, "window", fields)
        elif step < self._step:
            self._line(now_s, "restore", {"step": step, "seconds": 1.0})
        self._step = step

    def _line(self, now_s: float, event: str, fields: dict[str, float]) -> None:
        line = {"v": 1, "t": now_s, "event": event, "job": self.name, "kind": "training", "process": "p-0"} | fields
        reading = parse([json.dumps(line).encode()], job=self.name)
        assert not reading.problems, reading.problems
        self.events += reading.events
