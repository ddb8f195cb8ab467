"""Tests a long history: the page stays small and says so, and its sums are complete."""

import json
import re
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.report import tables
from holdfast.report.bounds import MOST_BARS, MOST_LANES, MOST_MARKS, MOST_POINTS, MOST_ROWS, cut
from holdfast.report.charts import outline, progress
from holdfast.report.cli import read_report
from holdfast.report.model import Report
from holdfast.report.page import render
from holdfast.report.timeline import timeline
from workloads.library.tests import sample
from workloads.library.tests.sample import EPOCH, Line, line

JOBS = 40
WORST = "train-31"
DAY_S = 86_400.0

pytestmark = pytest.mark.process


def nodes() -> list[Line]:
    """Returns the lines of twelve pools that lose a node every few hours."""
    lines: list[Line] = []
    for n in range(600):
        t = EPOCH - (n * 0.03) * DAY_S
        named = {
            "node": f"node-{n}",
            "pool": f"pool-{n % 12}",
            "capacity": "spot",
        }
        named |= {"machine_type": f"g2-standard-{n % 40}", "zone": f"zone-{n % 5}"}
        lines.append(line(t - 1800, "node_up", "", "node", "watcher", seconds=0, **named))
        lines.append(
            line(
                t,
                "node_down",
                "",
                "node",
                "watcher",
                reason="preempted",
                seconds=1800,
                **named,
            )
        )
    return sorted(lines, key=lambda row: row["t"])


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("long")
    for n in range(JOBS):
        job = f"train-{n}"
        total, count = (7000, 300) if job == WORST else (700, 20)
        lines = sample.training(
            job,
            seed=n,
            total=total,
            every=10,
            kills=sample.make_kills(count),
        )
        sample.write(folder / f"{job}.jsonl", lines)
    for n in range(3):
        sample.write(
            folder / f"batch-{n}.jsonl",
            sample.batch(
                f"batch-{n}",
                workers=40,
                items=3000,
                kills=120,
                seed=n,
            ),
        )
    sample.write(folder / "watcher.jsonl", nodes())
    return read_report(folder, None)


@pytest.fixture(scope="module")
def html(report: Report) -> str:
    return render(report)


@pytest.fixture(scope="module")
def whole(report: Report) -> dict[str, Any]:
    return json.loads(json.dumps(report.as_json()))


def test_totals_include_every_job(whole: dict[str, Any]) -> None:
    assert whole["totals"].keys() == {"training", "batch"}
    for kind, total in whole["totals"].items():
        jobs = []
        evictions = 0
        lost_steps = 0
        for row in whole["jobs"]:
            if row["kind"] == kind:
                jobs.append(row)
                evictions += len(row["recoveries"])
                lost_steps += row["lost"]
        assert total["jobs"] == len(jobs)
        assert total["evictions"] == evictions
        assert total["lost"] == lost_steps
        total_s = sum(total["states_seconds"].values())
        assert total_s == pytest.approx(total["wall_seconds"], abs=1e-3)
        for state, seconds in total["states_seconds"].items():
            of_jobs_s = 0.0
            for row in jobs:
                of_jobs_s += row["states_seconds"][state]
            assert seconds == pytest.approx(of_jobs_s, abs=1e-3)


def test_the_page_stays_small_and_names_and_counts_what_is_left_out(
    html: str, whole: dict[str, Any]
) -> None:
    evictions = whole["totals"]["training"]["evictions"]
    assert evictions > 600
    assert len(html.encode()) < 1_500_000
    assert f"6 of {JOBS} jobs drawn, those that lost the most time; --json prints all." in html
    assert (
        f"100 of {evictions:,} evictions, those after which work took longest to go on; --json"
        " prints all." in html
    )
    assert f"the other {evictions - 100:,} evictions" in html
    [words] = re.findall(r'<desc id="training-timeline-desc">(.*?)</desc>', html)
    assert WORST in words, "the job that lost most"
    assert words.count("steps done again") == 6


def test_a_long_table_ends_with_the_rest_and_the_total(report: Report) -> None:
    training = report.of_kind("training")
    many = [*training, *training]
    rows = tables.job_rows(many)
    *parts, every = rows
    assert parts[-1].name == f"the other {2 * JOBS - MOST_ROWS} jobs"
    assert every.name == f"all {2 * JOBS} jobs"
    wall_us = 0
    evictions = 0
    for ledger in many:
        wall_us += ledger.wall_us
        evictions += len(ledger.recoveries)
    assert sum(row.wall_us for row in parts) == every.wall_us == wall_us
    assert sum(row.evictions for row in parts) == every.evictions == evictions
    for row, ledger in zip(tables.job_rows(training), training, strict=True):
        assert row.name == ledger.job


def find_ends(points: list[tuple[int, float, int]], life: int) -> list[tuple[int, float, int]]:
    life_points = [point for point in points if point[2] == life]
    return [life_points[0], life_points[-1]]


def bars(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return spec["layer"][0]["data"]["values"]


def test_bars_by_stretch_keep_state_durations(report: Report) -> None:
    ledgers = {ledger.job: ledger for ledger in report.ledgers}
    worst = ledgers[WORST]
    spec = timeline([worst], slug="t", title="t").spec
    assert len(worst.spans) > MOST_BARS >= len(bars(spec))
    drawn = Counter[str]()
    for row in bars(spec):
        drawn[row["state"]] += row["to"] - row["from"]
    unit = sum(drawn.values()) / worst.seconds
    for state, us in worst.totals_us.items():
        assert drawn[state.value] == pytest.approx(us / 1e6 * unit, rel=1e-3, abs=1e-3)
    for a, b in pairwise(bars(spec)):
        assert a["to"] == pytest.approx(b["from"], abs=2e-6)


def test_plots_keep_to_their_marks_points_and_places(report: Report) -> None:
    batch = report.of_kind("batch")
    training = report.of_kind("training")[:6]
    places = timeline(batch, slug="t", title="t")
    assert f"{MOST_LANES} of 120 places, those that lost the most time" in places.note
    lanes = Counter(row["lane"] for row in bars(places.spec))
    assert len(lanes) == MOST_LANES
    spec = progress(training, slug="p", unit="steps", title="p").spec
    assert 0 < len(spec["data"]["values"]) <= MOST_POINTS
    assert 0 < len(spec["layer"][2]["data"]["values"]) <= MOST_MARKS


@given(st.lists(st.integers(-50, 50)), st.integers(1, 20))
def test_a_cut_keeps_the_heaviest_in_their_order(weights: list[int], limit: int) -> None:
    numbered = list(enumerate(weights))
    result = cut(numbered, limit, lambda row: row[1])
    assert sorted(result.rows + result.rest) == numbered
    assert result.rows == sorted(result.rows)
    assert len(result.rows) == min(limit, len(weights))
    if result.rest:
        lightest = min(weight for _, weight in result.rows)
        assert lightest >= max(weight for _, weight in result.rest)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 1e6)), min_size=1, max_size=900),
    st.integers(200, 400),
)
def test_an_outline_keeps_both_ends_per_life(steps: list[tuple[int, float]], limit: int) -> None:
    points: list[tuple[int, float, int]] = []
    lives: set[int] = set()
    t_us = 0
    for number, (step_us, done) in enumerate(steps):
        t_us += step_us
        life = number // 300
        lives.add(life)
        points.append((t_us, done, life))
    outline_points = outline(points, limit)
    assert len(outline_points) <= limit
    for life in lives:
        assert find_ends(outline_points, life) == find_ends(points, life)
