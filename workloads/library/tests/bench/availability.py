"""`python -m workloads.library.tests.bench.availability ROUNDS > workloads/library/holdfast/place/availability.json`: the shipped record of Spot capacity.

ROUNDS is data/h100_16_runs of the public artifact named in SOURCE: one JSON file for each ten minutes, with how
many of 16 single-GPU machines each zone launched. Ten rounds are missing; the round before stands in for them.
"""

import argparse
import json
from datetime import datetime
from itertools import groupby
from pathlib import Path

SOURCE = {
    "what": "launched of 16 a3-highgpu-1g Spot machines asked for every ten minutes, zone by zone",
    "source": "github.com/andylizf/skynomad-artifact, data/h100_16_runs, commit 62b9aaa1942e30c40cb9f6f5d7d03d6823d1d1f7",
    "licence": "Apache-2.0",
    "notice": "SkyNomad, copyright 2026 The SkyNomad Authors; traces collected at the Sky Computing Lab, UC Berkeley",
    "changed": "reduced to counts, run-length encoded; missing rounds repeat the one before",
}
GAP_S = 600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", type=Path)
    bodies = [json.loads(path.read_text()) for path in sorted(parser.parse_args().rounds.glob("*.json"))]
    begun = [datetime.fromisoformat(body["scheduled_at"]).timestamp() for body in bodies]
    ticks = [round((at - begun[0]) / GAP_S) for at in begun]
    zones = sorted(bodies[0]["zone_results"])
    head = {"schema": "holdfast.availability/1", **SOURCE, "accelerator": "nvidia-h100-80gb", "asked": 16,
            "gap_seconds": GAP_S, "from": bodies[0]["scheduled_at"], "to": bodies[-1]["scheduled_at"]}  # fmt: skip
    rows = ",\n  ".join(f'"{zone}": "{encoded(bodies, ticks, zone)}"' for zone in zones)
    print(json.dumps(head, indent=1)[:-2] + ',\n "zones": {\n  ' + rows + "\n }\n}")


def encoded(bodies: list[dict[str, dict[str, dict[str, int]]]], ticks: list[int], zone: str) -> str:
    """`16*120 15 0*3`: counts, with how many ticks each held."""
    counts: list[int] = []
    for tick, body in zip(ticks, bodies, strict=True):
        counts += counts[-1:] * (tick - len(counts))
        counts.append(body["zone_results"][zone]["instances_created"])
    spells = ((count, len(list(same))) for count, same in groupby(counts))
    return " ".join(f"{count}*{ticks}" if ticks > 1 else f"{count}" for count, ticks in spells)


if __name__ == "__main__":
    main()
