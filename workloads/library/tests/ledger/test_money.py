"""What a useful hour costs, and where Spot stops paying."""

from pathlib import Path

import pytest

from holdfast.contract.errors import InputError
from holdfast.ledger.events import parse
from holdfast.ledger.job_ledger import job_ledgers
from holdfast.ledger.money import money, prices_of
from holdfast.ledger.receipt import receipt
from holdfast.report.cli import read_report
from holdfast.report.page import render
from workloads.library.tests import sample
from workloads.library.tests.sample import EPOCH, line

L4 = {"pool": "spot-l4", "zone": "us-central1-a", "machine_type": "g2-standard-8", "capacity": "spot"}


def test_an_undisturbed_run_pays_the_price_over_its_useful_share() -> None:
    at = prices_of("g2-standard-8", "us-central1")
    found = job_ledgers(parse(sample.encoded(sample.training("job"))).events)
    result = money(found, at)
    assert result is not None
    assert result.pays
    assert result.wasted_usd == 0
    assert result.usd_per_useful_h / result.on_demand_usd_per_useful_h == pytest.approx(at.spot / at.on_demand)


def test_evictions_make_the_useful_hour_dearer_and_the_interval_holds_it() -> None:
    at = prices_of("g2-standard-8", "us-central1")
    found = job_ledgers(parse(sample.encoded(sample.training("job", kills=sample.KILLS))).events)
    result = money(found, at)
    assert result is not None
    assert result.evictions == 6
    assert result.interval[0] < result.usd_per_useful_h < result.interval[1]
    assert result.wasted_usd > 0
    assert result.flip_per_node_h > 1


def test_a_machine_or_region_without_price_is_bad_input() -> None:
    with pytest.raises(InputError, match="machine type"):
        prices_of("e2-standard-4", "us-central1")
    with pytest.raises(InputError, match="no prices"):
        prices_of("g2-standard-8", "mars-north1")


def test_the_report_prices_what_the_node_watcher_saw_and_shows_churn_and_waits(tmp_path: Path) -> None:
    sample.write(tmp_path / "job.jsonl", sample.training("job", kills=sample.KILLS))
    nodes = [
        line(EPOCH, "node_up", "", "node", "watcher", node="a", seconds=0, **L4),
        line(EPOCH + 5, "scheduled", "job", "training", "pod-0", seconds=90, node="a", accelerator="nvidia-l4", **L4),
        line(EPOCH + 60, "node_down", "", "node", "watcher", node="a", reason="preempted", seconds=60, **L4),
    ]
    sample.write(tmp_path / "watcher.jsonl", nodes)
    report = read_report(tmp_path, None)
    assert report.answer.startswith("Spot ")
    assert "per useful hour against" in report.answer
    assert "6 evictions" in report.answer
    result = report.as_json()
    assert result["money"]["prices"]["machine"] == "g2-standard-8"
    assert [(row["pool"], row["count"]) for row in result["capacity"][0]["preemptions"]] == [("spot-l4", 1)]
    assert [(row["accelerator"], row["n"], row["p50_seconds"]) for row in result["capacity"][0]["waits"]] == [
        ("nvidia-l4", 1, 90.0)
    ]
    html = render(report)
    assert all(f'id="{heading}"' in html for heading in ("money", "capacity-1", "saves"))
    assert len(html.encode()) < 1_500_000


def test_a_price_needs_both_machine_and_region(tmp_path: Path) -> None:
    sample.write(tmp_path / "job.jsonl", sample.training("job", total=20))
    with pytest.raises(InputError, match="--machine and --region together"):
        read_report(tmp_path, None, machine="g2-standard-8")
    assert read_report(tmp_path, None, machine="g2-standard-8", region="us-central1").money is not None


def test_a_receipt_counts_what_restarts_read_where_any_read_the_memory_of_nodes() -> None:
    lines = sample.killed_and_restored("job")
    runs = job_ledgers(parse(sample.encoded(lines)).events)
    assert "restarted" not in receipt(runs, 1.0, 2.0).line(), (
        "a first start reads nothing, and others have the bucket alone"
    )
    next(each for each in lines if each["event"] == "restore" and each["step"])["source"] = "memory"
    made = receipt(job_ledgers(parse(sample.encoded(lines)).events), 1.0, 2.0)
    assert made.line().endswith("; restarted 1 times from memory, 0 from the bucket")
