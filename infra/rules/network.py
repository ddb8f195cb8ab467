"""Network: address space against node caps, and which ports are open."""

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network, ip_network

from infra.rules.model import Facts, Finding, rule
from infra.specs.network import PODS_RANGE, SERVICES_RANGE

SUBNET = "google_compute_subnetwork"
NODES = "nodes"
RESERVED_ADDRESSES = 4  # of each primary range, by Google
MIN_SERVICES = 128
WIDEST = {4: 16, 6: 32}  # prefix of a range that one owner may have
MAX_PUBLIC_RANGES = 64
SURGE_NODES = 1  # of each pool during an upgrade


def _ranges(facts: Facts) -> Iterator[tuple[str, str, IPv4Network]]:
    """Address of the subnet, name of the range, range."""
    for subnet in facts.of(SUBNET):
        yield subnet.address, NODES, IPv4Network(subnet.get("ip_cidr_range"))
        for block in subnet.blocks("secondary_ip_range"):
            yield (
                subnet.address,
                str(block.get("range_name")),
                IPv4Network(str(block.get("ip_cidr_range"))),
            )
    network = facts.environment.network
    if network.existing:  # no resource says how large it is
        for name, text in (
            (NODES, network.nodes_cidr),
            (PODS_RANGE, network.pods_cidr),
            (SERVICES_RANGE, network.services_cidr),
        ):
            yield "network.existing", name, IPv4Network(text)


def address_ranges(facts: Facts) -> Iterator[tuple[str, str, IPv4Network]]:
    """Those of subnets, and those that are reserved for managed services."""
    yield from _ranges(facts)
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
    made = facts.environment.auto_provisioning.max_nodes
    pools = facts.environment.pools()
    nodes = made + sum(pool.max_nodes + SURGE_NODES for pool in pools)
    per_node = 1 << (2 * facts.environment.network.max_pods_per_node - 1).bit_length()
    needed = {
        NODES: ("nodes_cidr", nodes + RESERVED_ADDRESSES),
        PODS_RANGE: ("pods_cidr", nodes * per_node),
        SERVICES_RANGE: ("services_cidr", MIN_SERVICES),
    }
    for where, name, network in _ranges(facts):
        field, wanted = needed.get(name, ("", 0))
        if network.num_addresses < wanted:
            got = f"{network}, {network.num_addresses:,} addresses"
            allowed = f"{wanted:,} addresses"
            yield Finding(
                where=f"{where}: {name}",
                got=got,
                allowed=allowed,
                fix=f"widen network.{field}",
            )


def open_to_many(ranges: Iterable[str]) -> bool:
    """Whether they cover more than a private network: halves and quarters of the internet are the
    internet.
    """
    networks = [ip_network(str(text), strict=False) for text in ranges]
    public = [n for n in networks if not n.is_private]
    return any(n.prefixlen < WIDEST[n.version] for n in public) or len(public) > MAX_PUBLIC_RANGES


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
                "source_ranges", "ranges of yours", "name the sources", sources or "none"
            )
