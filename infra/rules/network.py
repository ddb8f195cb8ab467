"""Rules on the network: the address space against caps of nodes, and open ports."""

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network, ip_network

from infra.rules.model import Facts, Finding, rule
from infra.specs.network import PODS_RANGE, SERVICES_RANGE

SUBNET = "google_compute_subnetwork"
LOAD_BALANCERS = "load balancers"
NODES = "nodes"
RESERVED_ADDRESSES = 4  # of each primary range, by Google
MIN_SERVICES = 128
WIDEST = {4: 16, 6: 32}  # prefix of a range that one owner may have
MAX_PUBLIC_RANGES = 64
SURGE_NODES = 1  # of each pool during an upgrade


NamedRange = tuple[str, str, IPv4Network]
"""The place where the range is stated, its name, the range."""


def _iter_subnet_ranges(facts: Facts) -> Iterator[NamedRange]:
    for subnet in facts.of(SUBNET):
        name = LOAD_BALANCERS if subnet.get("purpose") else NODES
        yield subnet.address, name, IPv4Network(subnet.get("ip_cidr_range"))
        for block in subnet.blocks("secondary_ip_range"):
            name = str(block.get("range_name"))
            yield subnet.address, name, IPv4Network(str(block.get("ip_cidr_range")))
    network = facts.environment.network
    if network.existing:  # no resource says how large it is
        yield "network.existing", NODES, IPv4Network(network.nodes_cidr)
        yield "network.existing", PODS_RANGE, IPv4Network(network.pods_cidr)
        yield "network.existing", SERVICES_RANGE, IPv4Network(network.services_cidr)


def address_ranges(facts: Facts) -> Iterator[NamedRange]:
    """Yield the ranges of subnets, and those that are reserved for managed services."""
    yield from _iter_subnet_ranges(facts)
    for reserved in facts.of("google_compute_global_address"):
        if reserved.get("address") and reserved.get("prefix_length"):
            network = IPv4Network(f"{reserved.get('address')}/{reserved.get('prefix_length')}")
            yield reserved.address, "database", network


@rule(
    reason=(
        "the autoscaler stops with ip.space.exhausted: each node takes an address, and a block of"
        " at least twice its pods, rounded up to a power of two; a service range cannot be widened"
        " later"
    ),
    source="GKE documentation, IP ranges of VPC-native clusters",
)
def ip_space(facts: Facts) -> Iterator[Finding]:
    """The ranges are large enough for every node that the limits allow, for its pods, and for
    services.
    """
    environment = facts.environment
    nodes = environment.auto_provisioning.max_nodes
    nodes += sum(pool.max_nodes + SURGE_NODES for pool in environment.pools())
    addresses_per_node = 1 << (2 * environment.network.max_pods_per_node - 1).bit_length()
    requirements = {
        NODES: ("nodes_cidr", nodes + RESERVED_ADDRESSES),
        PODS_RANGE: ("pods_cidr", nodes * addresses_per_node),
        SERVICES_RANGE: ("services_cidr", MIN_SERVICES),
    }
    for source, name, network in _iter_subnet_ranges(facts):
        field, minimum = requirements.get(name, ("", 0))
        if network.num_addresses < minimum:
            yield Finding(
                where=f"{source}: {name}",
                got=f"{network}, {network.num_addresses:,} addresses",
                allowed=f"{minimum:,} addresses",
                fix=f"widen network.{field}",
            )


@rule(
    reason="the API refuses the cluster once the network is there",
    source="https://docs.cloud.google.com/kubernetes-engine/docs/concepts/alias-ips",
)
def ranges_are_in_the_subnet(facts: Facts) -> Iterator[Finding]:
    """The cluster takes its pods and services from ranges of its subnet."""
    ranges = set()
    for subnet in facts.of(SUBNET):
        for block in subnet.blocks("secondary_ip_range"):
            ranges.add(str(block.get("range_name")))
    # The plan of one stack, or an existing network, shows none; doctor reads those of the latter.
    for cluster in facts.cluster() if ranges else ():
        for use in ("cluster", "services"):
            path = f"ip_allocation_policy.{use}_secondary_range_name"
            if cluster.get(path) not in ranges:
                yield cluster.finding(path, ", ".join(sorted(ranges)), "name a range of the subnet")


def open_to_many(ranges: Iterable[str]) -> bool:
    """Tell whether public ranges are wider than one owner has, or too many: halves and quarters of
    the internet are the internet.
    """
    count = 0
    for text in ranges:
        network = ip_network(str(text), strict=False)
        if network.is_private:
            continue
        if network.prefixlen < WIDEST[network.version]:
            return True
        count += 1
    return count > MAX_PUBLIC_RANGES


@rule(
    reason="otherwise everyone on the internet can reach the port",
    source="CIS Google Cloud 3.6, 3.7",
)
def no_open_firewall(facts: Facts) -> Iterator[Finding]:
    """No firewall rule admits the whole internet."""
    for firewall in facts.of("google_compute_firewall"):
        admits = firewall.blocks("allow") and firewall.get("direction", "INGRESS") == "INGRESS"
        named = firewall.get("source_tags") or firewall.get("source_service_accounts")
        sources = firewall.get("source_ranges", [])
        # The API reads no source at all as every source.
        if admits and (open_to_many(sources) or not (sources or named)):
            yield firewall.finding(
                "source_ranges",
                "ranges of yours",
                "name the sources",
                sources or "none",
            )


@rule(
    reason=(
        "the update is forced: it takes the ranges of other services out of the peering, and their"
        " instances lose the network"
    ),
    source=(
        "google provider 7.39, resource_service_networking_connection.go; Service Networking API"
    ),
)
def peering_is_not_forced(facts: Facts) -> Iterator[Finding]:
    """A peering that may be a company's is created or left, never updated by force."""
    if facts.environment.network.existing is None:
        return
    for connection in facts.of("google_service_networking_connection"):
        if connection.get("update_on_creation_fail"):
            yield connection.finding(
                "update_on_creation_fail",
                "False in an existing network",
                "leave managed-services out of network.existing.creates if a peering is there",
            )
