"""Defines the fields of `holdfast.platform/1`.

A new optional field keeps the number; any other change raises it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.support.errors import InputError
from holdfast.vocabulary.pools import Pool, Role
from holdfast.vocabulary.roles import (
    DEFAULT_TEAM,
    JOB_NAMESPACES,
    NAMESPACE_MONITORING,
    NAMESPACE_SERVING,
    NAMESPACE_TRAINING,
    team_folder,
    team_role,
)

SCHEMA = "holdfast.platform/1"
SHARED_ACCOUNT = "trainer"
"""Kubernetes service account of all training where runs are not kept apart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Versions:
    """Oldest versions that the platform accepts; empty leaves it to the release channel."""

    gke: str = ""
    jobset: str
    kueue: str

    def gke_has(self, *version: int) -> bool:
        """Returns whether every GKE that the platform accepts is at least `version`, as (1, 35)."""
        number, _, _ = self.gke.partition("-")
        parts = [int(part) for part in number.split(".") if part]
        return tuple(parts) >= version


@dataclass(frozen=True, kw_only=True, slots=True)
class Prices:
    region: str
    """Region whose list prices apply."""
    currency: str = "USD"


@dataclass(frozen=True, kw_only=True, slots=True)
class Database:
    """Cloud SQL for PostgreSQL, which keeps batch results and the embedded queue."""

    connection: str
    """PROJECT:REGION:INSTANCE, what the Cloud SQL Auth Proxy connects to."""
    users: Mapping[str, str]
    """Role -> PostgreSQL user of its service account."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A training run with a prefix of the checkpoint bucket and an identity of its own."""

    name: str
    account: str
    """Kubernetes service account of its pods."""
    prefixes: tuple[str, ...]
    """Prefixes of its objects, each with a slash at the end."""
    read_by: tuple[str, ...] = ()
    """Roles that may also load its checkpoints."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Team:
    """People who share a cluster with others.

    The first is the default team, whose jobs name no namespace.
    """

    name: str
    members: str = ""
    """Google group that may submit jobs and read in the namespaces."""
    namespaces: tuple[str, ...]
    quotas: Mapping[str, int] = field(default_factory=dict)
    """Accelerator -> GPUs guaranteed in each capacity; what others leave idle is lent beyond."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Accelerator -> GPUs that it uses at most in each capacity, borrowed ones included; none: all
    that is idle.
    """
    budget_usd: int = 0
    """Dollars a month; 0: none, or in another currency."""
    runs: tuple[str, ...] = ()
    """Training runs that live in the first namespace."""
    egress: tuple[str, ...] = ()
    """Names and ranges that its pods reach on port 443 besides those of `network.egress`."""
    service_gpus: int = 0
    """GPUs of all its services at most, which run in its first namespace; 0: it has none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Serving:
    """Replicas of online inference: an on-demand base and the overflow on Spot."""

    base_replicas: int
    base_most: int
    overflow_most: int
    inflight_target: int
    """Requests that run or wait in one replica, above which another replica is added."""
    promise: str
    """The arithmetic behind the base, in one sentence."""
    sample: bool = True
    """The platform renders a sample service of these sizes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """IPv4 ranges that network policies name."""

    nodes_cidr: str
    services_cidr: str
    database_cidr: str
    load_balancers_cidr: str = ""
    """Proxy-only subnet; empty: services get no load balancer."""
    public_services: bool = False
    """Services may be reachable from the internet."""
    public_keys: bool = False
    """Services on the internet may ask for keys instead of Google identities."""
    egress: tuple[str, ...] = ()
    """Names, as huggingface.co or *.wandb.ai, and ranges that pods of all job namespaces reach on
    port 443; Google's APIs are open to all.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Security:
    signed_checkpoints: bool = False
    """Training signs commits; batch loads no unsigned one."""
    gpu_exporter: bool = False
    """A privileged exporter of NVIDIA runs on each GPU node, in a namespace of its own."""
    faulty_nodes_per_hour: int = 0
    """Spot nodes with a broken GPU that the mover replaces in an hour; 0: it only reports them."""
    ratings_every_s: int = 0
    """Seconds after which the exporter asks Google again how obtainable machines are for which pods
    wait; 0: never.
    """
    secret_manager: bool = False
    """GKE's Secret Manager add-on is on, so jobs can mount secrets."""
    image_patterns: tuple[str, ...] | None = None
    """Images that the project's policy admits, as REGISTRY/PROJECT/REPOSITORY/**; null: no policy
    is written here.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Platform:
    """One platform as its document describes it. Maps are small and keep their order."""

    name: str
    """Name of the environment."""
    project: str
    """Google Cloud project id, lower case."""
    project_number: str
    region: str
    zones: tuple[str, ...]
    """Zones of nodes."""
    cluster: str
    """Name of the GKE cluster. Its location is the region."""
    versions: Versions
    prices: Prices
    pools: tuple[Pool, ...]
    """Node pools. Pools of one `pool_class` differ in machine type only."""
    auto_provisioning: Mapping[str, int] = field(default_factory=dict)
    """Accelerator -> GPUs that node auto-provisioning may have at once, those of the pools
    included.
    """
    quotas: Mapping[str, int] = field(default_factory=dict)
    """Pool class or auto-provisioned accelerator -> GPUs that its queue lends to all jobs at once.
    """
    namespaces: Mapping[str, str]
    """Role -> namespace."""
    queues: Mapping[str, str]
    """Capacity -> LocalQueue of every namespace."""
    priorities: Mapping[str, int]
    """PriorityClass -> value."""
    accounts: Mapping[str, str]
    """Role -> Google service account."""
    workload_pool: str
    """Workload Identity pool, PROJECT.svc.id.goog."""
    buckets: Mapping[str, str]
    """Purpose (checkpoints, data, receipts) -> bucket."""
    registry: str
    """Prefix of image names."""
    images: Mapping[str, str] = field(default_factory=dict)
    """Image -> 64 hex digits of its sha256; an image that was not pushed yet is missing."""
    database: Database | None = None
    topics: Mapping[str, str] = field(default_factory=dict)
    """Purpose (work, work-2, ..., dead) -> Pub/Sub topic; its subscription has the same name."""
    lanes: int = 0
    """Batch jobs that can queue on Pub/Sub at the same time; 0: they queue in the database."""
    runs: tuple[Run, ...] = ()
    """Runs that are kept apart; empty: all training shares one account."""
    default_run: str = ""
    """Folder of the checkpoint bucket below which that account writes; empty: the bucket itself."""
    teams: tuple[Team, ...] = ()
    """The default team first; none in documents of older platforms, whose only team that is."""
    serving: Serving | None = None
    network: Network
    security: Security
    drills: bool = False
    """Drills may evict pods and delete VMs in this cluster."""

    @property
    def identity(self) -> tuple[str, str, str]:
        """Project, location and name of the cluster.

        Two documents with the same identity describe one cluster.
        """
        return self.project, self.region, self.cluster

    def __str__(self) -> str:
        return f"{self.name} ({self.project}/{self.region}/{self.cluster})"

    @property
    def price_region(self) -> str:
        return self.prices.region

    @property
    def classes(self) -> dict[str, tuple[Pool, ...]]:
        """Pool class -> its pools, in the document's order."""
        pools: dict[str, tuple[Pool, ...]] = {}
        for pool in self.pools:
            name = pool.pool_class or pool.name
            pools[name] = (*pools.get(name, ()), pool)
        return pools

    def pool(self, name: str) -> Pool:
        """Returns a pool by its name. Raises StopIteration where there is none."""
        return next(pool for pool in self.pools if pool.name == name)

    def quota(self, source: str) -> int:
        """Returns the GPUs that a queue lends from a pool class or an auto-provisioned accelerator.

        0 for any other source.
        """
        return self.quotas.get(source, 0)

    @property
    def work_topics(self) -> list[str]:
        """Topics of the lanes, by number."""
        return [topic for purpose, topic in self.topics.items() if purpose != "dead"]

    @property
    def pod_identities(self) -> str:
        """Prefix of principals of Kubernetes service accounts in IAM policies."""
        pools = f"projects/{self.project_number}/locations/global/workloadIdentityPools"
        return f"iam.googleapis.com/{pools}/{self.workload_pool}"

    @property
    def other_teams(self) -> tuple[Team, ...]:
        """The teams without the default one."""
        return self.teams[1:]

    def team(self, name: str) -> Team:
        """Raises StopIteration where there is no such team."""
        return next(team for team in self.teams if team.name == name)

    @property
    def job_namespaces(self) -> dict[str, str]:
        """Namespace of jobs -> team."""
        default = self.teams[0].name if self.teams else DEFAULT_TEAM
        namespaces: dict[str, str] = dict.fromkeys(JOB_NAMESPACES, default)
        for team in self.other_teams:
            namespaces.update(dict.fromkeys(team.namespaces, team.name))
        return namespaces

    @property
    def service_namespaces(self) -> tuple[str, ...]:
        """Namespaces in which services run: that of the platform, and those of teams."""
        namespaces = [NAMESPACE_SERVING]
        for team in self.other_teams:
            if team.service_gpus:
                namespaces.append(team.namespaces[0])
        return tuple(namespaces)

    def list_egress(self, namespace: str) -> tuple[str, ...]:
        """Returns the names and ranges that pods of a namespace reach besides Google's APIs."""
        if namespace == NAMESPACE_MONITORING:
            return ()
        targets = list(self.network.egress)
        for team in self.other_teams:
            if namespace in team.namespaces:
                targets += team.egress
        return tuple(dict.fromkeys(targets))

    def namespace_of(self, run: str) -> str:
        """Returns the namespace in which `run` trains."""
        for team in self.other_teams:
            if run in team.runs:
                return team.namespaces[0]
        return NAMESPACE_TRAINING

    def is_listed(self, run: str) -> bool:
        """Returns whether the run has its own account and prefix."""
        return any(item.name == run for item in self.runs)

    def role_in(self, namespace: str, role: str) -> str:
        """Returns the role whose Google account the account `role` of a namespace acts as: in a
        team's namespace the team's.

        Platforms from before teams had accounts keep that of the role.
        """
        team = self.job_namespaces.get(namespace, DEFAULT_TEAM)
        return team_role(team) if team_role(team) in self.accounts else role

    def account_of(self, run: str, namespace: str = NAMESPACE_TRAINING) -> str:
        """Returns the Kubernetes service account under which `run` trains.

        Raises InputError if the platform has no place for the run.
        """
        if self.is_listed(run):
            return next(item.account for item in self.runs if item.name == run)
        if not self.runs or self.role_in(namespace, SHARED_ACCOUNT) != SHARED_ACCOUNT:
            return SHARED_ACCOUNT
        raise InputError(
            "the run has no prefix in the checkpoint bucket",
            got=run,
            allowed=", ".join(item.name for item in self.runs),
            fix=(
                "submit it in the namespace of a team, or ask the platform team to"
                f' add Run(name="{run}")'
                f" to storage.runs of {self.name}"
            ),
        )

    def checkpoints_of(self, run: str, namespace: str = NAMESPACE_TRAINING) -> str:
        """Returns the URL of the folder in which `run` saves below its name."""
        folder = self.default_run
        if not self.is_listed(run) and self.role_in(namespace, SHARED_ACCOUNT) != SHARED_ACCOUNT:
            folder = team_folder(self.job_namespaces[namespace])
        return f"gs://{self.buckets['checkpoints']}/{folder}".rstrip("/")

    def admits(self, image: str) -> bool:
        """Returns whether the image policy lets `image` run; True where the platform writes none.

        GKE's own images are not listed in it.
        """
        patterns = self.security.image_patterns
        return patterns is None or any(_matches(pattern, image) for pattern in patterns)

    def system_pool(self) -> Pool:
        return next(pool for pool in self.pools if pool.role is Role.SYSTEM)


def _matches(pattern: str, image: str) -> bool:
    """Returns whether a pattern matches an image.

    `*` at its end matches the rest of a name, `**` also the names below it.
    """
    if pattern.endswith("**"):
        return image.startswith(pattern[:-2])
    if pattern.endswith("*"):
        start = pattern[:-1]
        return image.startswith(start) and "/" not in image[len(start) :]
    return image == pattern
