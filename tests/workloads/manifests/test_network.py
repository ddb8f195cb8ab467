"""Tests of network policies: closed both ways, except to the environment's ranges and zones."""

from collections.abc import Iterable
from dataclasses import replace
from ipaddress import ip_address, ip_network
from itertools import product
from typing import Any

from holdfast.clients.api import Object
from holdfast.manifests.render_context import RenderContext
from holdfast.platform.egress import admits
from holdfast.vocabulary import roles as contract
from holdfast.vocabulary.environment import ENV_KEY_FILE
from holdfast.vocabulary.kubernetes import LABEL_NAME
from infra import environments
from infra.describe import platform as describe
from infra.specs import network
from infra.specs.cluster import resource as cluster_resource
from tests.infra.samples import EXAMPLE, two_teams
from tests.platforms import load
from tests.support import needs
from tests.workloads.manifests.rendered import (
    Body,
    find_object,
    list_kinds,
    variables,
    workloads,
)
from workloads.manifests import rendering

LINK_LOCAL = ip_network("169.254.0.0/16")
PORT_OF_PROXY = 3307


def list_policies(env: str, namespace: str) -> list[Object]:
    """Returns the specs of the policies of a namespace."""
    specs: list[Object] = []
    for body in list_kinds(env, "NetworkPolicy"):
        if body["metadata"]["namespace"] == namespace:
            specs.append(body["spec"])
    return specs


def list_destinations(specs: Iterable[Object]) -> set[tuple[str, int]]:
    """Returns the ranges and ports that some of the selected pods may call."""
    destinations: set[tuple[str, int]] = set()
    for spec in specs:
        for rule in spec.get("egress") or ():
            assert rule.get("to"), "a rule without peers or ports opens everything"
            assert rule.get("ports"), "a rule without peers or ports opens everything"
            for peer in rule["to"]:
                if "ipBlock" in peer:
                    cidr = peer["ipBlock"]["cidr"]
                    destinations.update((cidr, port["port"]) for port in rule["ports"])
    return destinations


def test_namespaces_are_closed_by_default(env: str) -> None:
    namespaces = set()
    for body, _ in workloads(env):
        namespaces.add(body["metadata"]["namespace"])
    for namespace in namespaces:
        spec = find_object(env, "NetworkPolicy", "default-deny", namespace)["spec"]
        assert spec == {
            "podSelector": {},
            "policyTypes": ["Ingress", "Egress"],
        }


def test_namespaces_may_call_only_what_they_need(env: str) -> None:
    platform = load(env)
    ranges = load(env).network
    # Cloud DNS and the cache of the node; the metadata server, as pods and as Dataplane V2 address
    # it; Google's APIs.
    everywhere = {
        ("169.254.169.254/32", 53),
        ("169.254.20.10/32", 53),
        (contract.GOOGLE_APIS_CIDR, 443),
    }
    everywhere |= set(product(["169.254.169.252/32", "169.254.169.254/32"], [80, 988]))
    api_server = {(ranges.nodes_cidr, 443), (ranges.services_cidr, 443)}
    database = {(ranges.database_cidr, PORT_OF_PROXY if platform.database else 5432)}
    additions = {
        contract.NAMESPACE_BATCH: database,
        contract.NAMESPACE_MONITORING: api_server | (database if platform.database else set()),
    }
    for namespace in contract.KSA_NAMESPACES.values():
        destinations = list_destinations(list_policies(env, namespace))
        assert destinations == everywhere | additions.get(namespace, api_server), namespace


def test_policies_admit_google_api_addresses(env: str) -> None:
    """Compares the zone of the VPC and the policies of the pods, which are written apart.

    One without the other would isolate every pod.
    """
    records: dict[object, Any] = {}
    for resource in network.resources(environments.load(env)):
        if resource.kind == "google_dns_record_set":
            records[resource.arguments["name"]] = resource.arguments
    assert records["*.googleapis.com."]["rrdatas"] == ["private.googleapis.com."]
    addresses = records["private.googleapis.com."]["rrdatas"]
    assert isinstance(addresses, list)
    assert len(addresses) == 4
    for address in addresses:
        assert ip_address(address) in ip_network(contract.GOOGLE_APIS_CIDR)


