"""Settings of the control plane: releases and maintenance.

Read through `Environment`. Each check raises an InputError that names the field.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from holdfast.support.errors import InputError
from holdfast.support.values import moment
from infra.environments.checks import (
    between,
    dns_name,
    forms,
    numbers,
    require,
    require_choice,
    unique,
)

MIN_EXTENDED_GRACE_VERSION = (1, 35)
MIN_SIGNED_MODULES_VERSION = (1, 34)
DAY_S = 86_400
# GKE documentation, limits of maintenance exclusions.
LONGEST_FREEZE_DAYS = {
    "NO_UPGRADES": 30,
    "NO_MINOR_UPGRADES": 180,
    "NO_MINOR_OR_NODE_UPGRADES": 180,
}
MAX_FREEZES = 20
MAX_FULL_FREEZES = 3
WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")


def _moment(field: str, got: str) -> datetime:
    parsed = moment(str(got)) if str(got).endswith("Z") else None
    if parsed is None:
        raise InputError(
            field,
            got=repr(got),
            allowed="2026-12-24T00:00:00Z",
            fix="write the moment in UTC",
        )
    return parsed


@dataclass(frozen=True, kw_only=True, slots=True)
class Freeze:
    """A time in which GKE upgrades nothing of `scope`: a maintenance exclusion."""

    name: str
    starts: str
    """A moment in UTC: 2026-12-01T00:00:00Z."""
    ends: str
    scope: str = "NO_MINOR_OR_NODE_UPGRADES"
    """The default keeps nodes as they are, so that a month of training is not drained, but still
    patches the control plane. NO_UPGRADES stops patches too, for 30 days at most.
    """

    def __post_init__(self) -> None:
        field = "cluster.freezes[]"
        dns_name(f"{field}.name", self.name, 63)
        require_choice(f"{field}.scope", self.scope, tuple(LONGEST_FREEZE_DAYS))
        start = _moment(f"{field}.starts", self.starts)
        end = _moment(f"{field}.ends", self.ends)
        days = (end - start).total_seconds() / DAY_S
        between(f"{field}.ends - starts in days", days, 0.01, LONGEST_FREEZE_DAYS[self.scope])


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    name: str = ""
    """The name of an adopted cluster (`infra plan --adopt`); empty: NAME_PREFIX-NAME."""
    release_channel: str = "REGULAR"
    min_version: str = ""
    """Oldest control plane accepted, for example 1.35 or 1.35.0-gke.1171000; empty: the channel
    decides.
    """
    maintenance_start: str = "2026-01-01T02:00:00Z"
    maintenance_end: str = "2026-01-01T08:00:00Z"
    maintenance_days: str = "FREQ=WEEKLY;BYDAY=SA,SU"
    freezes: tuple[Freeze, ...] = ()
    """Times without upgrades, for a long training or a launch."""
    dns_endpoint_public: bool = False
    """True: users with IAM access can reach the control plane's DNS endpoint from outside the VPC.
    """
    deletion_protection: bool = True

    def __post_init__(self) -> None:
        if self.name:
            dns_name("cluster.name", self.name, 40)
        require_choice(
            "cluster.release_channel", self.release_channel, ("RAPID", "REGULAR", "STABLE")
        )
        forms("cluster.", self, "min_version", "maintenance_days")
        start = _moment("cluster.maintenance_start", self.maintenance_start)
        end = _moment("cluster.maintenance_end", self.maintenance_end)
        between(
            "cluster.maintenance_end - maintenance_start in hours",
            (end - start).total_seconds() / 3600,
            4,
            24,
        )
        numbers("cluster.", self)
        self._check_freezes()

    def _check_freezes(self) -> None:
        unique("cluster.freezes[].name", [freeze.name for freeze in self.freezes])
        full = sum(freeze.scope == "NO_UPGRADES" for freeze in self.freezes)
        require(
            len(self.freezes) <= MAX_FREEZES and full <= MAX_FULL_FREEZES,
            "cluster.freezes",
            f"{len(self.freezes)}, {full} of them NO_UPGRADES",
            f"at most {MAX_FREEZES}, and {MAX_FULL_FREEZES} of NO_UPGRADES",
            "remove those that have ended",
        )

    def least_maintenance_h(self) -> float:
        """Return the hours of its windows in the worst 32 days: four weeks and four more days."""
        start = _moment("maintenance", self.maintenance_start)
        end = _moment("maintenance", self.maintenance_end)
        rule = self.maintenance_days
        days = rule.partition("BYDAY=")[2].split(",") if "BYDAY" in rule else WEEKDAYS
        fewest = min(_count_days(days, first) for first in range(len(WEEKDAYS)))
        windows = 4 * len(days) + fewest
        window_s = (end - start).total_seconds()
        return windows * window_s / 3600

    def oldest_version(self) -> tuple[int, ...]:
        """Return the oldest accepted minor release, as (1, 35); empty if the channel decides."""
        parts = self.min_version.split(".")[:2] if self.min_version else ()
        return tuple(int(part) for part in parts)


def _count_days(days: Sequence[str], first: int) -> int:
    """Count those of `days` that are in four days from the weekday number `first`."""
    two_weeks = [*WEEKDAYS, *WEEKDAYS]
    four_days = two_weeks[first : first + 4]
    return len(set(days).intersection(four_days))
