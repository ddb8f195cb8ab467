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
    egress_targets,
    forms,
    matches,
    numbers,
    placeholders,
    require,
    unique,
)
from infra.environments.cluster import Cluster, Freeze
from infra.environments.network import AuthorizedRange, ExistingNetwork, Network
from infra.environments.runs import Run
from infra.environments.services import (
    Alerts,
    Budget,
    Database,
    Delivery,
    Queue,
    Registry,
    Security,
    Serving,
    Storage,
)
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
    "Freeze",
    "Network",
    "NodeGroup",
    "Queue",
    "Quota",
    "Registry",
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
    """30, or 120 if cluster.min_version is 1.35 or newer: then a pod has 105 s instead of 15 s."""
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
    """Teams that share the cluster with the default team."""
    delivery: Delivery | None = None
    """None: only people deploy. See infra/docs/how-to/upgrading.md."""
    egress: tuple[str, ...] = ()
    """Hosts that pods of jobs and servers may reach on port 443, as huggingface.co or *.wandb.ai
    (one level of names), and ranges of addresses. Empty: Google's APIs only. Names use GKE's
    FQDNNetworkPolicy: infra/docs/how-to/egress.md.
    """
    labels: tuple[tuple[str, str], ...] = ()
    """Set on every resource that supports labels, for billing."""
    enable_apis: bool = True
    """False if the organization enables APIs centrally."""
    production: bool = False
    """True: the rules require every protection, including those that cost money or limit access."""
    allow_drills: bool = False
    """True: `holdfast drill` may evict pods and delete VMs in this cluster, after confirmation."""

    def __post_init__(self) -> None:
        dns_name("name", self.name, 12)
        forms("", self, "project_id", "project_number", "region", "state_bucket")
        egress_targets("egress", self.egress)
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
            field = f"labels[{key}]"
            allowed = "a-z, 0-9, '_', '-'"
            matches(field, key, r"[a-z][-_a-z0-9]{0,62}", allowed, "correct the key")
            matches(field, value, r"[-_a-z0-9]{0,63}", allowed, "correct the value")
        self._check_groups()
        self._check_names()
        check_teams(
            self.teams,
            runs=self.storage.runs,
            gpus=self._largest_quotas(),
            groups=bool(self.security.rbac_security_group),
            budget=self.budget is not None,
        )

    def _check_zones(self) -> None:
        require(bool(self.zones), "zones", "()", f"zones of {self.region}", "add at least one")
        unique("zones", self.zones)
        for zone in self.zones:
            region = zone.rpartition("-")[0]
            allowed = f"zones of {self.region}"
            fix = "take zones of the cluster's region"
            require(region == self.region, "zones", zone, allowed, fix)

    def _check_groups(self) -> None:
        unique("groups[].name", [group.name for group in self.groups])
        unique("groups: pool names", [pool.name for pool in self.pools()])
        for pool in self.pools():
            dns_name(f"groups[{pool.pool_class}]: pool name", pool.name, 40)
        roles = {group.role for group in self.groups}
        allowed = "one group of role system"
        fix = "add the on-demand system group"
        require(Role.SYSTEM in roles, "groups", sorted(roles), allowed, fix)
        sources = {group.name for group in self.groups}
        sources |= {cap.accelerator for cap in self.auto_provisioning.accelerators}
        for quota in self.quotas:
            field = f"quotas[{quota.source}].source"
            fix = "name a group, or an accelerator with a cap"
            allowed = ", ".join(sorted(sources))
            require(quota.source in sources, field, quota.source, allowed, fix)
        unique("quotas[].source", [quota.source for quota in self.quotas])

    def _largest_quotas(self) -> dict[str, int]:
        """Return accelerator -> GPUs of the largest of its sources."""
        gpus: dict[str, int] = {}
        for group in self.groups:
            if group.accelerator:
                quota = self.quota_gpus(group.name)
                gpus[group.accelerator] = max(quota, gpus.get(group.accelerator, quota))
        for cap in self.auto_provisioning.accelerators:
            quota = self.quota_gpus(cap.accelerator)
            gpus[cap.accelerator] = max(quota, gpus.get(cap.accelerator, quota))
        return gpus

    def _check_names(self) -> None:
        """Compute all names that have a limit: one that is too long must not fail in the middle of
        an apply.
        """
        for role in roles.ROLES:
            self.account_id(role)
        for purpose in names.BUCKETS:
            self.bucket(purpose)

    # Computed values. Deployed projects use these names: Terraform replaces a renamed resource.

    @property
    def stem(self) -> str:
        """The beginning of most names in the cloud."""
        return f"{self.name_prefix}-{self.name}"

    @property
    def project(self) -> str:
        """The project id in names and plans. A placeholder is in lower case, as the API demands."""
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
        if self.network.existing:
            return self.network.existing.subnet
        return f"projects/{self.project}/regions/{self.region}/subnetworks/{self.subnet_name}"

    @property
    def database_name(self) -> str:
        generation = self.database.generation if self.database else 1
        return f"{self.stem}-results" + (f"-{generation}" if generation > 1 else "")

    @property
    def database_connection(self) -> str:
        """The instance connection name, for the Cloud SQL Auth Proxy."""
        return f"{self.project}:{self.region}:{self.database_name}"

    @property
    def database_roles(self) -> tuple[str, ...]:
        """The roles whose service accounts log in to the results database."""
        return *roles.DATABASE_ROLES, *(team.role for team in self.teams)

    def database_user(self, role: str) -> str:
        """Return PostgreSQL's name for the service account of a role."""
        return self.service_account_email(role).removesuffix(".gserviceaccount.com")

    @property
    def image_registry(self) -> str:
        """The prefix of image names."""
        return f"{self.region}-docker.pkg.dev/{self.project}/{self.stem}"

    @property
    def image_patterns(self) -> tuple[str, ...] | None:
        """The images that the policy admits; None if this environment has no policy."""
        security = self.security
        if not security.binary_authorization or security.image_policy_elsewhere:
            return None
        remote = [f"{self.image_registry}-{registry.name}/**" for registry in security.registries]
        return (f"{self.image_registry}/**", *remote, *security.image_patterns)

    @property
    def workload_pool(self) -> str:
        return f"{self.project}.svc.id.goog"

    @property
    def identity_pool(self) -> str:
        """The pool of the workflows that deploy. Google reserves the name of a deleted pool for 30
        days.
        """
        return names.check_name(f"{self.stem}-ci", limit=32, kind="workload identity pool id")

    @property
    def identity_pools(self) -> str:
        return f"projects/{self.project_number.lower()}/locations/global/workloadIdentityPools"

    @property
    def workload_identities(self) -> str:
        """The prefix of Kubernetes accounts in the policies of Google Cloud."""
        return f"iam.googleapis.com/{self.identity_pools}/{self.workload_pool}"

    @property
    def cluster_name(self) -> str:
        return self.cluster.name or self.stem

    @property
    def spot_window(self) -> ShutdownWindow:
        if self.spot_grace_s == EXTENDED_WINDOW.total_s:
            return EXTENDED_WINDOW
        return DEFAULT_WINDOW

    @property
    def egress_names(self) -> list[str]:
        """All hosts that any pod may reach by name."""
        targets = [*self.egress]
        for team in self.teams:
            targets += team.egress
        return [target for target in dict.fromkeys(targets) if "/" not in target]

    @property
    def is_protected(self) -> bool:
        """Tells whether a destroy would stop at the cluster, the database or a bucket."""
        return (
            self.cluster.deletion_protection
            or (self.database is not None and self.database.deletion_protection)
            or not self.storage.allow_destroy
        )

    def without_protection(self) -> "Environment":
        """Return the same environment without its protections against a destroy."""
        return replace(
            self,
            production=False,
            cluster=replace(self.cluster, deletion_protection=False),
            database=replace(self.database, deletion_protection=False) if self.database else None,
            storage=replace(self.storage, allow_destroy=True),
        )

    def with_run_label(self, run: str) -> "Environment":
        """Return the same environment, its resources labeled with the run of a proof."""
        return replace(self, labels=(*self.labels, (names.LABEL_RUN, run)))

    def pools(self) -> tuple[Pool, ...]:
        """Return the node pools of all groups."""
        pools: list[Pool] = []
        for group in self.groups:
            pools += group.pools(self.spot_window)
        return tuple(pools)

    def pool(self, name: str) -> Pool:
        return {pool.name: pool for pool in self.pools()}[name]

    def bucket(self, purpose: str) -> str:
        """Return the bucket of a purpose: checkpoints, data, receipts. Bucket names are
        global, so the project is part of them.
        """
        return names.check_name(
            f"{self.project}-{self.stem}-{purpose}",
            limit=63,
            kind="bucket name",
        )

    def topic(self, purpose: str) -> str:
        """Return the topic of a purpose: work, work-2, ..., dead. Its subscription has the same
        name.
        """
        return f"{self.stem}-{purpose}"

    @property
    def lanes(self) -> list[str]:
        """The purposes of the work topics: one for each batch job that queues on Pub/Sub at the
        same time.
        """
        lanes: list[str] = []
        for number in range(1, self.queue.lanes + 1):
            lanes.append("work" if number == 1 else f"work-{number}")
        return lanes

    @property
    def topic_purposes(self) -> list[str]:
        """The purposes of all topics: lanes and dead letters. None if jobs queue in the
        database.
        """
        return [*self.lanes, "dead"] if self.lanes else []

    def account_id(self, role: str) -> str:
        return names.account_id(self.stem, role)

    def service_account_email(self, role: str) -> str:
        return f"{self.account_id(role)}@{self.project}.iam.gserviceaccount.com"

    def member(self, role: str) -> str:
        """Return the service account of a role as a member of a policy."""
        return f"serviceAccount:{self.service_account_email(role)}"

    def all_labels(self) -> dict[str, str]:
        return {"platform": self.name_prefix, "environment": self.name} | dict(self.labels)

    def quota_gpus(self, source: str) -> int:
        """Return the GPUs that Kueue may lend from a group or from auto-provisioning of an
        accelerator.
        """
        for quota in self.quotas:
            if quota.source == source:
                return quota.gpus
        return self.capacity_gpus(source)

    def capacity_gpus(self, source: str) -> int:
        """Return the maximum of GPUs of a group, or of auto-provisioning of an accelerator.

        The cap counts the GPUs of the groups too; auto-provisioning has the rest.
        """
        group_gpus = 0
        accelerator_gpus = 0
        is_group = False
        for pool in self.pools():
            gpus = pool.max_nodes * pool.gpus_per_node
            if pool.pool_class == source:
                is_group = True
                group_gpus += gpus
            if pool.accelerator == source:
                accelerator_gpus += gpus
        if is_group:
            return group_gpus
        return max(0, self.auto_provisioning.cap(source) - accelerator_gpus)
