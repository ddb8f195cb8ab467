"""Doctor, leftovers and bootstrap, against a gcloud that answers from a table."""

from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.support.checks import Status, examine
from holdfast.support.checks import show as show_doctor
from holdfast.support.errors import InputError
from holdfast.vocabulary.exit_codes import EXIT_FINDINGS
from holdfast.vocabulary.machines import ACCELERATORS, MACHINE_TYPES
from infra.__main__ import app as platform
from infra.contract.names import LABEL_RUN
from infra.environments import Environment
from infra.environments.schema import AcceleratorCap, Budget, ExistingNetwork
from infra.ops import leftovers
from infra.ops.doctor import LISTED_AGENTS, OF_THE_PROJECT
from infra.ops.show import leftovers as show_leftovers
from infra.specs import resources
from infra.specs.encryption import agent
from infra.specs.network import APIS
from tests.infra.ops.google import Gcloud
from tests.infra.samples import EXAMPLE, make_shared_network

QUOTA = ("GPU quota", "GPU quota of all regions")
READ_ONLY = {"list", "describe", "get-iam-policy"}
BUDGET = Budget(billing_account="012345-6789AB-CDEF01", monthly_usd=1_000)
ENVIRONMENT = replace(EXAMPLE, state_bucket="acme-state", budget=BUDGET)


def quotas(limit: float, *metrics: str) -> dict[str, Any]:
    return {"quotas": [{"metric": metric, "limit": limit} for metric in metrics]}


@pytest.fixture
def healthy(gcloud: Gcloud) -> Gcloud:
    """A project in which everything is there."""
    gcloud.answer("auth list", "someone@example.org")
    gcloud.answer("projects describe", {"projectNumber": EXAMPLE.project_number})
    gcloud.answer("services list", [{"config": {"name": f"{api}.googleapis.com"}} for api in APIS])
    gpus = ("NVIDIA_L4_GPUS", "NVIDIA_A100_GPUS")
    metrics = (*gpus, *(f"PREEMPTIBLE_{name}" for name in gpus))
    gcloud.answer("compute regions describe", quotas(64.0, *metrics))
    gcloud.answer("compute project-info describe", quotas(256.0, "GPUS_ALL_REGIONS"))
    sold = []
    for p in EXAMPLE.pools():
        for zone in EXAMPLE.zones:
            sold.append({"name": p.accelerator, "zone": f"z/{zone}"})
    gcloud.answer("compute accelerator-types list", sold)
    gcloud.answer("compute networks list", [])
    gcloud.answer("storage buckets describe", {"name": "acme-state"})
    agents = [agent(EXAMPLE, service) for service in LISTED_AGENTS]
    gcloud.answer("projects get-iam-policy", {"bindings": [{"role": "roles/x", "members": agents}]})
    gcloud.answer("billing accounts describe", {"currencyCode": "USD"})
    return gcloud


def verdicts(
    *names: str, environment: Environment = ENVIRONMENT
) -> dict[str, tuple[Status, str, str]]:
    """Return the verdicts of the checks with these names, or of all."""
    checks = []
    for check in OF_THE_PROJECT:
        if check[0] in names or not names:
            checks.append(check)
    results: dict[str, tuple[Status, str, str]] = {}
    for c in examine(environment, checks):
        results[c.name] = (c.verdict, c.found, c.fix)
    return results


def test_doctor_finds_nothing_wrong_in_a_healthy_project_and_only_reads(healthy: Gcloud) -> None:
    assert {verdict for verdict, _, _ in verdicts().values()} == {Status.OK}
    for call in healthy.calls():
        assert READ_ONLY & set(call[:4]), call


