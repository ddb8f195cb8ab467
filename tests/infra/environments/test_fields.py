"""Every field refuses a wrong value and says which field, what it got, what is allowed."""

import importlib
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.support.errors import InputError
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.pools import Role
from infra import environments
from infra.environments import load, placeholders
from infra.environments.schema import (
    AcceleratorCap,
    AuthorizedRange,
    Budget,
    Environment,
    ExistingNetwork,
    Freeze,
    NodeGroup,
    Quota,
    Registry,
    Reservation,
    Run,
    Team,
)
from tests.infra.samples import DELIVERY, EXAMPLE, make_hardened

# Where the sections of an environment lie; one sample of each repeatable one.
SERVING = EXAMPLE.serving
BUDGET = Budget(billing_account="012345-6789AB-CDEF01", monthly_usd=100)
RANGE = AuthorizedRange(name="office", cidr="10.50.0.0/28")
RUN = Run(name="train")
RESERVED = Reservation(name="a100-q4", usd_per_hour=1.5)
TEAM = Team(name="vision")
CHANNELS = tuple(f"projects/acme/notificationChannels/{number}" for number in range(16))
QUOTA = Quota(source="spot-l4", gpus=4)
CAP = AcceleratorCap(accelerator="nvidia-l4", max_gpus=8)
SPOT = next(g for g in EXAMPLE.groups if g.name == "spot-l4")
ONE_H100 = {
    "machine_types": ("a3-highgpu-1g",),
    "accelerator": "nvidia-h100-80gb",
    "gpus_per_node": 1,
}
TWO_A100 = {
    "machine_types": ("a2-highgpu-2g",),
    "accelerator": "nvidia-tesla-a100",
    "gpus_per_node": 2,
}
FREEZE = Freeze(
    name="launch",
    starts="2026-12-01T00:00:00Z",
    ends="2027-01-15T00:00:00Z",
)
FULL_FREEZES = tuple(
    Freeze(
        name=f"freeze-{number}",
        starts="2026-12-01T00:00:00Z",
        ends="2026-12-02T00:00:00Z",
        scope="NO_UPGRADES",
    )
    for number in range(4)
)
FLEX = next(g for g in EXAMPLE.groups if g.capacity is Capacity.FLEX_START)
SYSTEM = next(g for g in EXAMPLE.groups if g.role is Role.SYSTEM)

Make = Callable[[], object]


def on(section: Any, **wrong: Any) -> Make:
    return lambda: replace(section, **wrong)


def wrong(section: Any, **fields: Any) -> list[tuple[str, str, Make]]:
    """Returns a row for each field: it alone is wrong, and the error must name it."""
    cases: list[tuple[str, str, Make]] = []
    for name, value in fields.items():
        title = f"{type(section).__name__}.{name}"
        cases.append((title, name, on(section, **{name: value})))
    return cases


ENV = EXAMPLE
NET = EXAMPLE.network
CLUSTER = EXAMPLE.cluster
NAP = EXAMPLE.auto_provisioning
SECURITY = EXAMPLE.security
REGISTRY = Registry(
    name="ngc",
    upstream="https://nvcr.io",
    user="$oauthtoken",
    password="projects/acme/secrets/ngc/versions/1",
)
STORAGE = EXAMPLE.storage
QUEUE = EXAMPLE.queue
ALERTS = EXAMPLE.alerts
DATABASE = EXAMPLE.database

EXISTING = ExistingNetwork(
    network="projects/acme-host/global/networks/shared",
    subnet="projects/acme-host/regions/us-central1/subnetworks/gpu",
)
SHARED = replace(NET, existing=EXISTING)
OF_OTHERS = replace(EXISTING, creates=("nat",))
MANY = tuple(Run(name=f"r{n}", indices=12, read_by=("batch", "server")) for n in range(40))

