"""k6 as the client of the server bench: open loop by rate, or closed with a number of users."""

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.tools.build import TOOLS, build

TRENDS = ("answered_ms", "refused_ms")
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
    given = {
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
        env=os.environ | given | {"SUMMARY": str(summary)},
        stdout=subprocess.DEVNULL,
    )
    try:
        meanwhile()
        process.wait(seconds + 120)
    finally:
        process.kill()
        process.wait()
    values = {name: metric["values"] for name, metric in json.loads(summary.read_text()).items()}
    codes = {
        name.removeprefix("code_"): int(each["count"])
        for name, each in values.items()
        if "code_" in name
    }
    return Counted(
        codes={code: count for code, count in codes.items() if count},
        dropped=int(values.get("dropped_iterations", {}).get("count", 0)),
        **{
            name: {key: round(ms, 1) for key, ms in values.get(name, {}).items()} for name in TRENDS
        },
    )
