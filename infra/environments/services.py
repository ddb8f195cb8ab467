"""Settings other than machines and network: security, storage, queue, database, online inference,
alerts, delivery, budget.

Read through `Environment`. Each check raises an InputError that names the field.
"""

from dataclasses import dataclass
from math import ceil

from holdfast.vocabulary.serving import USABLE_SHARE
from infra.environments.checks import (
    between,
    dns_name,
    forms,
    numbers,
    require,
    require_recipients,
    unique,
)
from infra.environments.runs import DEFAULT_RUN, Run, check_apart

DAY_S = 86_400
MAX_SUBJECT = 127


@dataclass(frozen=True, kw_only=True, slots=True)
class Registry:
    """A registry of images elsewhere. Artifact Registry pulls from it with a password that no node
    and no pod has: infra/decisions/0161.
    """

    name: str
    """Images are then named REGION-docker.pkg.dev/PROJECT/PREFIX-ENV-NAME/IMAGE@sha256:..."""
    upstream: str
    """Such as https://nvcr.io."""
    user: str = ""
    password: str = ""
    """projects/P/secrets/S/versions/V in Secret Manager. Empty with `user`: a public registry."""

    def __post_init__(self) -> None:
        dns_name("security.registries[].name", self.name, 20)
        forms("security.registries[].", self, "upstream", "password")
        require(
            bool(self.user) == bool(self.password),
            f"security.registries[{self.name}].user",
            repr(self.user),
            "user and password, or neither",
            "state both, or leave both out for a public registry",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Security:
    """Protections that cost money or need a newer GKE or another resource; all others are always
    on.
    """

    kms_key: str = ""
    """projects/P/locations/L/keyRings/R/cryptoKeys/K for secrets in etcd, disks and buckets; empty:
    Google's keys.
    """
    binary_authorization: bool = False
    """Admit only images of the project's policy. The policy is created too: it admits this
    environment's own repository, `image_patterns`, and GKE's system images.
    """
    image_patterns: tuple[str, ...] = ()
    """Other images that may run, for example us-docker.pkg.dev/acme/tools/**."""
    registries: tuple[Registry, ...] = ()
    """Registries outside of Google Cloud whose images may run."""
    image_policy_elsewhere: bool = False
    """True: the project's image policy is managed elsewhere, so this environment creates none."""
    rbac_security_group: str = ""
    """gke-security-groups@your-domain, for role bindings by Google group."""
    signed_kernel_modules: bool = False
    """GPU pools load only kernel modules that Google signed. Needs GKE 1.34.1-gke.2364000 or newer.
    """
    signed_checkpoints: bool = False
    """Training signs commits and joins its gang with a key; batch takes no other commit. Make the
    Secrets first: infra/decisions/0069.
    """
    gpu_exporter: bool = True
    """NVIDIA's DCGM exporter on each GPU node, which gives the alerts on GPU faults their series.
    It is privileged: set False if a policy forbids that. If the exporter was applied before, delete
    the namespace gpu-metrics.
    """
    faulty_nodes_per_hour: int = 0
    """Spot nodes with a broken GPU that the mover may replace in an hour, up to 60; it then may
    cordon and delete Spot nodes. 0: it only reports them. Needs `gpu_exporter`:
    infra/decisions/0111.
    """
    ratings_every_s: int = 0
    """Seconds between the exporter's questions to Google how obtainable the machines are for which
    pods wait, 600 to 86400; it may then read Compute Engine, and the report says how often the
    machines came. 0: never. infra/decisions/0178.
    """
    secret_manager: bool = False
    """GKE's Secret Manager add-on: jobs mount secrets that no manifest contains. Secrets are billed
    by version.
    """
    data_access_logs: bool = False
    """Cloud Audit Logs record who reads and writes objects of buckets, and secrets. This holds for
    the whole project and replaces its own setting for these services; logs are billed by GiB.
    """

    def __post_init__(self) -> None:
        forms("security.", self, "kms_key", "rbac_security_group", "image_patterns")
        numbers("security.", self, faulty_nodes_per_hour=(0, 60))
        if self.ratings_every_s:
            between("security.ratings_every_s", self.ratings_every_s, 600, DAY_S)
        unique("security.registries[].name", [registry.name for registry in self.registries])
        require(
            self.gpu_exporter or not self.faulty_nodes_per_hour,
            "security.faulty_nodes_per_hour",
            self.faulty_nodes_per_hour,
            "0 without gpu_exporter",
            "set gpu_exporter=True: faults are read from it",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Storage:
    runs: tuple[Run, ...] = ()
    """Isolated runs: each writes below its own prefix only, as its own identity. Empty: a job may
    have any name, and all training shares one account and the folder `default`.
    """
    allow_destroy: bool = False
    """True: `destroy` may delete buckets with objects, images, and the queue with its backlog."""
    checkpoint_soft_delete_days: int = 0
    """Days for which a deleted checkpoint can be restored, and is billed; 0 or 7 to 90. See
    infra/docs/reference/machines.md for what it costs.
    """
    checkpoint_version_days: int = 0
    """Days for which an overwritten or deleted checkpoint stays as an old version; 0: none."""

    def __post_init__(self) -> None:
        numbers("storage.", self, checkpoint_version_days=(0, 365))
        require(
            self.checkpoint_soft_delete_days == 0 or 7 <= self.checkpoint_soft_delete_days <= 90,
            "storage.checkpoint_soft_delete_days",
            self.checkpoint_soft_delete_days,
            "0, or 7 to 90, as Cloud Storage allows",
            "set it to 7, or to 0",
        )
        check_apart(self.runs)

    @property
    def default_run(self) -> str:
        """The folder below which all training writes; empty: each run has a prefix."""
        return "" if self.runs else DEFAULT_RUN


@dataclass(frozen=True, kw_only=True, slots=True)
class Queue:
    lanes: int = 0
    """Batch jobs that can queue on Pub/Sub at the same time: a topic with its subscription serves
    one job. 0: they queue in the results database.
    """

    def __post_init__(self) -> None:
        numbers("queue.", self, lanes=(0, 20))


@dataclass(frozen=True, kw_only=True, slots=True)
class Database:
    """Cloud SQL for PostgreSQL, private address only."""

    tier: str = "db-custom-2-7680"
    disk_gib: int = 50
    highly_available: bool = False
    backup_days: int = 14
    deletion_protection: bool = True
    generation: int = 1
    """Raise it to deploy again within a week of a destroy: Google reserves the name of a deleted
    instance that long.
    """

    def __post_init__(self) -> None:
        forms("database.", self, "tier")
        numbers(
            "database.",
            self,
            disk_gib=(10, 65_536),
            backup_days=(7, 365),
            generation=(1, 999),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Alerts:
    """Recipients and thresholds of alerts. Thresholds are in seconds unless the name has a unit."""

    emails: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    """Existing channels: projects/P/notificationChannels/N."""
    readers: tuple[str, ...] = ()
    """Members that run `holdfast place churn --project` and may read metrics: group:G, user:U or
    serviceAccount:S.
    """
    modules: tuple[str, ...] = ()
    """Your own alerts: importable modules with `def alerts()`; see monitoring/README.md."""
    runbook_base_url: str = ""
    """The address of monitoring/alerting/runbook.md; empty: the address of this checkout's git
    remote.
    """
    on_demand_pending_s: int = 600
    spot_pending_s: int = 1_800
    flex_pending_s: int = 14_400
    queue_wait_s: int = 14_400
    """The longest time that Kueue may hold a job that is not stopped."""
    checkpoint_age_s: int = 3_600
    preemptions_per_hour: int = 6
    """Preemptions in one pool."""
    goodput_min: float = 0.0
    """Useful share of machine time; 0: the share at which the most expensive Spot pool costs as
    much as on-demand.
    """
    batch_oldest_s: int = 86_400
    heartbeat_s: int = 600

    def __post_init__(self) -> None:
        forms("alerts.", self, "emails", "channels", "readers", "modules", "runbook_base_url")
        require_recipients("alerts.channels", self.emails, self.channels)
        unique("alerts.readers", self.readers)
        # Below, ordinary operation fires the alert; above, it is too late to act.
        numbers(
            "alerts.",
            self,
            on_demand_pending_s=(120, DAY_S),
            spot_pending_s=(120, 2 * DAY_S),
            flex_pending_s=(600, 7 * DAY_S),
            queue_wait_s=(600, 7 * DAY_S),
            checkpoint_age_s=(300, DAY_S),
            preemptions_per_hour=(2, 1_000),
            batch_oldest_s=(600, 7 * DAY_S),
            heartbeat_s=(120, 3_600),
        )
        if self.goodput_min:
            # At a share of 0.3, useful work costs as much on Spot, at a third of the price, as
            # on demand. No job that restarts exceeds 0.95.
            between("alerts.goodput_min", self.goodput_min, 0.3, 0.95)


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """Keyless access for the workflows of one GitHub repository: a planner that reads, a deployer
    that needs approval.
    """

    repository: str
    """owner/name, as GitHub spells it."""
    repository_id: str
    """The repository's number, which no other repository ever gets: `gh api repos/OWNER/NAME`."""
    owner_id: str
    """The number of the owner of the repository, from the same answer."""
    environment: str = "production"
    """The gate: the repository's environment in which a job must run to deploy. Name one for each
    environment, and protect it with reviewers if a person decides.
    """

    def __post_init__(self) -> None:
        forms("delivery.", self, "repository", "repository_id", "owner_id", "environment")
        subject = self.subjects[0]
        require(
            len(subject) <= MAX_SUBJECT,
            "delivery.repository and environment",
            f"{subject} ({len(subject)} characters)",
            f"a subject of at most {MAX_SUBJECT} characters, the limit of Google's token service",
            "shorten the name of the repository's environment",
        )

    @property
    def subjects(self) -> tuple[str, str]:
        """The subjects of the gate's tokens: GitHub's form by numbers, for repositories that were
        created, renamed or transferred since July 2026, and the older form by names.
        """
        owner, _, name = self.repository.partition("/")
        numbered = f"repo:{owner}@{self.owner_id}/{name}@{self.repository_id}"
        return (
            f"{numbered}:environment:{self.environment}",
            f"repo:{self.repository}:environment:{self.environment}",
        )

    @property
    def condition(self) -> str:
        """The condition on tokens. It compares numbers: those of a recycled name differ."""
        return (
            f'assertion.repository_id == "{self.repository_id}" &&'
            f' assertion.repository_owner_id == "{self.owner_id}"'
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """A monthly budget of the project; it warns, it does not stop anything. Google notifies the
    administrators of the billing account and the first five channels of `alerts`.
    """

    billing_account: str
    monthly_usd: int
    """An amount in `currency`, despite the field's name."""
    currency: str = "USD"
    """The billing account's currency; the API rejects others. `gcloud billing accounts describe`.
    """

    def __post_init__(self) -> None:
        forms("budget.", self, "billing_account", "currency")
        numbers("budget.", self, monthly_usd=(1, 100_000_000))


@dataclass(frozen=True, kw_only=True, slots=True)
class Serving:
    """Online inference: the load that is promised without Spot, and the peak with Spot."""

    promised_per_s: float
    """Requests per second that on-demand base replicas answer, without any Spot machine."""
    peak_per_s: float
    """Requests per second that are answered while Spot machines are available."""
    replica_per_s: float
    """Requests per second of one replica with full batches; `make bench-server` measures it for
    your model.
    """
    base_replicas: int
    """The minimum number of on-demand replicas; infra.rules checks that they can keep the promise.
    """
    base_most: int
    """The maximum number of on-demand replicas."""
    overflow_most: int
    """The maximum number of replicas on Spot."""
    inflight_target: int = 24
    """Running and waiting requests per replica above which a replica is added."""
    sample: bool = True
    """Render a service of these sizes that serves the model of the sample run. False: the only
    services are those that people start with `holdfast submit`.
    """

    def __post_init__(self) -> None:
        rates = dict.fromkeys(
            ("promised_per_s", "peak_per_s", "replica_per_s"),
            (0.001, 10_000_000),
        )
        replicas = dict.fromkeys(("base_replicas", "overflow_most"), (1, 1_000))
        numbers(
            "serving.",
            self,
            inflight_target=(1, 100_000),
            **rates,
            **replicas,
        )
        between("serving.base_most", self.base_most, self.base_replicas, 1_000)
        require(
            self.promised_per_s <= self.peak_per_s,
            "serving.promised_per_s",
            self.promised_per_s,
            "at most peak_per_s",
            "promise less, or raise the peak",
        )

    @property
    def base_needed(self) -> int:
        """Replicas for the promised load without Spot, each below the load at which queues grow."""
        return ceil(self.promised_per_s / (USABLE_SHARE * self.replica_per_s))

    @property
    def peak_needed(self) -> int:
        return ceil(self.peak_per_s / (USABLE_SHARE * self.replica_per_s))

    @property
    def peak_inflight(self) -> int:
        """Requests in flight above which the autoscaler would add to the maximum of replicas."""
        return (self.base_most + self.overflow_most) * self.inflight_target

    @property
    def shed_per_s(self) -> float:
        """Requests per second of the peak that are rejected without Spot machines, until others
        start.
        """
        return max(0.0, self.peak_per_s - USABLE_SHARE * self.base_replicas * self.replica_per_s)

    def __str__(self) -> str:
        """Return the rule with its three numbers: B >= promise / (0.8 mu)."""
        return (
            f"base {self.base_replicas} >= {self.promised_per_s:g} / ({USABLE_SHARE:g} x"
            f" {self.replica_per_s:g}) = {self.base_needed}; promised {self.promised_per_s:g}/s,"
            f" peak {self.peak_per_s:g}/s, refused when all Spot goes at once {self.shed_per_s:g}/s"
        )
