"""The schema of an environment: one frozen literal that a fork edits, complete, without
inheritance.

A value that passes here has the right form; whether the values fit each other on GKE is judged by
infra.rules.
"""

from dataclasses import dataclass, replace

from holdfast.vocabulary import roles
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW, EXTENDED_WINDOW, ShutdownWindow
from holdfast.vocabulary.pools import Pool, Role
from infra.contract import names
from infra.environments.capacity import (
    AcceleratorCap,
    AutoProvisioning,
    NodeGroup,
    Quota,
    Reservation,
)
from infra.environments.checks import (
    PLACEHOLDER,
    dns_name,
    forms,
    matches,
    numbers,
    placeholders,
    require,
    unique,
)
from infra.environments.cluster import Cluster
from infra.environments.runs import Run
from infra.environments.services import (
    Alerts,
    AuthorizedRange,
    Budget,
    Database,
    Delivery,
    ExistingNetwork,
    Network,
    Queue,
    Security,
    Storage,
)
from infra.environments.serving import Serving
from infra.environments.teams import Team
from infra.environments.teams import check as check_teams

__all__ = [
    "PLACEHOLDER",
    "AcceleratorCap",
    "Alerts",
    "AuthorizedRange",
    "AutoProvisioning",
    "Budget",
    "Cluster",
    "Database",
    "Delivery",
    "Environment",
    "ExistingNetwork",
    "Network",
    "NodeGroup",
    "Queue",
    "Quota",
    "Reservation",
    "Run",
    "Security",
    "Serving",
    "Storage",
    "Team",
    "placeholders",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    name: str
    """Part of every object's name; the module's name."""
    project_id: str
    """CHANGE-ME may be planned, not deployed."""
    project_number: str
    """Names Pub/Sub's service agent, which moves messages to the dead-letter topic. `gcloud
    projects describe`.
    """
    region: str
    zones: tuple[str, ...]
    """Zones of nodes. Use zones that offer the accelerators of the groups."""
    name_prefix: str = names.PROVISIONING_PREFIX
    state_bucket: str = ""
    """Bucket of Terraform's state, created by `make bootstrap`; empty: state is in out/state, for a
    trial.
    """
    spot_grace_s: int = 30
    """30, or 120 where cluster.min_version is 1.35 or newer: then a pod has 105 s instead of 15 s.
    """
    network: Network
    cluster: Cluster
    groups: tuple[NodeGroup, ...]
    auto_provisioning: AutoProvisioning
    quotas: tuple[Quota, ...] = ()
    """Empty: Kueue may use all GPUs of the groups and limits."""
    security: Security
    storage: Storage
    queue: Queue
    database: Database | None = None
    """None: no Cloud SQL; batch results then need your own database."""
    serving: Serving | None = None
    """None: no online inference is rendered; its pool is then for your own servers."""
    alerts: Alerts
    budget: Budget | None = None
    teams: tuple[Team, ...] = ()
    """Those that share the cluster with the default team."""
    delivery: Delivery | None = None
    """None: only people deploy. See infra/docs/how-to/upgrading.md."""
    labels: tuple[tuple[str, str], ...] = ()
    """Set on every resource that supports labels, for billing."""
    enable_apis: bool = True
    """False where the organisation enables APIs centrally."""
    production: bool = False
    """True: the rules require every protection, including those that cost money or limit access."""
    allow_drills: bool = False
    """True: `holdfast drill` may evict pods and delete VMs in this cluster, after confirmation."""

    def __post_init__(self) -> None:
        dns_name("name", self.name, 12)
        forms("", self, "project_id", "project_number", "region", "state_bucket")
        numbers("", self)
        dns_name("name_prefix", self.name_prefix, 20)
        self._check_zones()
        if self.network.existing:
            self.network.existing.check(self.project, self.region)
        require(
            self.spot_grace_s in (30, 120),
            "spot_grace_s",
            self.spot_grace_s,
            "30 or 120",
            "write 30",
        )
        for key, value in self.labels:
            matches(
                f"labels[{key}]",
                key,
                r"[a-z][-_a-z0-9]{0,62}",
                "a-z, 0-9, '_', '-'",
                "correct the key",
            )
            matches(
                f"labels[{key}]",
                value,
                r"[-_a-z0-9]{0,63}",
                "a-z, 0-9, '_', '-'",
                "correct the value",
            )
        self._check_groups()
        self._check_names()
        check_teams(
            self.teams,
            runs=self.storage.runs,
            gpus=self._lent(),
            groups=bool(self.security.rbac_security_group),
            budget=self.budget is not None,
        )

    def _check_zones(self) -> None:
        require(bool(self.zones), "zones", "()", f"zones of {self.region}", "add at least one")
        unique("zones", self.zones)
        for zone in self.zones:
            ok = zone.rpartition("-")[0] == self.region
            require(
                ok, "zones", zone, f"zones of {self.region}", "take zones of the cluster's region"
            )

    def _check_groups(self) -> None:
        unique("groups[].name", [g.name for g in self.groups])
        unique("groups: pool names", [p.name for p in self.pools()])
        for pool in self.pools():
            dns_name(f"groups[{pool.pool_class}]: pool name", pool.name, 40)
        roles = {g.role for g in self.groups}
        allowed = "one group of role system"
        fix = "add the on-demand system group"
        require(Role.SYSTEM in roles, "groups", sorted(roles), allowed, fix)
        sources = {g.name for g in self.groups} | {
            c.accelerator for c in self.auto_provisioning.accelerators
        }
        for quota in self.quotas:
            field = f"quotas[{quota.source}].source"
            fix = "name a group, or an accelerator with a cap"
            require(quota.source in sources, field, quota.source, ", ".join(sorted(sources)), fix)
        unique("quotas[].source", [q.source for q in self.quotas])

    def _lent(self) -> dict[str, int]:
        """Accelerator -> GPUs of the largest of its sources."""
        sources = [(group.accelerator, group.name) for group in self.groups if group.accelerator]
        sources += [
            (cap.accelerator, cap.accelerator) for cap in self.auto_provisioning.accelerators
        ]
        gpus = [(accelerator, self.quota_gpus(source)) for accelerator, source in sources]
        return {key: max(most for each, most in gpus if each == key) for key, _ in gpus}

    def _check_names(self) -> None:
        """Too long after prefixing fails here, not in the middle of an apply."""
        for role in roles.ROLES:
            self.account_id(role)
        for purpose in names.BUCKETS:
            self.bucket(purpose)

    # -- What others ask. A name is in use in deployed projects: what is computed otherwise is
    # replaced. --

    @property
    def stem(self) -> str:
        """Of most names in the cloud."""
        return f"{self.name_prefix}-{self.name}"

    @property
    def project(self) -> str:
        """The project id in names and plans; a placeholder in a spelling that the API would accept."""
        return self.project_id.lower()

    @property
    def subnet_name(self) -> str:
        return f"{self.stem}-nodes"

    @property
    def network_path(self) -> str:
        """projects/P/global/networks/NAME"""
        existing = self.network.existing
        if existing:
            return existing.network
        return f"projects/{self.project}/global/networks/{self.stem}"

    @property
    def subnet_path(self) -> str:
        """projects/P/regions/R/subnetworks/NAME"""
        own = f"projects/{self.project}/regions/{self.region}/subnetworks/{self.subnet_name}"
        return self.network.existing.subnet if self.network.existing else own

    @property
    def database_name(self) -> str:
        generation = self.database.generation if self.database else 1
        return f"{self.stem}-results" + (f"-{generation}" if generation > 1 else "")

    @property
    def database_connection(self) -> str:
        """What the Cloud SQL Auth Proxy connects to."""
        return f"{self.project}:{self.region}:{self.database_name}"

    @property
    def database_roles(self) -> tuple[str, ...]:
        """Whose service accounts log in to the results database."""
        return *roles.DATABASE_ROLES, *(team.role for team in self.teams)

    def database_user(self, role: str) -> str:
        """PostgreSQL's name for the service account of a role."""
        return self.service_account_email(role).removesuffix(".gserviceaccount.com")

    @property
    def image_registry(self) -> str:
        """Prefix of image names."""
        return f"{self.region}-docker.pkg.dev/{self.project}/{self.stem}"

    @property
    def image_patterns(self) -> tuple[str, ...] | None:
        """Which images the policy admits; None where no policy is written here."""
        security = self.security
        written = security.binary_authorization and not security.image_policy_elsewhere
        if written:
            return (f"{self.image_registry}/**", *security.image_patterns)
        return None

    @property
    def workload_pool(self) -> str:
        return f"{self.project}.svc.id.goog"

    @property
    def identity_pool(self) -> str:
        """Of the workflows that deploy. A deleted one keeps its name for 30 days."""
        return names.checked(f"{self.stem}-ci", limit=32, what="workload identity pool id")

    @property
    def identity_pools(self) -> str:
        return f"projects/{self.project_number.lower()}/locations/global/workloadIdentityPools"

    @property
    def workload_identities(self) -> str:
        """Of Kubernetes accounts, as the policies of Google Cloud name them."""
        return f"iam.googleapis.com/{self.identity_pools}/{self.workload_pool}"

    @property
    def cluster_name(self) -> str:
        return self.cluster.name or self.stem

    @property
    def spot_window(self) -> ShutdownWindow:
        if self.spot_grace_s == EXTENDED_WINDOW.total_s:
            return EXTENDED_WINDOW
        return DEFAULT_WINDOW

    def unprotected(self) -> "Environment":
        """The same without what stops a destroy."""
        return replace(
            self,
            production=False,
            cluster=replace(self.cluster, deletion_protection=False),
            database=replace(self.database, deletion_protection=False) if self.database else None,
            storage=replace(self.storage, allow_destroy=True),
        )

    def of_run(self, run: str) -> "Environment":
        """The same, labelled as made by one run of a proof."""
        return replace(self, labels=(*self.labels, (names.LABEL_RUN, run)))

    def pools(self) -> tuple[Pool, ...]:
        return tuple(pool for group in self.groups for pool in group.pools(self.spot_window))

    def pool(self, name: str) -> Pool:
        return next(pool for pool in self.pools() if pool.name == name)

    def bucket(self, purpose: str) -> str:
        """`purpose`: checkpoints, data. Names of buckets are global, so the project is part of
        them.
        """
        return names.checked(f"{self.project}-{self.stem}-{purpose}", limit=63, what="bucket name")

    def topic(self, purpose: str) -> str:
        """`purpose`: work, work-2, ..., dead. The subscription has the same name."""
        return f"{self.stem}-{purpose}"

    @property
    def lanes(self) -> list[str]:
        """Purposes of the work topics: one for each batch job that queues on Pub/Sub at the same
        time.
        """
        return ["work", *(f"work-{n}" for n in range(2, self.queue.lanes + 1))][: self.queue.lanes]

    @property
    def topic_purposes(self) -> list[str]:
        """Of all topics: the lanes', and that of dead letters. None where jobs queue in the
        database.
        """
        return [*self.lanes, "dead"] if self.lanes else []

    def account_id(self, role: str) -> str:
        return names.account_id(self.stem, role)

    def service_account_email(self, role: str) -> str:
        return f"{self.account_id(role)}@{self.project}.iam.gserviceaccount.com"

    def member(self, role: str) -> str:
        """The service account of a role in a policy."""
        return f"serviceAccount:{self.service_account_email(role)}"

    def all_labels(self) -> dict[str, str]:
        return {"platform": self.name_prefix, "environment": self.name} | dict(self.labels)

    def quota_gpus(self, source: str) -> int:
        """GPUs that Kueue may lend from a group or from auto-provisioning of an accelerator."""
        stated = next((q.gpus for q in self.quotas if q.source == source), None)
        return self.capacity_gpus(source) if stated is None else stated

    def capacity_gpus(self, source: str) -> int:
        """GPUs that a group, or auto-provisioning of an accelerator, can give at most.

        The cap counts the GPUs of the groups too, so auto-provisioning has what they leave.
        """
        pools = [p for p in self.pools() if p.pool_class == source]
        if pools:
            return sum(p.max_nodes * p.gpus_per_node for p in pools)
        taken = sum(p.max_nodes * p.gpus_per_node for p in self.pools() if p.accelerator == source)
        return max(0, self.auto_provisioning.cap(source) - taken)