WRONG: list[tuple[str, str, Make]] = [
    # class.field, a word of the message, how to get there
    ("Environment.name_prefix", "service account id", on(ENV, name_prefix="a-much-too-long-one")),
    ("Environment.groups", "role system", on(ENV, groups=(SPOT,))),
    (
        "Environment.quotas",
        "quotas[spot-h100]",
        on(ENV, quotas=(Quota(source="spot-h100", gpus=1),)),
    ),
    ("Environment.egress", "without https://", on(ENV, egress=("https://huggingface.co",))),
    ("Environment.egress", "egress[0.0.0.0/0]", on(ENV, egress=("0.0.0.0/0",))),
    ("Environment.egress", "huggingface.co or *.wandb.ai", on(ENV, egress=("wandb.*.ai",))),
    ("Team.egress", "teams[vision].egress", on(TEAM, egress=("Data.example.org",))),
    ("Environment.labels", "labels[Team]", on(ENV, labels=(("Team", "ml"),))),
    ("Network.services_cidr", "overlaps pods_cidr", on(NET, services_cidr="10.20.0.0/22")),
    (
        "Network.existing",
        "network.existing.subnet",
        on(
            ENV,
            region="us-east1",
            zones=("us-east1-b",),
            network=SHARED,
        ),
    ),
    (
        "ExistingNetwork.creates",
        "network.existing.creates",
        on(ENV, network=replace(NET, existing=OF_OTHERS)),
    ),
    ("ExistingNetwork.creates", "nat", on(EXISTING, creates=("natt",))),
    ("AuthorizedRange.name", "a name", on(RANGE, name="")),
    ("Cluster.maintenance_end", "hours", on(CLUSTER, maintenance_end="2026-01-01T03:00:00Z")),
    ("NodeGroup.name", "groups[].name", on(SPOT, name="Spot_L4")),
    ("NodeGroup.capacity", "spot", on(SPOT, capacity="spot+flex-start")),
    ("NodeGroup.capacity", "must not be preempted", on(SYSTEM, capacity=Capacity.SPOT)),
    ("NodeGroup.min_nodes", "0 for flex-start", on(FLEX, min_nodes=1)),
    ("NodeGroup.machine_types", "g2-standard-8 has 1 x nvidia-l4", on(SPOT, gpus_per_node=2)),
    ("NodeGroup.accelerator", "nvidia-l4", on(SPOT, accelerator="nvidia-l40")),
    (
        "NodeGroup.gpus_per_node",
        "g2-standard-24",
        on(SPOT, machine_types=("g2-standard-8",), gpus_per_node=2),
    ),
    ("NodeGroup.disk_type", "pd-balanced", on(SPOT, disk_type="pd-balance")),
    ("NodeGroup.evict_untolerating", "Spot groups only", on(SYSTEM, evict_untolerating=True)),
    (
        "NodeGroup.capacity",
        "flex-start, queued, reserved, spot: Google does not sell it otherwise",
        on(SPOT, **ONE_H100, capacity=Capacity.ON_DEMAND),
    ),
    (
        "NodeGroup.accelerator",
        "its cards need GPUDirect-TCPXO",
        on(SPOT, accelerator="nvidia-h100-mega-80gb"),
    ),
    (
        "NodeGroup.machine_types",
        "no a3-megagpu-8g here: its cards need GPUDirect-TCPXO",
        on(SPOT, machine_types=("a3-megagpu-8g",)),
    ),
    (
        "NodeGroup.machine_types",
        "no a4x-highgpu-4g here: it has Arm CPUs",
        on(SPOT, machine_types=("a4x-highgpu-4g",)),
    ),
    ("AcceleratorCap.accelerator", "it has Arm CPUs", on(CAP, accelerator="nvidia-gb200")),
    (
        "NodeGroup.compact",
        "A2, A3, A4, G2 and G4",
        on(
            SPOT,
            machine_types=("n1-standard-4",),
            accelerator="nvidia-tesla-t4",
            gpus_per_node=1,
            compact=True,
            zones=("us-central1-a",),
        ),
    ),
    ("NodeGroup.local_ssds", "2 or 4 or 8", on(SPOT, **TWO_A100, local_ssds=3)),
    ("NodeGroup.local_ssds", "takes no local SSD", on(SYSTEM, local_ssds=1)),
    ("NodeGroup.compact", "one zone", on(SPOT, compact=True)),
    (
        "NodeGroup.compact",
        "flex-start of A3 Ultra and A4",
        on(FLEX, compact=True, zones=("us-central1-a",)),
    ),
    ("Cluster.freezes", "at most 20, and 3", on(CLUSTER, freezes=FULL_FREEZES)),
    ("Freeze.name", "freezes[].name", on(FREEZE, name="Launch")),
    ("Freeze.starts", "UTC", on(FREEZE, starts="2026-12-01")),
    ("Freeze.ends", "days", on(FREEZE, ends="2027-12-01T00:00:00Z")),
    ("Freeze.ends", "days", on(FREEZE, scope="NO_UPGRADES")),
    ("Freeze.scope", "NO_MINOR_OR_NODE_UPGRADES", on(FREEZE, scope="NO_NODE_UPGRADES")),
    ("AcceleratorCap.accelerator", "nvidia-tesla-a100", on(CAP, accelerator="nvidia.com/gpu")),
    (
        "Security.rbac_security_group",
        "gke-security-groups@",
        on(SECURITY, rbac_security_group="team@example.org"),
    ),
    (
        "Security.faulty_nodes_per_hour",
        "0 without gpu_exporter",
        on(SECURITY, gpu_exporter=False, faulty_nodes_per_hour=1),
    ),
    ("Storage.runs", "prefixes", on(STORAGE, runs=(Run(name="a", indices=2), Run(name="a-1")))),
    ("Storage.runs", "at most 90", on(STORAGE, runs=tuple(Run(name=f"r{n}") for n in range(91)))),
    ("Storage.runs", "bindings", on(STORAGE, runs=MANY)),
    ("Run.name", "storage.runs[].name", on(RUN, name="Train/..")),
    ("Run.name", "teams save there", on(RUN, name="teams")),
    ("Cluster.name", "cluster.name", on(CLUSTER, name="ML prod")),
    ("NodeGroup.reservation", "one for capacity reserved", on(SPOT, reservation=RESERVED)),
    (
        "NodeGroup.reservation",
        "one zone",
        on(SPOT, capacity=Capacity.RESERVED, reservation=RESERVED),
    ),
    ("Reservation.name", "reservation.name", on(RESERVED, name="A100")),
    ("Reservation.ends", "a day from", on(RESERVED, starts="2026-12-01", ends="2026-11-30")),
    ("Environment.teams", "teams[].name", on(ENV, teams=(TEAM, TEAM))),
    ("Environment.teams", "teams[].name", on(ENV, teams=(Team(name="default"),))),
    ("Team.name", "teams[].name", on(TEAM, name="Vision!")),
    ("Team.service_gpus", "teams[vision].service_gpus", on(TEAM, service_gpus=-1)),
    ("Team.alert_emails", "teams.alert_emails", on(TEAM, alert_emails=("vision",))),
    ("Team.alert_channels", "teams.alert_channels", on(TEAM, alert_channels=("#vision",))),
    ("Team.members", "teams.members", on(TEAM, members="group:vision@example.org")),
    (
        "Team.members",
        "rbac_security_group",
        on(ENV, teams=(replace(TEAM, members="vision@example.org"),)),
    ),
    ("Team.namespaces", "training", on(ENV, teams=(replace(TEAM, namespaces=("training",)),))),
    (
        "Team.quotas",
        "at most",
        on(ENV, teams=(replace(TEAM, quotas=(Quota(source="nvidia-l4", gpus=99),)),)),
    ),
    ("Team.quotas", "accelerators are", on(ENV, teams=(replace(TEAM, quotas=(QUOTA,)),))),
    ("Team.limits", "at least 4", on(TEAM, quotas=(QUOTA,), limits=(replace(QUOTA, gpus=3),))),
    ("Team.limits", "nvidia-l4", on(ENV, teams=(replace(TEAM, limits=(QUOTA,)),))),
    ("Team.budget_usd", "several namespaces", on(TEAM, budget_usd=9, namespaces=("a", "b"))),
    ("Team.budget_usd", "billing account", on(ENV, teams=(replace(TEAM, budget_usd=9),))),
    (
        "Team.alert_channels",
        "at most 16",
        on(TEAM, alert_emails=("oncall@acme.example",), alert_channels=CHANNELS),
    ),
    ("Alerts.channels", "at most 16", on(EXAMPLE.alerts, channels=CHANNELS)),
    ("Network.max_pods_per_node", "16, 32", on(EXAMPLE.network, max_pods_per_node=8)),
    ("Environment.state_bucket", "single dots", on(ENV, state_bucket="acme..state")),
    ("Environment.state_bucket", "single dots", on(ENV, state_bucket="goog-state")),
    ("Team.runs", "storage.runs", on(ENV, teams=(replace(TEAM, runs=("train",)),))),
    # For these, the message has the name of the field.
    *wrong(
        ENV,
        name="Dev!",
        project_id="My Project",
        project_number="my-project",
        region="us-central1-a",
    ),
    *wrong(
        ENV,
        zones=("europe-west4-a",),
        state_bucket="gs://state",
        spot_grace_s=45,
        enable_apis="yes",
    ),
    *wrong(ENV, production="no", allow_drills=1),
    *wrong(CAP, max_gpus=0),
    *wrong(NET, nodes_cidr="10.10.0.1/22", pods_cidr="10.20.0.0/24"),
    *wrong(
        EXISTING, network="shared", subnet="projects/other-host/regions/us-central1/subnetworks/gpu"
    ),
    *wrong(
        EXISTING,
        pods_range="Pods",
        services_range="",
        grants="yes",
    ),
    *wrong(RANGE, cidr="office"),
    *wrong(QUOTA, source="", gpus=0),
    *wrong(RUN, indices=13, read_by=("trainer",)),
    *wrong(DELIVERY, repository="https://github.com/a/b", environment="a b"),
    *wrong(DELIVERY, repository_id="acme/platform", owner_id=123456),
    *wrong(
        SPOT,
        role="trainig",
        min_nodes=9,
        max_nodes=float("inf"),
        zones=("us-central1-a", "us-central1-a"),
        disk_gib=10,
    ),
    *wrong(
        SECURITY,
        secret_manager="on",
        kms_key="projects/p",
        binary_authorization="on",
    ),
    *wrong(
        SECURITY,
        image_patterns=("docker.io/**",),
        image_policy_elsewhere=None,
        signed_kernel_modules=2,
    ),
    *wrong(
        SECURITY,
        signed_checkpoints="yes",
        gpu_exporter="on",
        faulty_nodes_per_hour=61,
        ratings_every_s=599,
    ),
    *wrong(
        STORAGE,
        allow_destroy="never",
        checkpoint_soft_delete_days=3,
        checkpoint_version_days=-1,
    ),
    *wrong(SECURITY, data_access_logs="on"),
    *wrong(
        REGISTRY,
        name="NGC",
        upstream="nvcr.io",
        user="",
        password="hunter2",
    ),
    *wrong(
        RESERVED,
        project="my project",
        starts="2026-02-31",
        usd_per_hour=0,
    ),
    *wrong(
        SERVING,
        promised_per_s=500,
        peak_per_s=-1,
        replica_per_s=float("nan"),
        base_replicas=0,
        base_most=1,
    ),
    *wrong(
        SERVING,
        overflow_most=0,
        inflight_target=0,
        sample="no",
    ),
    *wrong(
        NET,
        database_cidr="10.40.0.0",
        max_pods_per_node=100,
        authorized_ranges=(RANGE, RANGE),
        flow_logs="on",
        load_balancers_cidr="10.50.0.0/28",
        public_services="yes",
        public_keys=True,
    ),
    *wrong(
        CLUSTER,
        release_channel="REGLAR",
        min_version="v1.35",
        maintenance_start="02:00",
    ),
    *wrong(
        CLUSTER,
        maintenance_days="weekends",
        dns_endpoint_public=None,
        deletion_protection="yes",
    ),
    *wrong(
        NAP,
        max_vcpus=-1,
        max_memory_gib=float("nan"),
        accelerators=(CAP, CAP),
        disk_gib=1,
    ),
    *wrong(NAP, disk_type="pd-standard", max_nodes=0),
    *wrong(QUEUE, lanes=21),
    *wrong(
        DATABASE,
        tier="db-n1-standard-1",
        disk_gib=1,
        highly_available="yes",
        backup_days=0,
        generation=0,
    ),
    *wrong(DATABASE, deletion_protection=0),
    *wrong(
        ALERTS,
        emails=("on call@example.org",),
        channels=("slack",),
        modules=("acme-alerts",),
    ),
    *wrong(
        ALERTS,
        readers=("ml-platform@example.org",),
        runbook_base_url="http://wiki",
        on_demand_pending_s=1,
    ),
    *wrong(
        ALERTS,
        queue_wait_s=1,
        spot_pending_s=0,
        flex_pending_s=10**9,
        checkpoint_age_s=-3,
    ),
    *wrong(
        ALERTS,
        preemptions_per_hour=0,
        goodput_min=80,
        batch_oldest_s=True,
        heartbeat_s=1,
    ),
    *wrong(
        BUDGET,
        billing_account="my account",
        currency="euro",
        monthly_usd=0,
    ),
]