SUBNET = {
    "ipCidrRange": EXAMPLE.network.nodes_cidr,
    "privateIpGoogleAccess": True,
    "secondaryIpRanges": [
        {"rangeName": "pods", "ipCidrRange": EXAMPLE.network.pods_cidr},
        {"rangeName": "services", "ipCidrRange": EXAMPLE.network.services_cidr},
    ],
}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (SUBNET, "gpu as stated"),
        (SUBNET | {"ipCidrRange": "10.0.0.0/24"}, "nodes_cidr 10.0.0.0/24, not"),
        (SUBNET | {"secondaryIpRanges": []}, "pods_cidr missing, not"),
        (SUBNET | {"privateIpGoogleAccess": False}, "Private Google Access missing"),
    ],
)
def test_a_subnet_is_compared_with_the_environment(
    healthy: Gcloud,
    found: dict[str, Any],
    words: str,
) -> None:
    healthy.answer("compute networks subnets describe", found)
    verdict, shown, _ = verdicts("network", environment=make_shared_network())["network"]
    assert words in shown
    assert (verdict is Status.OK) == (found is SUBNET)
    assert any("--project=acme-host" in call or "acme-host" in call for call in healthy.calls())


def make_own_peering(environment: Environment) -> Environment:
    """Return an environment that creates the peering in a VPC of another team in its project."""
    project = f"projects/{environment.project}"
    existing = ExistingNetwork(
        network=f"{project}/global/networks/shared",
        subnet=f"{project}/regions/{environment.region}/subnetworks/gpu",
        creates=("managed-services",),
    )
    return replace(environment, network=replace(environment.network, existing=existing))


@pytest.mark.parametrize(
    ("ranges", "verdict"),
    [
        ([], Status.OK),
        (["company-services"], Status.BROKEN),
        ([f"{EXAMPLE.stem}-managed-services"], Status.OK),
    ],
)
def test_existing_peering_is_found_first(
    healthy: Gcloud, ranges: list[str], verdict: Status
) -> None:
    answer = [{"reservedPeeringRanges": ranges}] if ranges else []
    healthy.answer("services vpc-peerings list", answer)
    checked = verdicts("peering", environment=make_own_peering(ENVIRONMENT))["peering"]
    assert checked[0] is verdict
    if verdict is Status.BROKEN:
        assert "company-services" in checked[1]
        assert "network.existing.creates" in checked[2]


def test_peering_update_is_forced_in_own_network_only() -> None:
    for environment, forced in ((ENVIRONMENT, True), (make_own_peering(ENVIRONMENT), False)):
        kind = "google_service_networking_connection"
        (connection,) = [item for item in resources(environment) if item.kind == kind]
        assert connection.arguments["update_on_creation_fail"] is forced


def test_leftovers_in_a_shared_network_are_ours_only(empty: Gcloud) -> None:
    empty.answer("compute firewall-rules list", [{"name": "gke-holdfast-example-1-all"}])
    items = leftovers.find(make_shared_network())
    assert [item.name for item in items] == ["gke-holdfast-example-1-all"]
    assert "--project=acme-host" in items[0].remove
    filters = []
    for call in empty.calls():
        for word in call:
            if word.startswith("--filter"):
                filters.append(word)
    for text in filters:
        assert "network~/holdfast-example$" not in text
    assert "--filter=subnetwork~/gpu$" in filters
    assert "--filter=network~/shared$ AND name~^gke-holdfast-example-" in filters


@pytest.mark.parametrize(
    ("words", "answer", "check", "word"),
    [
        ("auth list", "", "credentials", "gcloud auth login"),
        ("projects describe", {"projectNumber": "42"}, "project", 'project_number="42"'),
        ("services list", [], "APIs", "cloudresourcemanager"),
        ("compute regions describe", quotas(0.0, "NVIDIA_L4_GPUS"), QUOTA[0], "more quota"),
        (
            "compute project-info describe",
            quotas(0.0, "GPUS_ALL_REGIONS"),
            QUOTA[1],
            "GPUS_ALL_REGIONS",
        ),
        ("compute accelerator-types list", [], "GPU zones", "change zones"),
        ("projects get-iam-policy", {"bindings": []}, "service agents", "make bootstrap"),
        ("billing accounts describe", {"currencyCode": "EUR"}, "budget currency", 'currency="EUR"'),
    ],
)
def test_doctor_says_how_to_fix_what_is_broken(
    healthy: Gcloud,
    words: str,
    answer: Any,
    check: str,
    word: str,
) -> None:
    healthy.answer(words, answer)
    verdict, _, fix = verdicts(check)[check]
    assert verdict is Status.BROKEN
    assert word in fix


