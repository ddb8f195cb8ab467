"""What stops a proof before anything starts, what its commands are, and what its label is on."""

import json
import sys
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer.main

from holdfast.contract.errors import InputError, Unjudged
from holdfast.contract.exit_codes import EXIT_STOPPED
from holdfast.place import prices
from infra.__main__ import app as platform
from infra.contract.names import LABEL_RUN
from infra.environments import Environment
from infra.proof import cli, janitor, rates, steps
from infra.proof.estimate import estimate
from infra.specs import resources
from tests.infra.ops.google import Gcloud
from tests.infra.samples import EXAMPLE
from workloads.__main__ import app as work

TODAY = date(2026, 11, 22)
SPOT = EXAMPLE.pool("spot-l4-g2-standard-8")
APPS = {"infra": platform, "workloads": work}


def refuse_all(gcloud: Gcloud) -> None:
    """Nothing is deployed yet."""
    gcloud.refuse("container clusters describe", "NOT_FOUND: no such cluster")
    gcloud.refuse("storage buckets describe", "404: no such bucket")


def test_what_may_cost_more_than_allowed_does_not_start(gcloud: Gcloud, tmp_path: Path) -> None:
    refuse_all(gcloud)
    assert cli.prove(EXAMPLE, max_usd=5, yes=True, as_json=False, out=tmp_path / "p") == EXIT_STOPPED
    assert not (tmp_path / "p").exists()