@pytest.mark.parametrize(("field", "word", "make"), WRONG, ids=[w[0] for w in WRONG])
def test_a_wrong_value_is_refused_with_its_field(field: str, word: str, make: Make) -> None:
    with pytest.raises(InputError) as caught:
        make()
    error = caught.value
    assert word in error.lines(), error.lines()
    assert len(error.lines().splitlines()) == 4
    assert all((error.what, error.allowed, error.fix))


def schema_fields(kind: type) -> set[str]:
    import typing

    names: set[str] = set()
    hints = typing.get_type_hints(kind)
    for field in fields(kind):
        parts = (hints[field.name], *typing.get_args(hints[field.name]))
        sections = []
        for part in parts:
            if isinstance(part, type) and is_dataclass(part):
                sections.append(part)
        names |= (
            set().union(*map(schema_fields, sections))
            if sections
            else {f"{kind.__name__}.{field.name}"}
        )
    return names


def test_table_has_every_schema_field() -> None:
    missing = schema_fields(Environment) - {field for field, _, _ in WRONG}
    assert not missing, f"a field without a test of a wrong value: {sorted(missing)}"


def test_an_unknown_environment_names_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        load("exmaple")
    assert "did you mean example?" in caught.value.fix


@pytest.fixture
def load_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Environment]:
    """Loads the text of an environment `own`."""

    def load_literal(text: str) -> Environment:
        (tmp_path / "own.py").write_text(text)
        monkeypatch.setattr(environments, "_FOLDER", tmp_path)
        monkeypatch.setattr(environments, "__path__", [str(tmp_path)])
        monkeypatch.delitem(sys.modules, "infra.environments.own", raising=False)
        importlib.invalidate_caches()
        return load("own")

    return load_literal


