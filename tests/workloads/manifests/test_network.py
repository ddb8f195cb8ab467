"""Network policies: closed both ways, and open to exactly what the environment's own ranges and
zones name.
"""

from collections.abc import Iterable
from ipaddress import ip_address, ip_network
from typing import Any

from holdfast.vocabulary import roles as contract
from holdfast.vocabulary.environment import ENV_KEY_FILE
from holdfast.vocabulary.kubernetes import LABEL_NAME
from infra import environments
from infra.specs import network
from tests.platforms import load
from tests.workloads.manifests.rendered import bodies, named, workloads

LINK_LOCAL = ip_network("169.254.0.0/16")
PORT_OF_PROXY = 3307


def policies(env: str, namespace: str) -> list[dict[str, Any]]:
    return [
        b
        for b in bodies(env)
        if b["kind"] == "NetworkPolicy" and b["metadata"]["namespace"] == namespace
    ]


def opened(env: str, namespace: str) -> set[tuple[str, int]]:
    """(range, port) that some pod of the namespace may call."""
    return ways(policy["spec"] for policy in policies(env, namespace))


def ways(specs: Iterable[dict[str, Any]]) -> set[tuple[str, int]]:
    rules = [rule for spec in specs for rule in spec.get("egress") or ()]
    assert all(rule.get("to") and rule.get("ports") for rule in rules), (
        "a rule without peers or ports opens everything"
    )
    return {
        (peer["ipBlock"]["cidr"], port["port"])
        for rule in rules
        for peer in rule["to"]
        for port in rule["ports"]
        if "ipBlock" in peer
    }


def test_every_namespace_with_pods_is_closed_both_ways(env: str) -> None:
    for namespace in {body["metadata"]["namespace"] for body, _ in workloads(env)}:
        spec = named(env, "NetworkPolicy", "default-deny", namespace)["spec"]
        assert spec == {
            "podSelector": {},
            "policyTypes": ["Ingress", "Egress"],
        }


def test_each_namespace_may_call_what_it_needs_and_nothing_else(env: str) -> None:
    platform = load(env)
    ranges = load(env).network
    # Cloud DNS and the cache of the node; the metadata server, as pods and as Dataplane V2 address
    # it; Google's APIs.
    everywhere = {
        ("169.254.169.254/32", 53),
        ("169.254.20.10/32", 53),
        (contract.GOOGLE_APIS_CIDR, 443),
    }
    everywhere |= {(f"169.254.169.{last}/32", port) for last in (252, 254) for port in (80, 988)}
    api_server = {(ranges.nodes_cidr, 443), (ranges.services_cidr, 443)}
    database = {(ranges.database_cidr, PORT_OF_PROXY if platform.database else 5432)}
    own = {
        contract.NAMESPACE_BATCH: database,
        contract.NAMESPACE_MONITORING: api_server | (database if platform.database else set()),
    }
    for namespace in contract.KSA_NAMESPACES.values():
        assert opened(env, namespace) == everywhere | own.get(namespace, api_server), namespace


def test_what_google_apis_resolve_to_is_what_policies_admit(env: str) -> None:
    """The zone of the VPC and the policies of the pods are written apart; one without the other
    cuts every pod off.
    """
    resources = network.resources(environments.load(env))
    records = {}
    for r in resources:
        if r.kind == "google_dns_record_set":
            records[r.arguments["name"]] = r.arguments
    assert records["*.googleapis.com."]["rrdatas"] == ["private.googleapis.com."]
    addresses = records["private.googleapis.com."]["rrdatas"]
    assert isinstance(addresses, list) and len(addresses) == 4
    assert all(
        ip_address(address) in ip_network(contract.GOOGLE_APIS_CIDR) for address in addresses
    )


def reaches(env: str, here: dict[str, str], there: dict[str, str]) -> bool:
    """Whether a pod of training with the labels `here` may open a connection to one with those of
    `there`.
    """
    found = [policy["spec"] for policy in policies(env, contract.NAMESPACE_TRAINING)]
    return _allowed(found, "egress", "to", here, there) and _allowed(
        found, "ingress", "from", there, here
    )


def _allowed(
    found: list[dict[str, Any]],
    way: str,
    peers: str,
    own: dict[str, str],
    other: dict[str, str],
) -> bool:
    rules = [
        rule for spec in found if _selects(spec["podSelector"], own) for rule in spec.get(way) or ()
    ]
    return any(
        _selects(peer["podSelector"], other)
        for rule in rules
        for peer in rule[peers]
        if "podSelector" in peer and "namespaceSelector" not in peer
    )


def _selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    assert set(selector) <= {"matchLabels"}, "this test reads no expressions"
    return selector.get("matchLabels", {}).items() <= labels.items()


def test_pods_of_a_gang_reach_each_other_and_no_pod_of_another_run(env: str) -> None:
    pods = {}
    for body, template in workloads(env):
        if body["metadata"]["namespace"] == contract.NAMESPACE_TRAINING:
            pods[body["metadata"]["labels"][LABEL_NAME]] = (
                body["kind"],
                template["metadata"]["labels"],
            )
    assert {"train-gang", "train-sweep"} <= pods.keys()
    for name, (kind, labels) in pods.items():
        for other, (_, their) in pods.items():
            assert reaches(env, labels, their) == (
                name == other and (kind == "JobSet" or name == "train-elastic")
            ), f"{name} -> {other}"


def test_the_mover_is_called_by_nothing_and_reaches_no_database(env: str) -> None:
    (labels,) = (
        t["metadata"]["labels"] for b, t in workloads(env) if b["metadata"]["name"] == "mover"
    )
    its = []
    for p in policies(env, contract.NAMESPACE_MONITORING):
        if _selects(p["spec"]["podSelector"], labels):
            its.append(p["spec"])
    assert not any(spec.get("ingress") for spec in its)
    ranges = load(env).network
    outside = {way for way in ways(its) if not ip_network(way[0]).subnet_of(LINK_LOCAL)}
    assert outside == {
        (cidr, 443) for cidr in (ranges.nodes_cidr, ranges.services_cidr, contract.GOOGLE_APIS_CIDR)
    }


def test_nothing_reaches_batch_pods(env: str) -> None:
    assert not any(
        policy["spec"].get("ingress") for policy in policies(env, contract.NAMESPACE_BATCH)
    )


def test_each_run_has_a_key_of_its_own_where_checkpoints_are_signed(env: str) -> None:
    for body, template in workloads(env):
        spec = template["spec"]
        secrets = {
            v["name"]: v["secret"]["secretName"] for v in spec.get("volumes", []) if "secret" in v
        }
        main = next(c for c in spec["containers"] if c["name"] == "main")
        given = {v["name"]: v.get("value") for v in main["env"]}.get(ENV_KEY_FILE)
        name = body["metadata"]["labels"][LABEL_NAME]
        reads = ("batch-drain", "batch-steady", "server-base", "server-overflow")
        run = name if name.startswith("train-") else "train-gang" if name in reads else ""
        if not (run and load(env).security.signed_checkpoints):
            assert given is None and "run-key" not in secrets
            continue
        mounts = {m["name"]: m["mountPath"] for m in main["volumeMounts"]}
        assert secrets["run-key"] == f"run-key-{run}" and given == f"{mounts['run-key']}/key"
