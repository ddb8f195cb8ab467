"""The job of a question to the planner, checked at the border."""

import difflib
import math
import re
from dataclasses import dataclass

from holdfast.cost.prices import reference_machine
from holdfast.support import node_range
from holdfast.support.errors import InputError
from holdfast.support.values import between, duration_s
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.machines import ACCELERATORS, MACHINE_TYPES, MachineType, sold

HOUR_S = 3_600.0
MAX_GPUS = 1024
MAX_HOURS = 10_000

# What people type, reduced to letters and digits: "NVIDIA A100 (80 GB)" and "a100-80gb" are one
# name.
_NAMES = {
    "nvidia-l4": "l4 l424 g2",
    "nvidia-tesla-a100": "a100 a10040 a2highgpu",
    "nvidia-a100-80gb": "a10080 a2ultragpu",
    "nvidia-h100-80gb": "h100 h10080 a3highgpu",
    "nvidia-h200-141gb": "h200 h200141 a3ultragpu",
    "nvidia-b200": "b200 a4highgpu",
}
ALIASES = {typed: name for name, all_typed in _NAMES.items() for typed in all_typed.split()}
_NOISE = re.compile(r"nvidia|tesla|gpu$|sxm\d?|pcie|gi?b(?!\d)|[^a-z0-9]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    accelerator: str
    gpus: int
    hours: float
    """Of undisturbed work on all GPUs together, by the clock."""
    deadline_h: float = math.inf
    checkpoint_h: float = 30 / HOUR_S
    """How long one checkpoint blocks; inf: the job cannot resume."""
    restart_h: float = 5 / 60
    batch: bool = False
    """Work from a queue: an eviction loses a micro-batch, checkpoints do not matter."""
    min_nodes: int = 0
    """The fewest nodes with which an elastic gang goes on; 0: a rigid one, which stops with any of
    its nodes.
    """
    max_nodes: int = 0
    """Of an elastic gang, all with the same number of GPUs."""
    sharded: int = 0
    """Nodes of a gang whose other nodes stay for a lost one, with copies of their shards in memory;
    0: no such gang.
    """
    offered: frozenset[str] = frozenset()
    """The machine types that may be used, as those of a platform's pools; empty: any."""

    def __post_init__(self) -> None:
        between(
            "hours",
            self.hours,
            1e-3,
            MAX_HOURS,
            fix="give the hours of work by the clock, as in --hours 40h",
        )
        between("GPUs", self.gpus, 1, MAX_GPUS, fix="give how many GPUs run at once")
        between("restart", self.restart_h, 0, MAX_HOURS, fix="as in --restart 5m")
        if self.elastic:
            self._check_elastic()
        if not self.checkpoint_h > 0:
            raise InputError(
                "checkpoint",
                got=f"{self.checkpoint_h:g} h",
                allowed="more than 0",
                fix="as in 30s",
            )
        # Else no option could name a machine, or say why it is refused.
        if not any(self.machine_for(capacity) for capacity in Capacity):
            sizes = sorted(
                {m.gpus for m in MACHINE_TYPES.values() if m.accelerator == self.accelerator}
            )
            allowed = (
                ", ".join(sorted(self.offered)) or f"multiples of {' or '.join(map(str, sizes))}"
            )
            raise InputError(
                f"no machine with {self.accelerator} makes up {self.gpus} GPUs",
                got=self.gpus,
                allowed=allowed,
                fix="take another number of GPUs, or another platform",
            )
        need_h = self.hours + self.restart_h
        if not self.deadline_h >= need_h:
            raise InputError(
                "impossible deadline",
                got=f"{self.deadline_h:.4g} h",
                allowed=f"at least {need_h:.4g} h: the work and one start, even on-demand",
                fix="move the deadline, or use more GPUs so that --hours shrinks",
            )

    def _check_elastic(self) -> None:
        if self.batch or not self.resumable:
            raise InputError(
                "nodes as a range",
                got="a queue" if self.batch else "a job that cannot resume",
                allowed="a training that resumes",
                fix="give one number of nodes",
            )
        if not 1 <= self.min_nodes < self.max_nodes or self.gpus % self.max_nodes:
            raise InputError(
                "nodes of an elastic gang",
                got=f"{self.min_nodes}..{self.max_nodes} for {self.gpus} GPUs",
                allowed="MIN..MAX with MIN below MAX, and as many GPUs on each node",
                fix="as in --gpus 8 --nodes 4..8",
            )

    @property
    def elastic(self) -> bool:
        return bool(self.max_nodes)

    @property
    def resumable(self) -> bool:
        return math.isfinite(self.checkpoint_h)

    def machine_for(self, capacity: Capacity) -> MachineType | None:
        """Of the machines sold so of which a whole number makes up the GPUs: training takes the
        largest, a queue the one with the least host for a GPU; the usual one among equals. None
        where none is sold.
        """
        usual = reference_machine(self.accelerator)
        fitting = [
            m
            for m in MACHINE_TYPES.values()
            if m.accelerator == self.accelerator and self.gpus % m.gpus == 0 and sold(m, capacity)
            if not self.offered or m.name in self.offered
            if m.gpus * (self.max_nodes or self.sharded) in (0, self.gpus)
            # Its GPUs sit on two boards with less memory each; no row of the price table fits.
            if "mega" not in m.name
        ]
        # Items of a queue do not talk, so a larger machine only adds the price of its cores and
        # memory. Which of them the predictor needs, only the platform knows: without one it is the
        # usual machine.
        if self.batch and (self.offered or usual not in fitting):
            return min(fitting, key=_host_share, default=None)
        # A gang talks within a machine for free.
        size = (min if self.batch else max)((m.gpus for m in fitting), default=0)
        equal = [m for m in fitting if m.gpus == size]
        return usual if usual in equal else next(iter(equal), None)

    @property
    def machine(self) -> MachineType:
        """Of the capacity that sells most kinds; every machine is sold on Spot."""
        found = (
            self.machine_for(c) for c in (Capacity.SPOT, Capacity.FLEX_START, Capacity.ON_DEMAND)
        )
        return next(m for m in found if m is not None)

    @property
    def nodes(self) -> int:
        return self.gpus // self.machine.gpus


def _host_share(machine: MachineType) -> tuple[float, float, bool, int]:
    """Cores and memory for each GPU, which the price follows; then the usual one, then the
    smallest.
    """
    gpus = machine.gpus
    return (
        machine.vcpus / gpus,
        machine.memory_gib / gpus,
        machine != reference_machine(machine.accelerator),
        gpus,
    )


def accelerator(name: str) -> str:
    """The label's value of `a100`, `A100-80GB`, `NVIDIA H100 80GB HBM3` or itself."""
    if name.lower() in ACCELERATORS:
        return name.lower()
    typed = _NOISE.sub("", re.sub(r"hbm\d?e?", "", name.lower()))
    known = ALIASES.get(typed)
    if known:
        return known
    # Short names too: the label of a GPU is far from what people type, and no near match would be
    # found.
    names = sorted(
        {*(a.removeprefix("nvidia-").removeprefix("tesla-") for a in ACCELERATORS), *ACCELERATORS}
    )
    near = difflib.get_close_matches(name.lower(), [*names, "h100"], n=1)
    fix = f"did you mean {near[0]}?" if near else "take one of these"
    raise InputError(
        "unknown GPU",
        got=name,
        allowed=", ".join(names),
        fix=fix,
    )


def duration_h(text: str, what: str) -> float:
    """Hours of `30s`, `5m`, `72h`, `3d`; `none` is infinite. A number without a unit is refused."""
    if text.strip() == "none":
        return math.inf
    seconds = duration_s(text)
    if seconds is None:
        bare = text.strip() if re.fullmatch(r"\d+(\.\d+)?", text.strip()) else ""
        fix = f"did you mean {bare}s, {bare}m or {bare}h?" if bare else "as in 30s, 5m, 72h, 3d"
        raise InputError(
            what,
            got=text,
            allowed="a number with s, m, h or d",
            fix=fix,
        )
    return seconds / HOUR_S


def clock_hours(text: str) -> float:
    """A bare number is hours: the option's name says so."""
    if not text:
        allowed = "--hours by the clock"
        fix = "as in --hours 40h"
        raise InputError(
            "how long the job works",
            got="nothing",
            allowed=allowed,
            fix=fix,
        )
    if re.fullmatch(r"\d+(\.\d+)?", text.strip()):
        return float(text)
    return duration_h(text, "hours")


def typed(
    gpu: str,
    gpus: int,
    hours: str,
    deadline: str,
    nodes: str,
    checkpoint: str,
    offered: frozenset[str],
) -> Job:
    """The job of the options of `place`. InputError names the option."""
    least, most = node_range.parse(nodes, MAX_GPUS) if nodes else (0, 0)
    batch = checkpoint == "queue"
    return Job(
        accelerator=accelerator(gpu),
        gpus=gpus,
        hours=clock_hours(hours),
        deadline_h=duration_h(deadline, "deadline"),
        checkpoint_h=30 / HOUR_S if batch else duration_h(checkpoint, "checkpoint"),
        batch=batch,
        min_nodes=least,
        max_nodes=most,
        offered=offered,
    )