def test_a_wrong_value_in_a_file_is_told_with_file_line_and_field(
    load_text: Callable[[str], Environment],
) -> None:
    text = Path(environments.__file__).with_name("example.py").read_text()
    broken = text.replace('name="example"', 'name="own"').replace(
        "gpus_per_node=1", "gpus_per_node=2", 1
    )
    line = next(i for i, text in enumerate(broken.splitlines(), 1) if "gpus_per_node=2" in text)
    with pytest.raises(InputError) as caught:
        load_text(broken)
    location, field = caught.value.what.split(": ", 1)
    path, _, got = location.partition(":")
    assert path == "infra/environments/own.py"
    assert abs(int(got) - line) <= 6, "the line of the group's literal"
    assert field.startswith("groups[serving].machine_types")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "from infra.environments.schema import Tomorrow\n",
            r"own\.py:1: fields: got cannot import name 'Tomorrow'",
        ),
        (
            "ENVIRONMENT = Team()\n",
            r"own\.py:1: a name is not imported: got Team; .*fix: import Team",
        ),
        ("ENVIRONMENT = (\n    1\n    2\n)\n", r"own\.py:2: not Python: got invalid syntax"),
    ],
)
def test_a_file_that_python_refuses_is_named(
    load_text: Callable[[str], Environment],
    text: str,
    message: str,
) -> None:
    with pytest.raises(InputError, match=message):
        load_text(text)


