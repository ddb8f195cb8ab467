"""What a drill is: data. Nothing here runs."""

import operator
import re
from dataclasses import dataclass
from enum import StrEnum

from holdfast.support.errors import InputError

RECOVERED = "recovered_s"  # seconds from the fault; measured by every target


class Place(StrEnum):
    """Where a drill runs."""

    LOCAL = "local"  # processes of this machine
    CLUSTER = "cluster"  # any Kubernetes cluster, through its API only
    GKE = "gke"  # a pool of Spot VMs, preempted by Compute Engine itself


class DrillWork(StrEnum):
    """What runs while it happens."""

    TRAINER = "trainer"
    NAIVE = "naive"  # the twin that does what tutorials do
    SHARDED = "sharded"  # nodes that each have a part of the state, and copies of another's
    BATCH = "batch"
    SERVER = "server"  # servers of requests, behind their proxy
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
    """A measured number against a stated one."""

    metric: str
    """A name that the target measures."""
    operator: str
    value: float
    unit: str = ""

    def holds(self, measured: float | None) -> bool:
        return measured is not None and bool(_HOLDS[self.operator](measured, self.value))

    def __str__(self) -> str:
        return f"{self.metric} {self.operator} {self.value:g}{' ' if self.unit else ''}{self.unit}"


def number(measured: float | None) -> str:
    """As people read it."""
    return "nothing" if measured is None else f"{measured:.4g}"


def bound(text: str) -> Bound:
    """`METRIC <= NUMBER`, also >= and =, and a unit after it where it has one."""
    found = re.fullmatch(r"(\S+) (<=|>=|=) ([\d.]+)(?: (\S+))?", text)
    if not found:
        raise InputError(
            "the bound cannot be read",
            got=text,
            allowed="METRIC <= NUMBER UNIT",
            fix="write spaces between",
        )
    return Bound(
        metric=found[1],
        operator=found[2],
        value=float(found[3]),
        unit=found[4] or "",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    promise: str
    bound: Bound


def promised(*texts: str) -> tuple[Objective, ...]:
    """Each text is `PROMISE: BOUND`."""
    parts = (text.partition(": ") for text in texts)
    return tuple(Objective(promise=promise, bound=bound(wanted)) for promise, _, wanted in parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Blast:
    """How much may be hit. The lesser of both numbers counts, and always at least one."""

    of: str
    most: int = 1
    percent: int = 100

    def size(self, present: int) -> int:
        return min(self.most, max(1, present * self.percent // 100), present)

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
    """The gate: nothing is injected before it holds. Checked again afterwards."""
    steady_s: float
    """How long it is waited for."""
    blast: Blast
    fault: Fault
    stop_when: Bound
    """Looked at all the time after the fault; once it holds, waiting ends and the rollback begins.
    """
    recovery_s: float
    """How long recovery is waited for."""
    objectives: tuple[Objective, ...]
    rollback: str
    usd: float = 0.0
    """What the drill itself may cost; 0 where it runs on what is there anyway."""
    control: bool = False
    """Runs only when named: it shows that the judge can say `broken`."""

    def __post_init__(self) -> None:
        promises = [objective.promise for objective in self.objectives]
        if not promises or len(set(promises)) < len(promises):
            raise _wrong(
                self.name,
                promises,
                "at least one objective, each promise once",
                "reword the objectives",
            )
        if not (self.blast.most >= 1 and 1 <= self.blast.percent <= 100):
            raise _wrong(
                self.name, self.blast, "most >= 1, percent 1..100", "bound the blast radius"
            )
        late = []
        for o in self.objectives:
            if o.bound.metric == RECOVERED and o.bound.value > self.recovery_s:
                late.append(o.bound)
        if late:
            raise _wrong(
                self.name, late[0], f"at most recovery_s, {self.recovery_s:g} s", "wait longer"
            )

    @property
    def minutes(self) -> float:
        """How long it may wait in all."""
        return (2 * self.steady_s + self.recovery_s) / 60


def _wrong(name: str, got: object, allowed: str, fix: str) -> InputError:
    return InputError(
        f"drill {name} is not complete",
        got=got,
        allowed=allowed,
        fix=fix,
    )
