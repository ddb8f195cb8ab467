"""Defines a drill as data: its work, fault, blast radius, gate and objectives."""

import operator
import re
from dataclasses import dataclass
from enum import StrEnum

from holdfast.support.errors import InputError

RECOVERED = "recovered_s"  # seconds from the fault; measured by every target


class Place(StrEnum):
    """Places where a drill can run."""

    LOCAL = "local"  # processes of this machine
    CLUSTER = "cluster"  # any Kubernetes cluster, through its API only
    GKE = "gke"  # a pool of Spot VMs, preempted by Compute Engine itself


class DrillWork(StrEnum):
    """Work that runs while the fault happens."""

    TRAINER = "trainer"
    NAIVE = "naive"  # the twin that does what tutorials do
    SHARDED = "sharded"  # nodes that each have a part of the state, and copies of another's
    BATCH = "batch"
    SERVER = "server"  # servers of requests, behind their proxy
    STREAMS = "streams"  # engines of text streams, behind their router
    NAMED = "named"  # pods of a cluster, named by namespace and selector


class Fault(StrEnum):
    NOTICE = "notice"  # SIGTERM, the window, SIGKILL
    POWER_LOSS = "power-loss"  # SIGKILL to everything, without notice
    EVICT = "evict"  # the Eviction API, pod by pod
    PREEMPT = "preempt"  # the node gets its notice and ends; the place decides how


_HOLDS = {
    "<=": operator.le,
    ">=": operator.ge,
    "=": operator.eq,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """A limit for a metric, as `recovered_s <= 60 s`."""

    metric: str
    """Name that the target measures."""
    operator: str
    value: float
    unit: str = ""

    def holds(self, measured: float | None) -> bool:
        return measured is not None and bool(_HOLDS[self.operator](measured, self.value))

    def __str__(self) -> str:
        return f"{self.metric} {self.operator} {self.value:g} {self.unit}".rstrip()


def format_number(measured: float | None) -> str:
    return "nothing" if measured is None else f"{measured:.4g}"


def parse_bound(text: str) -> Bound:
    """Parses `METRIC <= NUMBER UNIT`; `>=` and `=` are operators too, and the unit is optional."""
    match = re.fullmatch(r"(\S+) (<=|>=|=) ([\d.]+)(?: (\S+))?", text)
    if not match:
        raise InputError(
            "the bound cannot be read",
            got=text,
            allowed="METRIC <= NUMBER UNIT",
            fix="write spaces between",
        )
    return Bound(
        metric=match[1],
        operator=match[2],
        value=float(match[3]),
        unit=match[4] or "",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    promise: str
    bound: Bound


def parse_objective(text: str) -> Objective:
    """Parses `PROMISE: BOUND`."""
    promise, _, bound = text.partition(": ")
    return Objective(promise=promise, bound=parse_bound(bound))


@dataclass(frozen=True, kw_only=True, slots=True)
class Blast:
    """The blast radius: at most `most` targets and `percent` of them, and at least one."""

    of: str
    most: int = 1
    percent: int = 100

    def limit(self, present: int) -> int:
        """Returns how many of `present` targets may be hit."""
        share = max(1, present * self.percent // 100)
        return min(self.most, share, present)

    def __str__(self) -> str:
        share = f", at most {self.percent} %" if self.percent < 100 else ""
        return f"{self.most} {self.of}{share}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Drill:
    name: str
    question: str
    place: Place
    work: DrillWork
    steady: Bound
    """The gate: nothing is injected before it holds. It is checked again after the recovery."""
    steady_s: float
    """Longest wait for the steady state, in seconds."""
    blast: Blast
    fault: Fault
    stop_when: Bound
    """The stop condition, checked while waiting: once it holds, the rollback begins."""
    recovery_s: float
    """Longest wait for the recovery, in seconds."""
    objectives: tuple[Objective, ...]
    rollback: str
    usd: float = 0.0
    """Upper limit of the drill's own cost; 0 if it runs on existing machines only."""
    control: bool = False
    """True for a drill that runs only when named: it shows that the judge can say `broken`."""

    def __post_init__(self) -> None:
        promises = [objective.promise for objective in self.objectives]
        if not promises or len(set(promises)) < len(promises):
            allowed = "at least one objective, each promise once"
            raise self._make_error(promises, allowed, "reword the objectives")
        if self.blast.most < 1 or not 1 <= self.blast.percent <= 100:
            allowed = "most >= 1, percent 1..100"
            raise self._make_error(self.blast, allowed, "bound the blast radius")
        for objective in self.objectives:
            bound = objective.bound
            if bound.metric == RECOVERED and bound.value > self.recovery_s:
                allowed = f"at most recovery_s, {self.recovery_s:g} s"
                raise self._make_error(bound, allowed, "wait longer")

    @property
    def minutes(self) -> float:
        """The longest time that the drill may wait in all."""
        return (2 * self.steady_s + self.recovery_s) / 60

    def _make_error(self, got: object, allowed: str, fix: str) -> InputError:
        return InputError(
            f"drill {self.name} is not complete",
            got=got,
            allowed=allowed,
            fix=fix,
        )
