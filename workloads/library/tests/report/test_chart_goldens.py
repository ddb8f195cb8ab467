"""No chart changes unseen. Meant to change? `make snapshots` records them anew."""

import json
from pathlib import Path

from workloads.library.tests.report.chart_goldens import FOLDER, specs


def test_every_chart_is_what_was_recorded(tmp_path: Path) -> None:
    drawn = {slug: json.loads(text) for slug, text in specs(tmp_path).items()}
    recorded = {path.stem: json.loads(path.read_text()) for path in FOLDER.glob("*.json")}
    assert drawn.keys() == recorded.keys()
    assert [slug for slug, spec in drawn.items() if spec != recorded[slug]] == []
