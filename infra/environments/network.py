"""Settings of the network: ranges of a VPC of this platform, or of one of another team."""

from dataclasses import dataclass
from itertools import combinations

from infra.environments.checks import (
    dns_name,
    forms,
    ipv4_range,
    numbers,
    require,
    require_choice,
    unique,
)

NETWORK_PARTS = ("nat", "google-apis", "managed-services")


@dataclass(frozen=True, kw_only=True, slots=True)
class AuthorizedRange:
    """A range that may reach the control plane's private IP endpoint."""

    name: str
    cidr: str

    def __post_init__(self) -> None:
        require(
            bool(self.name),
            "network.authorized_ranges[].name",
            "''",
            "a name",
            "describe the range",
        )
        ipv4_range(f"network.authorized_ranges[{self.name}].cidr", self.cidr, 8, 32)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExistingNetwork:
    """A VPC and a subnet of another team, in this project or in a Shared VPC host project; neither
    is changed.

    Its owner provides Private Google Access on the subnet, internet access for private nodes, and
    the parts that `creates` does not name.
    """

    network: str
    """projects/P/global/networks/NAME"""
    subnet: str
    """projects/P/regions/R/subnetworks/NAME, with two secondary ranges."""
    pods_range: str = "pods"
    """Name of the secondary range for pods."""
    services_range: str = "services"
    creates: tuple[str, ...] = ()
    """Parts that this platform creates in the network, if it is in its own project: nat,
    google-apis, managed-services.
    """
    grants: bool = False
    """Write the three grants that GKE needs in a host project. False: the host's team has written
    them.
    """

    def __post_init__(self) -> None:
        forms("network.existing.", self, "network", "subnet")
        dns_name("network.existing.pods_range", self.pods_range, 63)
        dns_name("network.existing.services_range", self.services_range, 63)
        for part in self.creates:
            require_choice("network.existing.creates[]", part, NETWORK_PARTS)
        numbers("network.existing.", self)
        owners = {self.network.split("/")[1], self.subnet.split("/")[1]}
        require(
            len(owners) == 1,
            "network.existing.subnet",
            self.subnet,
            f"a subnet of {self.network}",
            "take both from one project",
        )

    @property
    def project(self) -> str:
        return self.network.split("/")[1]

    def check(self, project: str, region: str) -> None:
        """Raise InputError if the network does not fit an environment of this project and
        region.
        """
        require(
            self.subnet.split("/")[3] == region,
            "network.existing.subnet",
            self.subnet,
            f"one in {region}",
            "take a subnet of the environment's region",
        )
        is_local = self.project == project
        require(
            is_local or not self.creates,
            "network.existing.creates",
            ", ".join(self.creates),
            f"nothing in the network of {self.project}, or that project as project_id",
            "leave it out: the team of the host project makes it; or correct project_id",
        )
        require(
            not (is_local and self.grants),
            "network.existing.grants",
            True,
            "True for a host project",
            "set it to False: the network is of this project",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """Ranges of one VPC. The rule `ip-space` checks their sizes against the caps of nodes."""

    existing: ExistingNetwork | None = None
    """None: a VPC of this platform. Otherwise, state the ranges of the existing network below."""

    nodes_cidr: str
    pods_cidr: str
    services_cidr: str
    database_cidr: str
    """Reserved for Google's managed services (Cloud SQL) by private service access."""
    max_pods_per_node: int = 32
    """GPU nodes run few pods; 32 takes a /26 of pod addresses each, the default of 110 takes a /24.

    Google takes 8 to 256. Less than 16 is refused here: ten pods of GKE run on each GPU node of
    this cluster (logs, metrics, Prometheus, Dataplane V2, netd, metadata, DNS cache, two disk
    drivers, GPU plugin), and one of this platform, so 8 would leave no room for a job.
    """
    authorized_ranges: tuple[AuthorizedRange, ...] = ()
    flow_logs: bool = False
    load_balancers_cidr: str = ""
    """Proxy-only subnet of this VPC and region, through which load balancers reach services. Empty:
    services are reachable inside the cluster only. In an existing network its owner makes it; a
    region of a network has one.
    """
    public_services: bool = False
    """Services may be reachable from the internet, with TLS and Identity-Aware Proxy."""
    public_keys: bool = False
    """Such a service may ask for API keys instead, for clients without Google accounts. Envoy's
    filter for keys is still marked as work in progress (infra/decisions/0158).
    """

    def __post_init__(self) -> None:
        require(
            self.public_services or not self.public_keys,
            "network.public_keys",
            True,
            "False without public_services",
            "set public_services too",
        )
        require(
            bool(self.load_balancers_cidr) or not self.public_services,
            "network.public_services",
            True,
            "False without load_balancers_cidr",
            "state the range of a proxy-only subnet, such as 10.50.0.0/24",
        )
        sizes = {
            "nodes_cidr": (16, 27),
            "pods_cidr": (9, 22),
            "services_cidr": (16, 27),
            "database_cidr": (16, 24),
        }
        if self.load_balancers_cidr:
            sizes["load_balancers_cidr"] = (16, 26)
        ranges = {}
        for name, size in sizes.items():
            ranges[name] = ipv4_range(f"network.{name}", getattr(self, name), *size)
        for first, second in combinations(ranges, 2):
            require(
                not ranges[first].overlaps(ranges[second]),
                f"network.{second}",
                f"{ranges[second]}, which overlaps {first} {ranges[first]}",
                "ranges that do not overlap",
                f"move {second}",
            )
        require(
            self.max_pods_per_node in (16, 32, 64, 110),
            "network.max_pods_per_node",
            self.max_pods_per_node,
            "16, 32, 64 or 110",
            "GPU nodes need 32; eleven pods of GKE and of ours are on each",
        )
        unique("network.authorized_ranges", [range_.cidr for range_ in self.authorized_ranges])
        numbers("network.", self)
