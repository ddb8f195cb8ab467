"""A report from Cloud Monitoring: what its series hold, and the rest named as missing."""

import json
from collections.abc import Generator
from pathlib import Path

import pytest

from infra.contract.errors import EXIT_DONE, InputError
from monitoring.cloud_read import Point
from monitoring.report.cli import one_source, write_cloud_report
from monitoring.report.cloud import MISSING, by_hour
from tests.monitoring.test_churn_cloud import HOUR, MIDNIGHT, Cloud


@pytest.fixture
def cloud() -> Generator[Cloud]:
    cloud = Cloud()
    yield cloud
    cloud.server.stop()


def test_the_page_tells_churn_and_losses_and_names_what_is_missing(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("monitoring.cloud_read.cloud_reader", cloud.reader_of)
    for hours, node_hours, losses in ((1, 0, 0), (2, 20, 0), (3, 40, 2), (4, 60, 3)):
        cloud.tell(hours, node_hours, losses)
    out = tmp_path / "report.html"
    clock = lambda: MIDNIGHT + 5 * HOUR + 600  # noqa: E731
    assert write_cloud_report("acme-ai", out, since="7d", as_json=True, clock=clock) == EXIT_DONE
    told = json.loads(capsys.readouterr().out)
    assert told["answer"].startswith("3 preemptions in 60 Spot node-hours: 0.0500 a node-hour (90 %: ")
    assert [(row["hour"], row["count"]) for row in told["preemptions"]] == [
        ("2024-10-04T02:00Z", 2),
        ("2024-10-04T03:00Z", 1),
    ]
    assert told["not_in_source"] == list(MISSING)
    page = out.read_text()
    assert "Not in this source:" in page
    assert "2024-09-27 00:00 to 2024-10-04 05:00 UTC, Cloud Monitoring of acme-ai" in page
    assert "no events" not in page
    assert "event line could be read" not in page


def test_fractions_of_a_silent_hour_add_up_to_whole_preemptions() -> None:
    points = [Point({"pool": "a"}, hour * 3600, 0.5) for hour in range(6)]
    assert sum(count for _, _, count in by_hour(points)) == 3


@pytest.mark.parametrize(("events", "project"), [(None, ""), (Path(), "acme-ai")])
def test_a_report_has_exactly_one_source(events: Path | None, project: str) -> None:
    with pytest.raises(InputError, match="one source"):
        one_source(events, project)


def test_options_for_event_files_are_not_ignored_with_a_project() -> None:
    with pytest.raises(InputError, match="knows no jobs"):
        one_source(None, "acme-ai", None, "g2-standard-8", "")
    assert one_source(None, "acme-ai", None, "", "") is None
