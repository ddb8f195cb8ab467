"""The job that advice is asked for, checked at the border."""

import difflib
import math
from dataclasses import dataclass

from holdfast.contract.errors import InputError
from holdfast.contract.values import UNIT_S, duration_s
from infra.contract.machines import ACCELERATORS, MACHINE_TYPES, MachineType
from infra.placement.prices import reference_machine

ALIASES = {
    "l4": "nvidia-l4",
    "a100": "nvidia-tesla-a100",
    "a100-40": "nvidia-tesla-a100",
    "a100-80": "nvidia-a100-80gb",
    "h100": "nvidia-h100-80gb",
}
MAX_GPUS = 1024
MAX_HOURS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    accelerator: str
    gpus: int
    hours: float
    """Of undisturbed work on all GPUs together."""
    deadline_h: float = math.inf
    checkpoint_h: float = 30 / 3600
    """How long one checkpoint blocks; inf: the job cannot resume."""
    restart_h: float = 5 / 60
    batch: bool = False
    """Work from a queue: an eviction loses a micro-batch, checkpoints do not matter."""

    def __post_init__(self) -> None:
        _above_zero("hours", self.hours)
        _above_zero("checkpoint", self.checkpoint_h)
        if self.hours > MAX_HOURS:
            raise InputError("hours", got=f"{self.hours:g} h", allowed=f"up to {MAX_HOURS}", fix="split the job")
        if not 0 < self.gpus <= MAX_GPUS:
            raise InputError("GPUs", got=self.gpus, allowed=f"1 to {MAX_GPUS}", fix="give how many GPUs run at once")
        if not (self.restart_h >= 0 and math.isfinite(self.restart_h)):
            raise InputError("restart", got=f"{self.restart_h:g} h", allowed="0 or more", fix="as in --restart 5m")
        need_h = self.hours + self.restart_h
        if not self.deadline_h >= need_h:
            raise InputError(
                "impossible deadline",
                got=f"{self.deadline_h:.4g} h",
                allowed=f"at least {need_h:.4g} h: the work and one start, even on-demand",
                fix="move the deadline, or use more GPUs so that --hours shrinks",
            )

    @property
    def resumable(self) -> bool:
        return math.isfinite(self.checkpoint_h)

    @property
    def machine(self) -> MachineType:
        """The largest machine of which a whole number makes up the GPUs; the usual one among equals."""
        usual = reference_machine(self.accelerator)
        fitting = [
            m
            for m in MACHINE_TYPES.values()
            if m.accelerator == self.accelerator and self.gpus % m.gpus == 0 and "mega" not in m.name
        ]
        most = max(m.gpus for m in fitting)
        largest = [m for m in fitting if m.gpus == most]
        return usual if usual in largest else largest[0]

    @property
    def nodes(self) -> int:
        return self.gpus // self.machine.gpus


def accelerator(name: str) -> str:
    """`a100` or the label's value."""
    known = ALIASES.get(name.lower(), name.lower())
    if known in ACCELERATORS:
        return known
    names = sorted({*ALIASES, *ACCELERATORS})
    near = difflib.get_close_matches(name.lower(), names, n=1)
    raise InputError(
        "unknown GPU",
        got=name,
        allowed=", ".join(names),
        fix=f"did you mean {near[0]}?" if near else "take one of these, or add it to infra/contract/machines.py",
    )


def duration(text: str, what: str) -> float:
    """Hours of `30s`, `5m`, `72h`, `3d`; a bare number is hours; `none` is infinite."""
    if text == "none":
        return math.inf
    seconds = duration_s(text)
    if seconds is None:
        seconds = duration_s(f"{text}h")
    if seconds is None:
        raise InputError(what, got=text, allowed="a number with s, m, h or d", fix="as in 30s, 5m, 72h, 3d")
    return seconds / UNIT_S["h"]


def _above_zero(what: str, value: float) -> None:
    if not value > 0:
        raise InputError(what, got=f"{value:g} h", allowed="more than 0", fix=f"give the {what} of the job")
