"""Inventories of whole plans: every value that is known before an apply. Additions are differences
too.

`python -m tests.plan.inventory` (`make snapshots`) records the existing ones again; `python -m
tests.plan.inventory eu` (`make inventory ENV=eu`) records one, which the plan tests compare from
then on.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from holdfast.support.errors import run_cli
from infra.environments import load
from infra.ops.plan import plan

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "snapshots" / "plan"
ADDRESSES = ROOT / "tests" / "snapshots" / "addresses.txt"
REGENERATE = "make snapshots"
# The runbook's address follows the checkout's git remote.
NOT_RECORDED = ("links",)
# Tests of monitoring check the texts of pages.
BY_DIGEST = ("content", "dashboard_json")


def list_environments() -> tuple[str, ...]:
    """Returns the environments that have an inventory."""
    return tuple(sorted(folder.name for folder in FOLDER.iterdir() if folder.is_dir()))


ENVIRONMENTS = list_environments()


def read_planned_values(plan_json: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns address -> planned values, without values that are null, empty or known only after
    apply.
    """
    resources = plan_json["planned_values"]["root_module"].get("resources", [])
    return {r["address"]: _prune(r["values"]) for r in resources}


def _prune(value: Any) -> Any:
    if isinstance(value, dict):
        values = {}
        for key, inner in value.items():
            pruned = _digest(inner) if key in BY_DIGEST else _prune(inner)
            if key not in NOT_RECORDED and pruned not in (None, [], {}):
                values[key] = pruned
        return values
    if isinstance(value, list):
        return [_prune(v) for v in value]
    return value


def _digest(text: object) -> str | None:
    if not text:
        return None
    digest = sha256(str(text).encode()).hexdigest()
    return f"sha256:{digest[:16]}"


def differences(inventory: dict[str, Any], plan_json: dict[str, Any]) -> list[str]:
    """Return a line for each value that is recorded and planned differently, or in one of both."""
    return list(_iter_differences(inventory, read_planned_values(plan_json), ""))


def _iter_differences(recorded: Any, now: Any, parent: str) -> Iterator[str]:
    if isinstance(recorded, dict) and isinstance(now, dict):
        for key in recorded | now:
            path = f"{parent}.{key}" if parent else key
            if key not in now:
                yield f"{path}: recorded {recorded[key]!r}, not planned"
            elif key not in recorded:
                yield f"{path}: planned {now[key]!r}, not recorded"
            else:
                yield from _iter_differences(recorded[key], now[key], path)
    elif isinstance(recorded, list) and isinstance(now, list) and len(recorded) == len(now):
        for index, (old, new) in enumerate(zip(recorded, now, strict=True)):
            yield from _iter_differences(old, new, f"{parent}[{index}]")
    elif recorded != now:
        yield f"{parent}: recorded {recorded!r}, planned {now!r}"


def load_inventory(environment: str, stack: str) -> dict[str, Any]:
    return YAML(typ="safe").load((FOLDER / environment / f"{stack}.yaml").read_text())["values"]


def addresses(plans: dict[str, dict[str, Any]]) -> list[str]:
    """Return `stack address` of each resource, as addresses.txt has it."""
    lines: list[str] = []
    for stack, plan_json in plans.items():
        lines += [f"{stack} {address}" for address in sorted(read_planned_values(plan_json))]
    return lines


def write(environment: str) -> list[str]:
    """Record one environment, and return its addresses."""
    load(environment)
    files = plan(environment)
    plans = {stack: json.loads(file.read_text()) for stack, file in files.items()}
    folder = FOLDER / environment
    folder.mkdir(parents=True, exist_ok=True)
    yaml = YAML()
    yaml.width = 120
    yaml.default_flow_style = False
    for stack, plan_json in plans.items():
        with (folder / f"{stack}.yaml").open("w") as file:
            yaml.dump({"values": dict(sorted(read_planned_values(plan_json).items()))}, file)
    return addresses(plans)


def main(environments: Sequence[str]) -> None:
    names = tuple(environments) or ENVIRONMENTS
    suffixes = tuple(f"-{name}" for name in names)
    lines: list[str] = []
    if names != ENVIRONMENTS:
        for line in ADDRESSES.read_text().splitlines():
            if not line.split()[0].endswith(suffixes):
                lines.append(line)
    for name in names:
        lines += write(name)
    ADDRESSES.write_text("\n".join(sorted(lines)) + "\n")
    print(
        f"recorded {', '.join(names)}; review `git diff tests/snapshots`, and commit it",
        file=sys.stderr,
    )


if __name__ == "__main__":
    run_cli(lambda: main(sys.argv[1:]))
