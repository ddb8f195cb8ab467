"""Compares the Vega-Lite specification of every chart of a small history with its golden.

`python -m workloads.library.tests.report.test_chart_goldens` (`make snapshots`) records them again.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from holdfast.report.cli import read_report
from holdfast.report.page import sections
from workloads.library.tests import sample

FOLDER = Path(__file__).parent / "charts"


def specs(folder: Path) -> dict[str, str]:
    """Returns the text of each golden by the slug of its chart."""
    jobs = {
        "train-baseline": sample.training("train-baseline", total=30),
        "train-evicted": sample.training(
            "train-evicted", total=30, kills=((4.0, "SIGTERM"), (3.0, "SIGKILL"))
        ),
        "batch-evicted": sample.batch("batch-evicted", workers=2, items=36, kills=1),
    }
    for job, lines in jobs.items():
        sample.write(folder / f"{job}.jsonl", lines)
    report = read_report(folder, None)
    texts: dict[str, str] = {}
    for part in sections(report):
        for plot in part["plots"]:
            texts[plot.slug] = _format(plot.spec)
    return texts


def _format(spec: dict[str, Any]) -> str:
    # The address of the schema says only the version of Altair.
    stable = {**spec}
    del stable["$schema"]
    text = json.dumps(stable)
    # Versions of Python differ in the last bits of a sum.
    rounded = json.loads(text, parse_float=lambda digits: round(float(digits), 6))
    return json.dumps(rounded, indent=1, sort_keys=True) + "\n"


def test_charts_match_their_goldens(tmp_path: Path) -> None:
    recorded = {}
    for path in FOLDER.glob("*.json"):
        recorded[path.stem] = path.read_text()
    assert specs(tmp_path) == recorded


def record() -> None:
    for stale in FOLDER.glob("*.json"):
        stale.unlink()
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for slug, text in specs(Path(folder)).items():
            (FOLDER / f"{slug}.json").write_text(text)


if __name__ == "__main__":
    record()
