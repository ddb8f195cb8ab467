"""k6 as the client of the server bench: open loop by rate, or closed with a number of users."""

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.tools.build import TOOLS, build

SCRIPT = Path(__file__).with_name("load.js")
INFER = "/v2/models/model/infer"
BODY = json.dumps(
    {
        "inputs": [
            {
                "name": "text",
                "datatype": "BYTES",
                "shape": [1],
                "data": ["a request of a few bytes"],
            }
        ]
    }
)


@dataclass(frozen=True, kw_only=True)
class Counted:
    codes: dict[str, int]
    dropped: int
    """Arrivals that k6 itself could not make: a busy machine, not a failed request."""
    answered_ms: dict[str, float]
    refused_ms: dict[str, float]

    @property
    def total(self) -> int:
        return sum(self.codes.values())

    @property
    def ok(self) -> int:
        return self.codes.get("200", 0)

    @property
    def failures(self) -> int:
        return self.total - self.ok


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
    """Loads a server with k6 and counts its responses.

    A rate gives an open loop, else `users` send one request after the other. `meanwhile` runs
    during the load, which may outlast it.
    """
    summary = folder / "k6.json"
    summary.unlink(missing_ok=True)
    settings = {
        "URL": url,
        "BODY": body,
        "RATE": str(round(rate)),
        "SECONDS": f"{seconds:g}",
        "USERS": str(users),
    }
    quiet = [
        "--quiet",
        "--no-usage-report",
        "--log-output",
        f"file={folder / 'k6.log'}",
    ]
    process = subprocess.Popen(
        [
            build(TOOLS["k6"]),
            "run",
            *quiet,
            str(SCRIPT),
        ],
        env=os.environ | settings | {"SUMMARY": str(summary)},
        stdout=subprocess.DEVNULL,
    )
    try:
        meanwhile()
        process.wait(seconds + 120)
    finally:
        process.kill()
        process.wait()
    values = {}
    for name, metric in json.loads(summary.read_text()).items():
        values[name] = metric["values"]
    codes = {}
    for name, metric in values.items():
        if "code_" in name and metric["count"]:
            codes[name.removeprefix("code_")] = int(metric["count"])
    return Counted(
        codes=codes,
        dropped=int(values.get("dropped_iterations", {}).get("count", 0)),
        answered_ms=_round_ms(values.get("answered_ms", {})),
        refused_ms=_round_ms(values.get("refused_ms", {})),
    )


def _round_ms(trend: dict[str, float]) -> dict[str, float]:
    return {key: round(ms, 1) for key, ms in trend.items()}