def reaches(env: str, source: dict[str, str], target: dict[str, str]) -> bool:
    """Returns whether a training pod with labels `source` may connect to one with `target`."""
    may_leave = _allows(env, "egress", "to", source, target)
    return may_leave and _allows(env, "ingress", "from", target, source)


def _allows(
    env: str,
    direction: str,
    key: str,
    pod: dict[str, str],
    peer_labels: dict[str, str],
) -> bool:
    for spec in list_policies(env, contract.NAMESPACE_TRAINING):
        if not _selects(spec["podSelector"], pod):
            continue
        for rule in spec.get(direction) or ():
            for peer in rule[key]:
                is_local = "podSelector" in peer and "namespaceSelector" not in peer
                if is_local and _selects(peer["podSelector"], peer_labels):
                    return True
    return False


def _selects(selector: Object, labels: dict[str, str]) -> bool:
    assert set(selector) <= {"matchLabels"}, "this test reads no expressions"
    return selector.get("matchLabels", {}).items() <= labels.items()


def test_gang_pods_reach_only_each_other(env: str) -> None:
    labels_by_name: dict[str, dict[str, str]] = {}
    gangs = {"train-elastic", "train-sharded"}
    for body, template in workloads(env):
        if body["metadata"]["namespace"] == contract.NAMESPACE_TRAINING:
            name = body["metadata"]["labels"][LABEL_NAME]
            labels_by_name[name] = template["metadata"]["labels"]
            if body["kind"] == "JobSet":
                gangs.add(name)
    assert {"train-gang", "train-sweep"} <= labels_by_name.keys()
    for source, source_labels in labels_by_name.items():
        for target, target_labels in labels_by_name.items():
            is_same_gang = source == target and source in gangs
            can_connect = reaches(env, source_labels, target_labels)
            assert can_connect == is_same_gang, f"{source} -> {target}"


def test_mover_is_not_called_and_reaches_no_database(env: str) -> None:
    mover = find_object(env, "Deployment", "mover")
    labels = mover["spec"]["template"]["metadata"]["labels"]
    policies: list[Object] = []
    for spec in list_policies(env, contract.NAMESPACE_MONITORING):
        if _selects(spec["podSelector"], labels):
            assert not spec.get("ingress")
            policies.append(spec)
    outside: set[tuple[str, int]] = set()
    for cidr, port in list_destinations(policies):
        if not ip_network(cidr).subnet_of(LINK_LOCAL):
            outside.add((cidr, port))
    ranges = load(env).network
    assert outside == {
        (ranges.nodes_cidr, 443),
        (ranges.services_cidr, 443),
        (contract.GOOGLE_APIS_CIDR, 443),
    }


def test_nothing_reaches_batch_pods(env: str) -> None:
    for spec in list_policies(env, contract.NAMESPACE_BATCH):
        assert not spec.get("ingress")


def test_runs_have_their_own_signing_keys(env: str) -> None:
    for body, template in workloads(env):
        spec = template["spec"]
        secrets: dict[str, str] = {}
        for volume in spec.get("volumes", []):
            if "secret" in volume:
                secrets[volume["name"]] = volume["secret"]["secretName"]
        key_file = variables(template).get(ENV_KEY_FILE, {}).get("value")
        run = find_run(body["metadata"]["labels"][LABEL_NAME])
        if not run or not load(env).security.signed_checkpoints:
            assert key_file is None
            assert "run-key" not in secrets
            continue
        (main,) = [container for container in spec["containers"] if container["name"] == "main"]
        mounts = {}
        for mount in main["volumeMounts"]:
            mounts[mount["name"]] = mount["mountPath"]
        assert secrets["run-key"] == f"run-key-{run}"
        assert key_file == f"{mounts['run-key']}/key"


