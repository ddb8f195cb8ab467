"""No chart changes unseen. Meant to change? `make snapshots` records them anew."""

import json

import pytest

from workloads.library.tests.report.chart_goldens import FOLDER, specs

SLUGS = (
    "batch-progress",
    "batch-timeline",
    "goodput",
    "losses",
    "recovery",
    "training-progress",
    "training-timeline",
    "where-time-went",
)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return specs(tmp_path_factory.mktemp("history"))


def test_every_chart_has_a_golden_and_every_golden_a_chart(drawn: dict[str, str]) -> None:
    assert sorted(drawn) == sorted(path.stem for path in FOLDER.glob("*.json")) == list(SLUGS)


@pytest.mark.parametrize("slug", SLUGS)
def test_a_chart_is_what_was_recorded(drawn: dict[str, str], slug: str) -> None:
    assert json.loads(drawn[slug]) == json.loads((FOLDER / f"{slug}.json").read_text())


@pytest.mark.parametrize("slug", SLUGS)
def test_a_chart_carries_its_data_and_no_address(drawn: dict[str, str], slug: str) -> None:
    assert '"values": [' in drawn[slug] or '"datasets": {' in drawn[slug]
    assert "http" not in drawn[slug]
    assert '"url"' not in drawn[slug]