def test_field_assigned_beside_the_environment_is_refused(
    load_text: Callable[[str], Environment],
) -> None:
    text = Path(environments.__file__).with_name("example.py").read_text()
    literal = text.replace('name="example"', 'name="own"')
    assert load_text(f'REGION = "us-central1"\nregion = REGION\n{literal}').region == "us-central1"
    match = r"own\.py: budget is assigned outside of Environment.*fix: move it to the argument"
    with pytest.raises(InputError, match=match):
        load_text(f"{literal}\nbudget = 20_000\n")


def test_placeholders_are_found_wherever_they_stand() -> None:
    assert placeholders(EXAMPLE) == []
    unsettled = replace(
        EXAMPLE,
        project_id="CHANGE-ME",
        alerts=replace(EXAMPLE.alerts, emails=("CHANGE-ME@example.org",)),
        budget=Budget(billing_account="CHANGE-ME", monthly_usd=1),
    )
    assert placeholders(unsettled) == ["project_id", "alerts.emails[0]", "budget.billing_account"]
    assert unsettled.bucket("data").startswith("change-me-")


def test_group_with_several_machine_types_has_several_pools() -> None:
    pools = []
    for p in EXAMPLE.pools():
        if p.pool_class == SPOT.name:
            pools.append(p)
    assert [p.machine_type for p in pools] == list(SPOT.machine_types)
    assert len({p.name for p in pools}) == len(pools)
    assert all({"provisioning-tier", "nvidia.com/gpu"} == {t.key for t in p.taints} for p in pools)


def test_evict_untolerating_is_a_taint_effect() -> None:
    group: NodeGroup = replace(SPOT, evict_untolerating=True)
    assert "provisioning-tier=preemptible:NoExecute" in [str(t) for t in group.taints()]


def test_the_extended_window_reaches_spot_pools_only() -> None:
    for pool in make_hardened().pools():
        assert pool.window.pod_s == (105 if pool.capacity is Capacity.SPOT else 15)


def test_auto_provisioning_offers_its_cap_minus_the_groups() -> None:
    group_gpus = sum(p.max_nodes for p in EXAMPLE.pools() if p.accelerator == "nvidia-l4")
    assert (
        EXAMPLE.quota_gpus("nvidia-l4") == EXAMPLE.auto_provisioning.cap("nvidia-l4") - group_gpus
    )
    assert replace(EXAMPLE, quotas=(QUOTA,)).quota_gpus("spot-l4") == 4