def test_doctor_does_not_judge_where_it_has_no_access(
    gcloud: Gcloud, capsys: pytest.CaptureFixture[str]
) -> None:
    of_project = [check for check in OF_THE_PROJECT if check[0] == "project"]
    checks = list(examine(ENVIRONMENT, of_project))
    assert checks[0].verdict is Status.UNKNOWN
    assert "permission denied" in checks[0].found
    assert show_doctor(checks, as_json=True) == 3
    assert '"not judged"' in capsys.readouterr().out


def with_gpus(accelerator: str, machine_type: str, gpus: int) -> Environment:
    """Returns an environment with two Spot machines of this type and a cap of 24 GPUs, in a zone
    that need not sell them.
    """
    group = next(g for g in EXAMPLE.groups if g.name == "spot-a100")
    group = replace(
        group,
        accelerator=accelerator,
        machine_types=(machine_type,),
        gpus_per_node=gpus,
        max_nodes=2,
    )
    caps = (AcceleratorCap(accelerator=accelerator, max_gpus=24),)
    provisioned = replace(EXAMPLE.auto_provisioning, accelerators=caps)
    return replace(EXAMPLE, groups=(EXAMPLE.groups[0], group), auto_provisioning=provisioned)


# Public texts name these; none has the memory of H100 and H200 in it, as their label has.
PREEMPTIBLE = {
    "nvidia-l4": "PREEMPTIBLE_NVIDIA_L4_GPUS",
    "nvidia-tesla-a100": "PREEMPTIBLE_NVIDIA_A100_GPUS",
    "nvidia-a100-80gb": "PREEMPTIBLE_NVIDIA_A100_80GB_GPUS",
    "nvidia-h100-80gb": "PREEMPTIBLE_NVIDIA_H100_GPUS",
    "nvidia-h200-141gb": "PREEMPTIBLE_NVIDIA_H200_GPUS",
    "nvidia-b200": "PREEMPTIBLE_NVIDIA_B200_GPUS",
    "nvidia-rtx-pro-6000": "PREEMPTIBLE_NVIDIA_RTX_PRO_6000_GPUS",
    "nvidia-tesla-t4": "PREEMPTIBLE_NVIDIA_T4_GPUS",
}


@pytest.mark.parametrize("accelerator", ACCELERATORS)
def test_accelerator_quotas_include_auto_provisioning(gcloud: Gcloud, accelerator: str) -> None:
    machines = [m for m in MACHINE_TYPES.values() if m.accelerator == accelerator]
    machine = max(machines, key=lambda m: m.gpus)
    environment = with_gpus(accelerator, machine.name, machine.gpus)
    cap = max(24, 2 * machine.gpus)
    for limit, verdict in ((cap, Status.OK), (cap - 1, Status.BROKEN)):
        gcloud.answer("compute regions describe", quotas(limit, PREEMPTIBLE[accelerator]))
        gcloud.answer("compute project-info describe", quotas(limit, "GPUS_ALL_REGIONS"))
        checks = verdicts(*QUOTA, environment=environment)
        assert [checks[name][0] for name in QUOTA] == [verdict, verdict], checks


def test_a_figure_that_google_does_not_list_is_not_taken_for_zero(healthy: Gcloud) -> None:
    healthy.answer("compute regions describe", quotas(64.0, "NVIDIA_L4_GPUS"))
    healthy.answer("compute project-info describe", quotas(0.0))
    checks = verdicts(*QUOTA)
    assert [checks[name][0] for name in QUOTA] == [Status.UNKNOWN, Status.UNKNOWN]
    assert "PREEMPTIBLE_NVIDIA_A100_GPUS for 40" in checks["GPU quota"][1]


@pytest.mark.parametrize(
    ("metric", "needed"),
    [
        # 3 system nodes of 4 vCPUs and 8 of 8 vCPUs without GPUs.
        ("CPUS", 12 + 8 * 8),
        ("INSTANCES", 131),
        ("SSD_TOTAL_GB", 13_100),
        # Serving, Spot in three sizes, and 8 on demand for jobs.
        ("G2_CPUS", 4 * 8 + 8 * (8 + 12 + 16) + 4 * 8),
        ("A2_CPUS", 528),
        ("IN_USE_ADDRESSES", 1),
    ],
)
def test_doctor_counts_what_the_environment_can_grow_to(
    healthy: Gcloud, metric: str, needed: int
) -> None:
    for limit, verdict in ((needed, Status.OK), (needed - 1, Status.BROKEN)):
        healthy.answer("compute regions describe", quotas(limit, metric))
        checked = verdicts("machine quota")["machine quota"]
        assert checked[0] is verdict, checked
    assert f"{metric} {needed - 1} of {needed}" in checked[1]