def find_run(name: str) -> str:
    """Returns the run whose checkpoints the pods of a workload write or load; else empty."""
    if name.startswith("train-"):
        return name
    if name in ("batch-drain", "batch-steady", "server-base", "server-overflow"):
        return "train-gang"
    return ""


OUTSIDE = ("huggingface.co", "*.wandb.ai", "203.0.113.0/24")
HOSTS = (
    # host, its address, whether training, the team vision and monitoring reach it
    ("huggingface.co", "198.51.100.1", True, True, False),
    ("api.wandb.ai", "198.51.100.2", True, True, False),
    ("wandb.ai", "198.51.100.3", False, False, False),
    ("data.example.org", "198.51.100.4", False, True, False),
    ("mirror.example.org", "203.0.113.7", True, True, False),
    ("pypi.org", "198.51.100.5", False, False, False),
)


def opens(
    bodies: list[Body],
    namespace: str,
    host: str,
    address: str,
    port: int = 443,
) -> bool:
    """Evaluates a namespace's policies as Dataplane V2 does: what any of them opens is open."""
    for body in bodies:
        if body["metadata"].get("namespace") != namespace:
            continue
        for rule in body["spec"].get("egress") or ():
            if port not in [item["port"] for item in rule["ports"]]:
                continue
            if body["kind"] == "FQDNNetworkPolicy":
                patterns = []
                for item in rule["matches"]:
                    patterns.append(item.get("name") or item["pattern"])
                if any(fits(pattern, host) for pattern in patterns):
                    return True
            for peer in rule.get("to", ()):
                cidr = peer.get("ipBlock", {}).get("cidr", "192.0.2.0/32")
                if ip_address(address) in ip_network(cidr):
                    return True
    return False


def fits(pattern: str, host: str) -> bool:
    """A star stands for one label, as in the policies of GKE."""
    labels = pattern.split(".")
    names = host.split(".")
    if len(labels) != len(names):
        return False
    return all(label in ("*", name) for label, name in zip(labels, names, strict=True))


def test_pods_reach_the_named_hosts_and_no_other() -> None:
    environment = replace(two_teams(), egress=OUTSIDE)
    vision = replace(environment.teams[0], egress=("data.example.org",))
    environment = replace(environment, teams=(vision, *environment.teams[1:]))
    described = describe(environment, {})
    bodies = []
    for body in rendering.platform(RenderContext(described)):
        if body["kind"] in ("NetworkPolicy", "FQDNNetworkPolicy"):
            bodies.append(body)
    for host, address, *expected in HOSTS:
        answers = []
        for namespace in ("training", "vision", "monitoring"):
            answers.append(opens(bodies, namespace, host, address))
            if not host.startswith("mirror"):  # opened by its address, which no name tells
                assert admits(described.list_egress(namespace), host) is answers[-1]
        assert answers == expected, host
        assert not opens(bodies, "training", host, address, port=22)
    cluster = cluster_resource(environment).arguments
    assert cluster["enable_fqdn_network_policy"] is True


def test_ranges_alone_need_no_feature() -> None:
    environment = replace(EXAMPLE, egress=("203.0.113.0/24",))
    bodies = rendering.platform(RenderContext(describe(environment, {})))
    assert "FQDNNetworkPolicy" not in {body["kind"] for body in bodies}
    assert "enable_fqdn_network_policy" not in cluster_resource(environment).arguments
    assert "enable_fqdn_network_policy" not in cluster_resource(EXAMPLE).arguments


@needs("dev")
def test_dev_opens_the_usual_three() -> None:
    policy = find_object("dev", "FQDNNetworkPolicy", "egress-outside", "training")
    (rule,) = policy["spec"]["egress"]
    assert rule["matches"] == [
        {"name": "huggingface.co"},
        {"pattern": "*.hf.co"},
        {"pattern": "*.wandb.ai"},
    ]
