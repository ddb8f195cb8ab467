"""`python -m tests.tiers all|fast|process|plan|...`: runs tiers one after the other and sums them up.

A tier is a pytest selection; the split keeps `fast` under a minute. All tiers run even if one fails.
"""

import os
import subprocess
import sys
import time
from dataclasses import dataclass

SLOW = "process or plan or browser or cluster"
ELSEWHERE = "node or kind or gpu or cloud"  # need root, Docker, a GPU, a project: their own make targets


@dataclass(frozen=True, kw_only=True)
class Tier:
    marks: str
    workers: int = 0
    """0: one process, for tests that start processes or measure time."""
    options: tuple[str, ...] = ()


TIERS = {
    "fast": Tier(marks=f"not ({SLOW} or {ELSEWHERE})", workers=2),
    "process": Tier(marks=f"(process or browser) and not (plan or cluster or {ELSEWHERE})"),
    "plan": Tier(marks=f"plan and not ({ELSEWHERE})"),
    "cluster": Tier(marks=f"cluster and not ({ELSEWHERE})"),
    "node": Tier(marks="node"),
    "kind": Tier(marks="cluster or kind", options=("--k8s-provider=kind",)),
    "gpu": Tier(marks="gpu"),
    "cloud": Tier(marks="cloud"),
}
ALL = ("fast", "process", "plan", "cluster")
NO_TESTS = 5  # pytest's exit code when a selection is empty


def run(name: str, extra: list[str]) -> int:
    tier = TIERS[name]
    print(f"\n== tier {name}: pytest -m {tier.marks!r}", flush=True)
    parallel = ["-n", str(tier.workers)] if tier.workers else ["-p", "no:xdist"]
    started = time.monotonic()
    code = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", tier.marks, *parallel, *tier.options, *extra]
    ).returncode
    print(f"== tier {name}: exit {code} after {time.monotonic() - started:.0f} s", flush=True)
    return code


def main(arguments: list[str]) -> int:
    names, extra = arguments[:1] or ["all"], arguments[1:]
    if names != ["all"] and names[0] not in TIERS:
        sys.exit(
            f"error:   unknown tier\n  got:     {names[0]}\n  allowed: all, {', '.join(TIERS)}\n  fix:     name one"
        )
    codes = {name: run(name, extra) for name in (ALL if names == ["all"] else names)}
    failed = [f"{name} (no tests)" if code == NO_TESTS else name for name, code in codes.items() if code]
    print(f"tiers failed: {', '.join(failed) or 'none'}{' (CI)' if os.environ.get('CI') else ''}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
