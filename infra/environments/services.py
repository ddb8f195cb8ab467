"""Settings other than machines: network, security, storage, queue, alerts, money.

Read through `Environment`. Each check raises an InputError that names the field.
"""

from dataclasses import dataclass

from infra.environments.checks import between, ipv4_range, matches, require, switch, unique
from infra.environments.runs import Run, check_apart


@dataclass(frozen=True, kw_only=True, slots=True)
class AuthorizedRange:
    """A range that may reach the control plane's private IP endpoint."""

    name: str
    cidr: str

    def __post_init__(self) -> None:
        require(bool(self.name), "network.authorized_ranges[].name", "''", "a name", "describe the range")
        ipv4_range(f"network.authorized_ranges[{self.name}].cidr", self.cidr, 8, 32)


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """Ranges of one VPC. Size them from the node caps: rule `ip-space-nodes` and `ip-space-pods` do the sum."""

    nodes_cidr: str
    pods_cidr: str
    services_cidr: str
    database_cidr: str
    """Reserved for Google's managed services (Cloud SQL) by private service access."""
    max_pods_per_node: int = 32
    """GPU nodes run few pods; 32 takes a /26 of pod addresses each, the default of 110 takes a /24."""
    authorized_ranges: tuple[AuthorizedRange, ...] = ()
    flow_logs: bool = False

    def __post_init__(self) -> None:
        ranges = {
            "nodes_cidr": ipv4_range("network.nodes_cidr", self.nodes_cidr, 16, 27),
            "pods_cidr": ipv4_range("network.pods_cidr", self.pods_cidr, 9, 22),
            "services_cidr": ipv4_range("network.services_cidr", self.services_cidr, 16, 27),
            "database_cidr": ipv4_range("network.database_cidr", self.database_cidr, 16, 24),
        }
        fields = list(ranges)
        for i, first in enumerate(fields):
            for second in fields[i + 1 :]:
                require(
                    not ranges[first].overlaps(ranges[second]),
                    f"network.{second}",
                    f"{ranges[second]}, which overlaps {first} {ranges[first]}",
                    "ranges that do not overlap",
                    f"move {second}",
                )
        require(
            self.max_pods_per_node in (8, 16, 32, 64, 110),
            "network.max_pods_per_node",
            self.max_pods_per_node,
            "8, 16, 32, 64 or 110",
            "GPU nodes need 32",
        )
        unique("network.authorized_ranges", [r.cidr for r in self.authorized_ranges])
        switch("network.flow_logs", self.flow_logs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Security:
    """Protections that cost money or need a newer GKE or another resource; all others are always on."""

    kms_key: str = ""
    """projects/P/locations/L/keyRings/R/cryptoKeys/K for secrets in etcd, disks and buckets; empty: Google's keys."""
    binary_authorization: bool = False
    """Only images that the project's policy admits run. The policy is written too: this environment's own repository,
    `image_patterns`, and GKE's system images."""
    image_patterns: tuple[str, ...] = ()
    """Other images that may run, for example us-docker.pkg.dev/acme/tools/**."""
    image_policy_elsewhere: bool = False
    """True: the project's only image policy is managed elsewhere, so none is written here."""
    rbac_security_group: str = ""
    """gke-security-groups@your-domain, for role bindings by Google group."""
    signed_kernel_modules: bool = False
    """GPU pools load only modules that Google signed. Needs GKE 1.34.1-gke.2364000 or newer."""
    signed_checkpoints: bool = False
    """Training signs commits and joins its gang with a key; batch takes no other commit. Make the Secrets first:
    infra/decisions/0069."""
    secret_manager: bool = False
    """GKE's Secret Manager add-on, by which jobs mount secrets that no manifest holds. Secrets are billed by version."""

    def __post_init__(self) -> None:
        if self.kms_key:
            form = "projects/P/locations/L/keyRings/R/cryptoKeys/K"
            pattern = r"projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+"
            matches("security.kms_key", self.kms_key, pattern, form, "write the key's full resource name")
        if self.rbac_security_group:
            pattern = r"gke-security-groups@[a-zA-Z0-9.-]+\.[a-z]{2,}"
            got, allowed = self.rbac_security_group, "gke-security-groups@your-domain"
            matches("security.rbac_security_group", got, pattern, allowed, "GKE accepts this group name only")
        for pattern in self.image_patterns:
            # Without a repository of somebody's it would admit every image of a registry.
            form = r"[a-z0-9.-]+(/[a-zA-Z0-9._-]+){2,}(/\*\*?|\*|@sha256:[0-9a-f]{64})?"
            allowed = "REGISTRY/PROJECT/REPOSITORY/**, or one image"
            matches("security.image_patterns[]", pattern, form, allowed, "name a repository of yours")
        for field in (
            "image_policy_elsewhere",
            "binary_authorization",
            "signed_kernel_modules",
            "signed_checkpoints",
            "secret_manager",
        ):
            switch(f"security.{field}", getattr(self, field))


@dataclass(frozen=True, kw_only=True, slots=True)
class Storage:
    hierarchical_namespace: bool = False
    """Folders with atomic rename; cannot be changed later, and cannot be versioned."""
    data_soft_delete_days: int = 7
    """Buckets for data and exports; checkpoints have none, since each is needed for hours and would be billed for a week."""
    uncommitted_days: int = 3
    """Attempts that no commit names are deleted by the writer; this bounds what a killed writer leaves."""
    runs: tuple[Run, ...] = ()
    """Each writes below its own prefix only, as an identity of its own. Empty: all training shares one account, which
    may write every checkpoint."""
    allow_destroy: bool = False
    """True: `destroy` may delete buckets with objects, images, and the queue with its backlog."""

    def __post_init__(self) -> None:
        switch("storage.hierarchical_namespace", self.hierarchical_namespace)
        switch("storage.allow_destroy", self.allow_destroy)
        require(
            self.data_soft_delete_days == 0 or 7 <= self.data_soft_delete_days <= 90,
            "storage.data_soft_delete_days",
            self.data_soft_delete_days,
            "0, or 7 to 90",
            "the API accepts no value between 0 and 7 days",
        )
        between("storage.uncommitted_days", self.uncommitted_days, 1, 30)
        check_apart(self.runs, folders=self.hierarchical_namespace)


@dataclass(frozen=True, kw_only=True, slots=True)
class Queue:
    ack_deadline_s: int = 30
    """Short: a killed worker's items come back after it. The worker extends its own leases."""
    retention_days: int = 7
    max_delivery_attempts: int = 100
    """Every preemption counts as a delivery, so with a low number healthy items become dead letters."""
    min_backoff_s: int = 1
    """Also holds back what a draining worker returns, so it stays short."""
    max_backoff_s: int = 60
    lanes: int = 0
    """Batch jobs that can queue on Pub/Sub at the same time: a topic with its subscription serves one job. 0: they queue
    in the results database."""

    def __post_init__(self) -> None:
        between("queue.ack_deadline_s", self.ack_deadline_s, 10, 600)
        between("queue.retention_days", self.retention_days, 1, 7)
        between("queue.max_delivery_attempts", self.max_delivery_attempts, 5, 100)
        between("queue.min_backoff_s", self.min_backoff_s, 1, 600)
        between("queue.lanes", self.lanes, 0, 20)
        between("queue.max_backoff_s", self.max_backoff_s, self.min_backoff_s, 600)


@dataclass(frozen=True, kw_only=True, slots=True)
class Database:
    """Cloud SQL for PostgreSQL, private address only."""

    tier: str = "db-custom-2-7680"
    disk_gib: int = 50
    highly_available: bool = False
    backup_days: int = 14
    deletion_protection: bool = True
    generation: int = 1
    """Raise it to deploy again within a week of a destroy: Google holds the name of a deleted instance that long."""

    def __post_init__(self) -> None:
        pattern = r"db-(custom-\d+-\d+|perf-optimized-N-\d+|f1-micro|g1-small)"
        matches("database.tier", self.tier, pattern, "db-custom-<vCPUs>-<MiB>", "correct it")
        between("database.disk_gib", self.disk_gib, 10, 65_536)
        between("database.backup_days", self.backup_days, 7, 365)
        between("database.generation", self.generation, 1, 999)
        switch("database.highly_available", self.highly_available)
        switch("database.deletion_protection", self.deletion_protection)


@dataclass(frozen=True, kw_only=True, slots=True)
class Alerts:
    """Recipients and thresholds of alerts. In seconds unless the name has another unit."""

    emails: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    """Existing channels: projects/P/notificationChannels/N."""
    readers: tuple[str, ...] = ()
    """Who runs `monitoring report --project`: group:G, user:U or serviceAccount:S. Each may read metrics."""
    modules: tuple[str, ...] = ()
    """Your own alerts: importable modules with `def alerts()`; see monitoring/README.md."""
    runbook_base_url: str = ""
    """Where monitoring/alerting/runbook.md can be read; empty: the address of this checkout's git remote."""
    on_demand_pending_s: int = 600
    spot_pending_s: int = 1_800
    flex_pending_s: int = 14_400
    queue_wait_s: int = 14_400
    """How long Kueue may hold a job that is not stopped."""
    checkpoint_age_s: int = 3_600
    preemptions_per_hour: int = 6
    """Of one pool."""
    goodput_min: float = 0.0
    """Useful share of machine time; 0: the share at which the most expensive Spot pool costs as much as on-demand."""
    batch_oldest_s: int = 86_400
    heartbeat_s: int = 600

    def __post_init__(self) -> None:
        for email in self.emails:
            matches(
                "alerts.emails",
                email,
                r"[^@\s]+@[^@\s]+\.[^@\s]+",
                "an address such as oncall@example.org",
                "correct it",
            )
        for channel in self.channels:
            pattern = r"projects/[^/]+/notificationChannels/\d+"
            matches("alerts.channels", channel, pattern, "projects/P/notificationChannels/N", "write the full name")
        for reader in self.readers:
            form, allowed = r"(group|user|serviceAccount):[^@\s]+@[^@\s]+\.[^@\s]+", "group:ml-platform@example.org"
            matches("alerts.readers", reader, form, allowed, "add the kind before the address")
        unique("alerts.readers", self.readers)
        for module in self.modules:
            form = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
            matches("alerts.modules", module, form, "a module such as acme.alerts", "write its dotted name")
        if self.runbook_base_url:
            matches("alerts.runbook_base_url", self.runbook_base_url, r"https://\S+", "https://...", "correct it")
        for field in (
            "on_demand_pending_s",
            "spot_pending_s",
            "flex_pending_s",
            "queue_wait_s",
            "checkpoint_age_s",
            "batch_oldest_s",
        ):
            between(f"alerts.{field}", getattr(self, field), 60, 30 * 86_400)
        between("alerts.heartbeat_s", self.heartbeat_s, 120, 86_400)
        between("alerts.preemptions_per_hour", self.preemptions_per_hour, 1, 10_000)
        if self.goodput_min != 0.0:
            between("alerts.goodput_min", self.goodput_min, 0.01, 0.99)