def test_doctor_finds_a_project_without_room_for_a_network(healthy: Gcloud) -> None:
    full = {"quotas": [{"metric": "NETWORKS", "limit": 5, "usage": 5}]}
    healthy.answer("compute project-info describe", full)
    assert verdicts("network quota")["network quota"][0] is Status.BROKEN
    healthy.answer("compute networks list", [{"name": EXAMPLE.stem}])
    assert verdicts("network quota")["network quota"][0] is Status.OK


@pytest.fixture
def empty(gcloud: Gcloud) -> Gcloud:
    """A project in which nothing is left."""
    for source in (*leftovers.SOURCES, *leftovers.SOURCES_OF_RUN):
        gcloud.answer(f"{source.command} list", [])
    return gcloud


DISK = {"name": "pvc-1", "zone": "https://x/zones/us-central1-a"}


def test_leftovers_tells_what_bills_and_how_to_remove_it(
    empty: Gcloud, capsys: pytest.CaptureFixture[str]
) -> None:
    empty.answer("compute disks", [DISK])
    empty.answer("compute firewall-rules", [{"name": "gke-x-all"}])
    resources = leftovers.find(EXAMPLE)
    assert [(f.kind, f.bills) for f in resources] == [("disk", True), ("firewall rule", False)]
    project = EXAMPLE.project
    assert (
        resources[0].remove
        == f"gcloud compute disks delete pvc-1 --zone=us-central1-a --project={project}"
    )
    assert show_leftovers(resources, as_json=False) == EXIT_FINDINGS
    assert "1 of them bill" in capsys.readouterr().out
    for call in empty.calls():
        assert "list" in call
    assert show_leftovers([], as_json=True) == 0


def test_leftovers_are_found_by_label_with_their_location(empty: Gcloud) -> None:
    empty.answer("compute disks list", [DISK])
    empty.answer(
        "container clusters list", [{"name": "holdfast-example", "location": "us-central1"}]
    )
    empty.answer("sql instances list", [{"name": "db", "region": "us-central1"}])
    empty.answer("storage buckets list", [{"storage_url": "gs://b/", "location": "US"}])
    assert [" ".join(item.remove.split()[1:-1]) for item in leftovers.find(EXAMPLE, "r-1")] == [
        "container clusters delete holdfast-example --location=us-central1",
        "compute disks delete pvc-1 --zone=us-central1-a",
        "sql instances delete db",
        "storage rm --recursive gs://b/",
    ]
    filters = []
    for call in empty.calls():
        for w in call:
            if w.startswith("--filter"):
                filters.append(w)
    assert len(filters) == len(leftovers.SOURCES_OF_RUN)
    for word in filters:
        assert f"abels.{LABEL_RUN}=r-1" in word


def test_leftovers_are_removed_and_listed_again(empty: Gcloud) -> None:
    empty.answer("storage buckets list", [{"storage_url": "gs://b/"}])
    empty.refuse("storage rm", "ERROR: locked")
    run = CliRunner()
    words = ["leftovers", "example", "--remove"]
    with pytest.raises(InputError, match="--run RUN --remove"):
        run.invoke(platform, words, catch_exceptions=False)
    assert not empty.calls()
    done = run.invoke(platform, [*words, "--run", "r-1"], catch_exceptions=False)
    assert done.exit_code == EXIT_FINDINGS
    assert "locked" in done.output
    assert "1 left" in done.output
    assert [
        "storage",
        "rm",
        "--recursive",
        "gs://b/",
        f"--project={EXAMPLE.project}",
        "--quiet",
    ] in empty.calls()
    empty.answer("storage buckets list", [])
    assert run.invoke(platform, [*words, "--run", "r-1"]).exit_code == 0
