"""Tests the cost of a useful hour, and where Spot stops paying."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.cost.money import find_prices, money
from holdfast.cost.receipt import receipt
from holdfast.jobs.diagnose.explain import restarts_text
from holdfast.ledger import closed_forms as forms
from holdfast.ledger.account import Restart
from holdfast.ledger.events import parse
from holdfast.ledger.job_ledger import JobLedger, job_ledgers
from holdfast.ledger.job_summary import job_summaries
from holdfast.report.cli import read_report
from holdfast.report.model import figures
from holdfast.report.page import render
from holdfast.support.errors import InputError
from holdfast.vocabulary.checkpoint_interval import find_best_interval
from workloads.library.tests import sample
from workloads.library.tests.sample import EPOCH, Line, line

L4 = {
    "pool": "spot-l4",
    "zone": "us-central1-a",
    "machine_type": "g2-standard-8",
    "capacity": "spot",
}


def ledgers(lines: list[Line]) -> list[JobLedger]:
    return job_ledgers(parse(sample.encoded(lines)).events)


def test_evictions_raise_the_useful_hour_price() -> None:
    prices = find_prices("g2-standard-8", "us-central1")
    calm = money(ledgers(sample.training("job", kills=())), prices)
    evicted = money(ledgers(sample.training("job", kills=sample.KILLS)), prices)
    assert calm
    assert evicted
    assert calm.pays
    assert calm.wasted_usd == 0
    assert calm.evictions == 0
    assert evicted.evictions == 6
    assert calm.usd_per_useful_h / calm.on_demand_usd_per_useful_h == pytest.approx(
        prices.spot / prices.on_demand
    )
    assert evicted.interval[0] < evicted.usd_per_useful_h < evicted.interval[1]
    assert evicted.wasted_usd > 0
    assert evicted.flip_per_node_h > 1


def test_the_report_shows_prices_churn_and_waits(tmp_path: Path) -> None:
    sample.write(tmp_path / "job.jsonl", sample.training("job", kills=sample.KILLS))
    nodes = [
        line(
            EPOCH,
            "node_up",
            "",
            "node",
            "watcher",
            node="a",
            seconds=0,
            **L4,
        ),
        line(
            EPOCH + 5,
            "scheduled",
            "job",
            "training",
            "pod-0",
            seconds=90,
            node="a",
            accelerator="nvidia-l4",
            **L4,
        ),
        line(
            EPOCH + 60,
            "node_down",
            "",
            "node",
            "watcher",
            node="a",
            reason="preempted",
            seconds=60,
            **L4,
        ),
    ]
    sample.write(tmp_path / "watcher.jsonl", nodes)
    report = read_report(tmp_path, None)
    assert report.answer.startswith("Spot ")
    assert "6 evictions" in report.answer
    result = report.as_json()
    assert result["money"]["prices"]["machine"] == "g2-standard-8"
    (churn,) = result["capacity"]["churn"]
    assert churn["pool"] == "spot-l4"
    assert churn["events"] == 1
    waits = []
    for row in result["capacity"]["waits"]:
        waits.append((row["accelerator"], row["n"], row["p50_seconds"]))
    assert waits == [("nvidia-l4", 1, 90.0)]
    html = render(report)
    for heading in ("money", "capacity"):
        assert f'id="{heading}"' in html
    assert len(html.encode()) < 1_500_000


def test_a_price_needs_one_machine_and_one_region(tmp_path: Path) -> None:
    sample.write(tmp_path / "job.jsonl", sample.training("job", total=20))
    with pytest.raises(InputError, match="--machine and --region together"):
        read_report(tmp_path, None, machine="g2-standard-8")
    assert (
        read_report(
            tmp_path,
            None,
            machine="g2-standard-8",
            region="us-central1",
        ).money
        is not None
    )
    with pytest.raises(InputError, match="machine type"):
        find_prices("e2-standard-4", "us-central1")
    with pytest.raises(InputError, match="no prices"):
        find_prices("g2-standard-8", "mars-north1")


MINUTE_H = 1 / 60
SECOND_H = 1 / 3600


# Price of Spot over that of the alternative; churn at which they cost the same, by checkpoint s /
# restart min.
BREAK_EVEN = {
    "L4 against on-demand": (0.399, [14.3, 6.8, 3.4, 1.50]),
    "A100 against on-demand": (0.491, [10.7, 4.9, 2.5, 1.05]),
    "A100 at 1.804 against flex-start at 2.020": (0.893, [1.13, 0.385, 0.193, 0.057]),
    "A100 at 1.928 against flex-start at 2.020": (0.954, [0.33, 0.092, 0.046, 0.0115]),
}
COSTS = [
    (5, 3),
    (30, 5),
    (60, 10),
    (300, 15),
]


def list_break_even_cells() -> Iterator[tuple[float, tuple[float, float], float]]:
    for ratio, row in BREAK_EVEN.values():
        for cost, churn in zip(COSTS, row, strict=True):
            yield ratio, cost, churn


@pytest.mark.parametrize(("ratio", "cost", "churn"), [*list_break_even_cells()])
def test_break_even_churn_with_checkpoints(
    ratio: float, cost: tuple[float, float], churn: float
) -> None:
    got = forms.break_even_churn(
        ratio, checkpoint_h=cost[0] * SECOND_H, restart_h=cost[1] * MINUTE_H
    )
    assert got == pytest.approx(churn, rel=0.015)


@pytest.mark.parametrize(
    ("churn", "slow", "minutes"),
    [
        (0.02, 1.020, 55),
        (0.05, 1.034, 34),
        (0.15, 1.065, 20),
        (0.3, 1.10, 14),
        (0.5, 1.14, 11),
        (1.0, 1.24, 7.4),
    ],
)
def test_slowdown_and_interval_at_common_churn(churn: float, slow: float, minutes: float) -> None:
    got = forms.slowdown(
        churn=churn,
        checkpoint_h=30 * SECOND_H,
        restart_h=5 * MINUTE_H,
    )
    assert got == pytest.approx(slow, abs=0.005)
    assert find_best_interval(30 * SECOND_H, 1 / churn) / MINUTE_H == pytest.approx(
        minutes, abs=0.6
    )


@pytest.mark.parametrize(
    ("cost", "mean_life", "interval", "within"),
    [
        (5, 24 * 60, 117, 0.5),
        (5, 6 * 60, 57, 0.5),
        (5, 15, 9.1, 0.05),
        (10, 2, 2, 0),
    ],
)
def test_daly_gives_the_published_intervals(
    cost: float,
    mean_life: float,
    interval: float,
    within: float,
) -> None:
    """A checkpoint may take longer than two mean lives."""
    assert find_best_interval(cost, mean_life) == pytest.approx(interval, abs=within)


def test_slowdown_without_churn_and_for_batch() -> None:
    assert forms.expected_hours(
        10.0,
        churn=0.0,
        interval_h=1.0,
        checkpoint_h=0.1,
        restart_h=9.0,
    ) == pytest.approx(11.0)
    assert forms.slowdown(churn=0.0, checkpoint_h=0.1, restart_h=9.0) == 1.0
    assert forms.batch_slowdown(churn=0.5, restart_h=0.1, item_batch_h=0.02) == pytest.approx(1.055)


def test_expensive_spot_never_pays_and_a_free_restart_always_does() -> None:
    assert forms.break_even_churn(1.0, checkpoint_h=0.01, restart_h=0.1) == 0.0
    assert math.isinf(forms.break_even(0.5, lambda churn: 1.0))


def test_a_receipt_counts_restarts_from_memory() -> None:
    lines = sample.kill_and_restore("job")
    # A first start restores nothing, and other restarts read the bucket only.
    assert "restarted" not in receipt(ledgers(lines), 1.0, 2.0).line()
    restores = []
    for row in lines:
        if row["event"] == "restore" and row["step"]:
            restores.append(row)
    restores[0]["source"] = "memory"
    bill = receipt(ledgers(lines), 1.0, 2.0)
    assert bill.line().endswith("; restarted 1 times from memory, 0 from the bucket")
    shown = []
    for figure in figures(ledgers(lines), {}):
        if "memory" in figure.label:
            shown.append(figure)
    (figure,) = shown
    assert figure.value == "1"
    assert figure.note == "of 1, the slowest in 92 s"
    summary = job_summaries(parse(sample.encoded(lines)).events)["job"]
    assert restarts_text(summary) == "restarted 1 time from memory, the last time in 92 s"
    assert restarts_text(replace(summary, restarts=())) == ""
    restart = Restart(2**62, 20.0, from_memory=False)
    both = replace(summary, restarts=(*summary.restarts, restart))
    assert (
        restarts_text(both)
        == "restarted 1 time from memory, 1 time from the bucket, the last time in 20 s"
    )
