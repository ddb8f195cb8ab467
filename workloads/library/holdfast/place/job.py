"""The job of a question to the planner, checked at the border."""

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.cost.prices import Quote, reference_machine
from holdfast.support import node_range
from holdfast.support.errors import InputError
from holdfast.support.values import between, duration
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.machines import (
    ACCELERATORS,
    MACHINE_TYPES,
    MachineType,
    find_refusal,
    is_sold,
)

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
    "nvidia-rtx-pro-6000": "rtxpro6000 rtxpro600096 rtx6000 g4",
    "nvidia-tesla-t4": "t4 t416 n1",
}

_NOISE = re.compile(r"nvidia|tesla|gpu$|sxm\d?|pcie|gi?b(?!\d)|[^a-z0-9]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """The machines that a platform has for a job on one capacity."""

    machine: MachineType
    quote: Quote | None
    """Price of all machines of the job an hour; None without a price."""
    refused: str = ""
    """The reason for which the job cannot take it. Its figures are then for comparison."""
    bound: str = ""
    """The reason for which the mover cannot take the job from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    accelerator: str
    gpus: int
    hours: float
    """Hours of undisturbed work on all GPUs together, by the clock."""
    deadline_h: float = math.inf
    checkpoint_h: float = 30 / HOUR_S
    """Time for which one checkpoint blocks; inf: the job cannot resume."""
    restart_h: float = 5 / 60
    batch: bool = False
    """The work comes from a queue: an eviction loses a micro-batch, checkpoints do not matter."""
    min_nodes: int = 0
    """The fewest nodes with which an elastic gang continues; 0: a rigid gang."""
    max_nodes: int = 0
    """Nodes of an elastic gang, all with the same number of GPUs; 0: a rigid gang."""
    sharded: int = 0
    """Nodes of a gang that keep copies of each other's shards in memory; 0: no such gang.

    The other nodes stay when one is lost.
    """
    limit_h: float = math.inf
    """The hours from its last start after which the job is stopped."""
    pods: int = 0
    """The pods of a job on a platform; 0: as many as machines of the price list are needed."""
    offers: Mapping[Capacity, Offered] = field(default_factory=dict)
    """The offers of a platform by capacity of the price list; empty: all that Google sells."""

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
        self._check_machines()
        need_h = self.hours + self.restart_h
        if not self.deadline_h >= need_h:
            raise InputError(
                "impossible deadline",
                got=f"{self.deadline_h:.4g} h",
                allowed=f"at least {need_h:.4g} h: the work and one start, even on-demand",
                fix="move the deadline, or use more GPUs so that --hours shrinks",
            )

    def _check_machines(self) -> None:
        # Without a machine no option could name one, or say why it is refused.
        if any(self.machine_for(capacity) for capacity in Capacity):
            return
        machines = MACHINE_TYPES.values()
        sizes = {m.gpus for m in machines if m.accelerator == self.accelerator}
        counts = " or ".join(str(size) for size in sorted(sizes))
        raise InputError(
            f"no machine with {self.accelerator} makes up {self.gpus} GPUs",
            got=self.gpus,
            allowed=f"multiples of {counts}",
            fix="take another number of GPUs",
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
        """Return the machine to use, of those whose number of GPUs divides that of the job.

        Training takes the largest, a queue the one with the least host for a GPU; among equals the
        usual machine is taken. Returns None if none is sold on this capacity.
        """
        if self.offers:
            offered = self.offers.get(capacity)
            return offered.machine if offered else None
        usual = reference_machine(self.accelerator)
        fitting: list[MachineType] = []
        for machine in MACHINE_TYPES.values():
            if is_sold(machine, capacity) and self._fits(machine):
                fitting.append(machine)
        # Items of a queue do not talk, so a larger machine only adds the price of its cores and
        # memory. Which of them the predictor needs, only the platform knows: without one it is the
        # usual machine.
        if self.batch and usual not in fitting:
            return min(fitting, key=_host_share, default=None)
        # A gang talks within a machine for free.
        sizes = [machine.gpus for machine in fitting]
        size = min(sizes, default=0) if self.batch else max(sizes, default=0)
        equals = [machine for machine in fitting if machine.gpus == size]
        return usual if usual in equals else next(iter(equals), None)

    def _fits(self, machine: MachineType) -> bool:
        if machine.accelerator != self.accelerator or self.gpus % machine.gpus:
            return False
        # Its GPUs sit on two boards with less memory each; no row of the price table fits.
        if "mega" in machine.name:
            return False
        fixed_nodes = self.max_nodes or self.sharded
        return not fixed_nodes or machine.gpus * fixed_nodes == self.gpus

    @property
    def machine(self) -> MachineType:
        """The machine of the capacity that sells most kinds; every machine is sold on Spot."""
        capacities = (Capacity.SPOT, Capacity.FLEX_START, Capacity.ON_DEMAND)
        machines = (self.machine_for(capacity) for capacity in capacities)
        return next(machine for machine in machines if machine is not None)

    @property
    def nodes(self) -> int:
        return self.pods or self.gpus // self.machine.gpus


def _host_share(machine: MachineType) -> tuple[float, float, bool, int]:
    """Return a sort key: cores and memory for each GPU, which the price follows.

    Among equals the usual machine comes first, then the smallest.
    """
    gpus = machine.gpus
    return (
        machine.vcpus / gpus,
        machine.memory_gib / gpus,
        machine != reference_machine(machine.accelerator),
        gpus,
    )


def parse_accelerator(name: str) -> str:
    """Return the label's value of `a100`, `A100-80GB`, `NVIDIA H100 80GB HBM3` or itself.

    Raises InputError if the name is of no known GPU.
    """
    if name.lower() in ACCELERATORS:
        return name.lower()
    without_memory = re.sub(r"hbm\d?e?", "", name.lower())
    alias = _NOISE.sub("", without_memory)
    for accelerator, aliases in _NAMES.items():
        if alias in aliases.split():
            return accelerator
    refused = find_refusal(name)
    if refused:
        raise InputError(
            "GPU that this platform does not make",
            got=name,
            allowed=f"no {refused.name} here: {refused.reason}",
            fix=f"use {refused.instead}",
        )
    # Short names too: the label of a GPU is far from what people type, and no near match would be
    # found.
    short_names = {a.removeprefix("nvidia-").removeprefix("tesla-") for a in ACCELERATORS}
    names = sorted({*short_names, *ACCELERATORS})
    match = difflib.get_close_matches(name.lower(), [*names, "h100"], n=1)
    fix = f"did you mean {match[0]}?" if match else "take one of these"
    raise InputError(
        "unknown GPU",
        got=name,
        allowed=", ".join(names),
        fix=fix,
    )


_NUMBER = re.compile(r"\d+(\.\d+)?")


def parse_duration(text: str, option: str) -> float:
    """Return the hours of `30s`, `5m`, `72h` or `3d`; `none` is infinite.

    Raises InputError, which names the option, for a number without a unit.
    """
    text = text.strip()
    if text == "none":
        return math.inf
    return duration(option, text, least_s=0.0) / HOUR_S


def parse_hours(text: str) -> float:
    """Return the hours of work; a bare number is hours, as the option's name says."""
    if not text:
        raise InputError(
            "how long the job works",
            got="nothing",
            allowed="--hours by the clock",
            fix="as in --hours 40h",
        )
    if _NUMBER.fullmatch(text.strip()):
        return float(text)
    return parse_duration(text, "hours")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """The options of a question, as their user types them."""

    gpu: str
    gpus: int
    hours: str
    deadline: str
    nodes: str
    checkpoint: str


def parse_job(options: JobOptions) -> Job:
    """Return the job of the options of `place`. Raises InputError, which names the option."""
    nodes = node_range.parse(options.nodes, MAX_GPUS) if options.nodes else (0, 0)
    min_nodes, max_nodes = nodes
    batch = options.checkpoint == "queue"
    return Job(
        accelerator=parse_accelerator(options.gpu),
        gpus=options.gpus,
        hours=parse_hours(options.hours),
        deadline_h=parse_duration(options.deadline, "deadline"),
        checkpoint_h=30 / HOUR_S if batch else parse_duration(options.checkpoint, "checkpoint"),
        batch=batch,
        min_nodes=min_nodes,
        max_nodes=max_nodes,
    )
