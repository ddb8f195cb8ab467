"""k6 as the client of the server bench: open loop by rate, or closed with a number of users."""

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.tools.build import TOOLS, build

SCRIPT = Path(__file__).with_name("server_load.js")
INFER = "/v2/models/model/infer"
BODY = json.dumps(
    {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a request of a few bytes"]}]}
)


@dataclass(frozen=True, kw_only=True)
class Counted:
    codes: dict[str, int]
    dropped: int
    """Arrivals that k6 itself could not make: a busy machine, not a failed request."""
    answered_ms: dict[str, float]
    refused_ms: dict[str, float]

    @property
    def asked(self) -> int:
        return sum(self.codes.values())

    @property
    def ok(self) -> int:
        return self.codes.get("200", 0)

    @property
    def failed(self) -> int:
        return self.asked - self.ok


def k6(
    url: str,
    *,
    seconds: float,
    folder: Path,
    rate: float = 0,  # k6 takes whole numbers
    users: int = 200,
    body: str = BODY,
    meanwhile: Callable[[], object] = lambda: None,
) -> Counted:
    """`meanwhile` runs beside the load, which may outlast it."""
    summary = folder / "k6.json"
    summary.unlink(missing_ok=True)
    given = {"URL": url, "BODY": body, "RATE": str(round(rate)), "SECONDS": f"{seconds:g}", "USERS": str(users)}
    quiet = ["--quiet", "--no-usage-report", "--log-output", f"file={folder / 'k6.log'}"]
    process = subprocess.Popen(
        [build(TOOLS["k6"]), "run", *quiet, str(SCRIPT)],
        env=os.environ | given | {"SUMMARY": str(summary)},
        stdout=subprocess.DEVNULL,
    )
    try:
        meanwhile()
        process.wait(seconds + 120)
    finally:
        process.kill()
        process.wait()
    return _counted(json.loads(summary.read_text()))


def _counted(metrics: dict[str, Any]) -> Counted:
    codes = {
        name.removeprefix("code_"): int(metric["values"]["count"])
        for name, metric in metrics.items()
        if name.startswith("code_") and metric["values"]["count"]
    }
    return Counted(
        codes=codes,
        dropped=int(metrics.get("dropped_iterations", {}).get("values", {}).get("count", 0)),
        answered_ms=_trend(metrics, "answered_ms"),
        refused_ms=_trend(metrics, "refused_ms"),
    )


def _trend(metrics: dict[str, Any], name: str) -> dict[str, float]:
    values = metrics.get(name, {}).get("values", {})
    return {key: round(value, 1) for key, value in values.items()}
