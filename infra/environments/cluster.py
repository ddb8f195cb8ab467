"""Settings of the control plane: releases, maintenance, freezes.

Read through `Environment`. Each check raises an InputError that names the field.
"""

from dataclasses import dataclass
from datetime import datetime

from holdfast.contract.errors import InputError
from holdfast.contract.values import moment
from infra.environments.checks import between, dns_name, forms, numbers, one_of, require

MIN_EXTENDED_GRACE_VERSION = (1, 35)


@dataclass(frozen=True, kw_only=True, slots=True)
class Freeze:
    """No upgrades between two moments, RFC 3339 in UTC."""

    name: str
    start: str
    end: str

    def __post_init__(self) -> None:
        require(bool(self.name), "cluster.freezes[].name", "''", "a name", "give a reason")
        begin, end = (_moment(f"cluster.freezes[{self.name}].{f}", getattr(self, f)) for f in ("start", "end"))
        require(begin < end, f"cluster.freezes[{self.name}].end", self.end, f"after {self.start}", "exchange the two")
        days = (end - begin).total_seconds() / 86_400
        between(f"cluster.freezes[{self.name}] in days", days, 0.01, 30)

    def is_over(self, now: datetime) -> bool:
        """GKE refuses an exclusion that has ended."""
        return _moment("end", self.end) <= now


def _moment(field: str, got: str) -> datetime:
    at = moment(str(got)) if str(got).endswith("Z") else None
    if at is None:
        raise InputError(field, got=repr(got), allowed="2026-12-24T00:00:00Z", fix="write the moment in UTC")
    return at


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    name: str = ""
    """Of a cluster that was there before (`infra plan --adopt`); empty: NAME_PREFIX-NAME."""
    release_channel: str = "REGULAR"
    min_version: str = ""
    """Oldest control plane accepted, for example 1.35 or 1.35.0-gke.1171000; empty: the channel decides."""
    maintenance_start: str = "2026-01-01T02:00:00Z"
    maintenance_end: str = "2026-01-01T08:00:00Z"
    maintenance_days: str = "FREQ=WEEKLY;BYDAY=SA,SU"
    freezes: tuple[Freeze, ...] = ()
    autoscaling_profile: str = "OPTIMIZE_UTILIZATION"
    """OPTIMIZE_UTILIZATION gives idle GPU nodes back sooner."""
    dns_endpoint_public: bool = False
    """True: every user with IAM access can reach the control plane's DNS endpoint from outside the VPC."""
    deletion_protection: bool = True

    def __post_init__(self) -> None:
        if self.name:
            dns_name("cluster.name", self.name, 40)
        one_of("cluster.release_channel", self.release_channel, ("RAPID", "REGULAR", "STABLE"))
        forms("cluster.", self, "min_version", "maintenance_days")
        start = _moment("cluster.maintenance_start", self.maintenance_start)
        end = _moment("cluster.maintenance_end", self.maintenance_end)
        between("cluster.maintenance_end - maintenance_start in hours", (end - start).total_seconds() / 3600, 4, 24)
        require(len(self.freezes) <= 3, "cluster.freezes", len(self.freezes), "at most 3", "remove one")
        one_of("cluster.autoscaling_profile", self.autoscaling_profile, ("BALANCED", "OPTIMIZE_UTILIZATION"))
        numbers("cluster.", self)

    def may_extend_grace(self) -> bool:
        """Whether every control plane this environment accepts knows the 120 s window."""
        parts = [int(p) for p in self.min_version.split(".")[:2]]
        return tuple(parts) >= MIN_EXTENDED_GRACE_VERSION
