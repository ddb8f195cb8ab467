"""Rules on values that Google's APIs refuse, often after minutes of applying: labels, names,
versions, ranges, tiers.
"""

import re
from collections.abc import Iterator
from ipaddress import IPv4Network
from typing import cast

from infra.contract.versions import GKE_MINORS
from infra.rules.model import POOL, Facts, Finding, PlannedResource, rule
from infra.rules.network import address_ranges
from infra.rules.services import INSTANCE

LABEL_MAPS = ("labels", "resource_labels", "user_labels", "node_config.resource_labels")
# In these kinds, `labels` holds an address, not labels.
NOT_LABELED = ("google_monitoring_notification_channel",)
MAX_LABELS = 64
LABEL_KEY = re.compile(r"(?!goog)[a-z][-_a-z0-9]{0,62}")
LABEL_VALUE = re.compile(r"[-_a-z0-9]{0,63}")
PRIVATE = (
    IPv4Network("10.0.0.0/8"),
    IPv4Network("172.16.0.0/12"),
    IPv4Network("192.168.0.0/16"),
    IPv4Network("100.64.0.0/10"),
    IPv4Network("192.0.0.0/24"),
    IPv4Network("192.0.2.0/24"),
    IPv4Network("192.88.99.0/24"),
    IPv4Network("198.18.0.0/15"),
    IPv4Network("198.51.100.0/24"),
    IPv4Network("203.0.113.0/24"),
    IPv4Network("240.0.0.0/4"),
)
DOCKER = IPv4Network("172.17.0.0/16")
MIN_DATABASE_MIB = 3_840
MAX_DATABASE_CPUS = 96


@rule(
    reason="the API refuses it in the middle of an apply",
    source="https://docs.cloud.google.com/resource-manager/docs/labels-overview#requirements",
)
def label_grammar(facts: Facts) -> Iterator[Finding]:
    """Labels of resources are at most 64, in lower case, and not Google's own."""
    allowed = (
        f"at most {MAX_LABELS}: a-z, 0-9, '-', '_', keys beginning with a letter and not with goog"
    )
    for resource, path, labels in _iter_labels(facts):
        got = _describe_fault(labels)
        if got:
            yield resource.finding(path, allowed, "correct labels of the environment", got)


def _describe_fault(labels: dict[str, object]) -> str:
    """Return the first label that the API refuses, or their number if there are too many."""
    for key, value in labels.items():
        if not (LABEL_KEY.fullmatch(key) and LABEL_VALUE.fullmatch(str(value))):
            return f"{key}={value}"
    return f"{len(labels)} labels" if len(labels) > MAX_LABELS else ""


def _iter_labels(facts: Facts) -> Iterator[tuple[PlannedResource, str, dict[str, object]]]:
    """Yield resource, path and labels; not the Kubernetes labels of node pools, whose grammar
    differs.
    """
    for resource in facts.resources:
        if resource.kind in NOT_LABELED:
            continue
        for path in LABEL_MAPS:
            labels = resource.get(path)
            of_nodes = path == "labels" and resource.kind == POOL
            if isinstance(labels, dict) and not of_nodes:
                yield resource, path, cast("dict[str, object]", labels)


@rule(
    reason=(
        "the API refuses a version that it does not offer, and older ones know no flex-start pools"
    ),
    source="https://docs.cloud.google.com/kubernetes-engine/docs/release-schedule",
)
def version_is_offered(facts: Facts) -> Iterator[Finding]:
    """The control plane's least version is one that GKE offers."""
    oldest, newest = GKE_MINORS
    for cluster in facts.cluster():
        version = re.match(r"1\.(\d+)", str(cluster.get("min_master_version") or ""))
        if version and not oldest <= int(version[1]) <= newest:
            fix = (
                "set cluster.min_version; raise GKE_MINORS in infra/contract/versions.py once"
                " Google offers a newer one"
            )
            yield cluster.finding("min_master_version", f"1.{oldest} to 1.{newest}", fix)


@rule(
    reason=(
        "GKE and Cloud SQL route private ranges only; Docker's own range on nodes hides what is"
        " there"
    ),
    source=(
        "https://docs.cloud.google.com/vpc/docs/subnets#valid-ranges; "
        "https://docs.cloud.google.com/sql/docs/postgres/private-ip#network_requirements"
    ),
)
def ranges_are_private(facts: Facts) -> Iterator[Finding]:
    """Ranges of nodes, pods, services and the database are private, and none is Docker's."""
    for source, name, network in address_ranges(facts):
        is_private = any(network.subnet_of(range_) for range_ in PRIVATE)
        if network.overlaps(DOCKER) or not is_private:
            allowed = (
                "a range of 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 or another private one, not"
                f" {DOCKER}"
            )
            yield Finding(
                where=f"{source}: {name}",
                got=str(network),
                allowed=allowed,
                fix="choose another range",
            )


@rule(
    reason="the API refuses other sizes",
    source="https://docs.cloud.google.com/sql/docs/postgres/create-instance#machine-types",
)
def database_tier_exists(facts: Facts) -> Iterator[Finding]:
    """The database's tier is one that Cloud SQL Enterprise has."""
    for instance in facts.of(INSTANCE):
        if not _is_tier(str(instance.get("settings.tier"))):
            allowed = (
                f"db-custom-CPUS-MIB: CPUs 1 or even to {MAX_DATABASE_CPUS}, MiB a multiple of"
                f" 256, {MIN_DATABASE_MIB:,} or more, 0.9 to 6.5 GiB a CPU"
            )
            yield instance.finding("settings.tier", allowed, "set database.tier")


def _is_tier(tier: str) -> bool:
    if tier in ("db-f1-micro", "db-g1-small"):
        return True
    custom = re.fullmatch(r"db-custom-(\d+)-(\d+)", tier)
    if custom is None:
        return False
    cpus = int(custom[1])
    mib = int(custom[2])
    if cpus > MAX_DATABASE_CPUS or (cpus % 2 and cpus != 1):
        return False
    if mib < MIN_DATABASE_MIB or mib % 256:
        return False
    return 0.9 * 1024 * cpus <= mib <= 6.5 * 1024 * cpus