def test_production_is_not_proven(gcloud: Gcloud, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refuse_all(gcloud)
    production = replace(EXAMPLE, production=True, allow_drills=False)
    with pytest.raises(InputError):  # example lacks what the rules ask of production
        cli.prove(production, max_usd=1_000, yes=True, as_json=False, out=tmp_path)


def test_a_proof_destroys_nothing_that_was_there_before(
    gcloud: Gcloud, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gcloud.answer("container clusters describe", {"name": EXAMPLE.cluster_name})
    assert cli.prove(EXAMPLE, max_usd=1_000, yes=True, as_json=False, out=tmp_path / "p") == EXIT_STOPPED
    assert "is there already" in capsys.readouterr().err
    assert not (tmp_path / "p").exists()


def test_nobody_is_asked_where_nobody_can_answer(gcloud: Gcloud, tmp_path: Path) -> None:
    refuse_all(gcloud)
    with pytest.raises(InputError, match="no terminal"):
        cli.prove(EXAMPLE, max_usd=1_000, yes=False, as_json=False, out=tmp_path)


def test_the_estimate_counts_the_machines_of_the_samples_and_what_bills_beside_them() -> None:
    table, pool = rates.load(today=TODAY), EXAMPLE.pool("spot-a100")
    found = {item.what: item.usd for item in estimate(EXAMPLE, pool, prices.load(), table, hours=1.0)}
    a100 = prices.load().quote(prices.MACHINE_TYPES[pool.machine_type], EXAMPLE.region, pool.capacity)
    disk = pool.disk_gib * table.rows["disk"].usd
    assert a100 and found["3 x a2-highgpu-1g Spot (spot-a100)"] == pytest.approx(3 * (a100.usd + disk))
    fee = rates.MARGIN * table.rows["cluster"].usd  # the page has no date of these years
    assert found["cluster management"] == fee and any("database" in what for what in found)
    assert found["1 x e2-standard-4 on-demand (loader of the batch)"] > 4 * table.rows["e2"].usd


def test_a_standby_and_a_dearer_region_raise_the_bound(tmp_path: Path) -> None:
    assert EXAMPLE.database
    table = rates.load()
    usd = {what: _database_usd(environment, table) for what, environment in (
        ("alone", EXAMPLE),
        ("standby", replace(EXAMPLE, database=replace(EXAMPLE.database, highly_available=True))),
        ("far", replace(EXAMPLE, region="europe-west4", zones=("europe-west4-a",))),
    )}  # fmt: skip
    assert usd["standby"] == pytest.approx(2 * usd["alone"]) and usd["far"] == pytest.approx(1.6 * usd["alone"])


def _database_usd(environment: Environment, table: rates.Rates) -> float:
    found = estimate(environment, SPOT, prices.load(), table, hours=1.0)
    return next(item.usd for item in found if item.what.startswith("database"))


def test_what_has_no_price_has_no_bound(tmp_path: Path) -> None:
    assert EXAMPLE.database
    shared = replace(EXAMPLE, database=replace(EXAMPLE.database, tier="db-g1-small"))
    with pytest.raises(Unjudged, match="no price of database db-g1-small"):
        estimate(shared, SPOT, prices.load(), rates.load())
    with pytest.raises(Unjudged, match="no price of t2a"):
        rates.load().usd("t2a", EXAMPLE.region)


def test_each_price_has_its_source_and_a_table_without_one_is_refused(tmp_path: Path) -> None:
    body = json.loads(rates.TABLE.read_text())
    families = {machine.split("-")[0] for machine, found in prices.MACHINE_TYPES.items() if not found.gpus}
    assert families <= {row["part"] for row in body["rows"]}, "every machine without a GPU has a price"
    assert {row["part"] for row in body["rows"] if not row["as_of"]} == {"sql disk"}, "the others say of when they are"
    body["rows"][0]["source"] = ""
    (tmp_path / "prices.json").write_text(json.dumps(body))
    with pytest.raises(InputError, match="no source: cluster"):
        rates.load(tmp_path / "prices.json")


def test_a_price_that_is_undated_or_old_is_counted_higher_and_named(
    gcloud: Gcloud, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now, later = rates.load(today=TODAY), rates.load(today=TODAY + timedelta(days=rates.STALE_DAYS))
    assert now.usd("e2", "us-central1") == now.rows["e2"].usd
    assert later.usd("e2", "us-central1") == pytest.approx(1.25 * now.rows["e2"].usd)
    assert now.doubtful == ["cluster", "sql disk"] and "e2" in later.doubtful
    refuse_all(gcloud)
    assert cli.prove(EXAMPLE, max_usd=1, yes=True, as_json=False, out=tmp_path / "p") == EXIT_STOPPED
    shown = capsys.readouterr().err
    assert (
        "counted 25% higher, for they have no date or are older than 365 days: g2-standard-8 on Spot, cluster" in shown
    )
    with pytest.raises(InputError, match="dated after today: nat"):
        rates.load(today=date(2026, 9, 1))


def test_every_command_of_a_proof_is_one_that_there_is(tmp_path: Path) -> None:
    """Parsed by the commands themselves: an option that was renamed fails here, not after an hour of a proof."""
    run = steps.Run(pool=SPOT, folder=tmp_path, usd_per_hour=5.0)
    ours = [s for s in (*steps.proof(EXAMPLE, run), *steps.clean_up(EXAMPLE)) if s.command[0] == sys.executable]
    assert len(ours) >= 8
    for step in ours:
        program, *words = step.command[2:]
        command: Any = typer.main.get_command(APPS[program])
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        assert command.make_context(step.name, list(words)).params


def test_whatever_bears_labels_bears_that_of_the_run() -> None:
    labelled = 0
    for resource in resources(EXAMPLE.of_run("r-1")):
        for key in ("labels", "resource_labels", "user_labels"):
            labels = resource.arguments.get(key)
            if isinstance(labels, dict) and resource.kind != "google_container_node_pool":
                assert labels[LABEL_RUN] == "r-1", resource.address
                labelled += 1
    assert labelled > 8


def test_the_janitor_removes_by_label_only_and_names_the_place(gcloud: Gcloud) -> None:
    for words in (
        "container clusters list",
        "sql instances list",
        "pubsub",
        "artifacts",
        "storage",
        "compute instances",
    ):
        gcloud.answer(words, [])
    gcloud.answer("compute disks list", [{"name": "pvc-1", "zone": "https://x/zones/us-central1-a"}])
    gcloud.answer("container clusters list", [{"name": "holdfast-example", "location": "us-central1"}])
    found = list(janitor.labelled(EXAMPLE))
    assert found[1][:5] == ("compute", "disks", "delete", "pvc-1", "--zone=us-central1-a")
    assert found[0][:5] == ("container", "clusters", "delete", "holdfast-example", "--location=us-central1")
    asked = [w for call in gcloud.calls() for w in call if w.startswith("--filter")]
    assert len(asked) == len(janitor.SOURCES) and all(f".{LABEL_RUN}:*" in word for word in asked)


def test_a_removal_that_is_refused_is_named(gcloud: Gcloud) -> None:
    gcloud.refuse("storage rm", "ERROR: locked")
    [refused] = janitor.remove([("storage", "rm", "gs://x")])
    assert "locked" in refused
    assert isinstance(gcloud, Gcloud)
