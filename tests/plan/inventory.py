"""Inventories: whole plans, every value that is known before an apply. What is added differs as
what is lost does.

`python -m tests.plan.inventory` (`make snapshots`) records those that exist anew; `python -m
tests.plan.inventory eu` (`make inventory ENV=eu`) records one, which the plan tests hold from then
on.
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
# Address of the runbook, which follows the checkout's git remote.
NOT_RECORDED = ("links",)
# Texts of pages, which monitoring's own tests judge.
BY_DIGEST = ("content", "dashboard_json")


def recorded() -> tuple[str, ...]:
    """Environments that have an inventory."""
    return tuple(sorted(folder.name for folder in FOLDER.iterdir() if folder.is_dir()))


ENVIRONMENTS = recorded()


def planned(plan_json: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Address -> planned values, without what is null, empty or known only after apply."""
    resources = plan_json["planned_values"]["root_module"].get("resources", [])
    return {r["address"]: _pruned(r["values"]) for r in resources}


def _pruned(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {
            k: _digest(v) if k in BY_DIGEST else _pruned(v)
            for k, v in value.items()
            if k not in NOT_RECORDED
        }
        return {k: v for k, v in kept.items() if v not in (None, [], {})}
    if isinstance(value, list):
        return [_pruned(v) for v in value]
    return value


def _digest(text: object) -> str | None:
    return f"sha256:{sha256(str(text).encode()).hexdigest()[:16]}" if text else None


def differences(inventory: dict[str, Any], plan_json: dict[str, Any]) -> list[str]:
    """Each line names one value that is recorded and not planned so, or planned and not recorded."""
    return list(_differing(inventory, planned(plan_json), ""))


def _differing(recorded: Any, now: Any, at: str) -> Iterator[str]:
    if isinstance(recorded, dict) and isinstance(now, dict):
        for key in recorded | now:
            where = f"{at}.{key}" if at else key
            if key not in now:
                yield f"{where}: recorded {recorded[key]!r}, not planned"
            elif key not in recorded:
                yield f"{where}: planned {now[key]!r}, not recorded"
            else:
                yield from _differing(recorded[key], now[key], where)
    elif isinstance(recorded, list) and isinstance(now, list) and len(recorded) == len(now):
        for i, (left, right) in enumerate(zip(recorded, now, strict=True)):
            yield from _differing(left, right, f"{at}[{i}]")
    elif recorded != now:
        yield f"{at}: recorded {recorded!r}, planned {now!r}"


def load_inventory(environment: str, stack: str) -> dict[str, Any]:
    return YAML(typ="safe").load((FOLDER / environment / f"{stack}.yaml").read_text())["values"]


def addresses(plans: dict[str, dict[str, Any]]) -> list[str]:
    return [
        f"{stack} {address}"
        for stack, plan_json in plans.items()
        for address in sorted(planned(plan_json))
    ]


def write(environment: str) -> list[str]:
    """Record one environment; its addresses."""
    load(environment)
    plans = {stack: json.loads(file.read_text()) for stack, file in plan(environment).items()}
    folder = FOLDER / environment
    folder.mkdir(parents=True, exist_ok=True)
    yaml = YAML()
    yaml.width = 120
    yaml.default_flow_style = False
    for stack, plan_json in plans.items():
        with (folder / f"{stack}.yaml").open("w") as file:
            yaml.dump({"values": dict(sorted(planned(plan_json).items()))}, file)
    return addresses(plans)


def main(chosen: Sequence[str]) -> None:
    names = tuple(chosen) or ENVIRONMENTS
    kept = [] if names == ENVIRONMENTS else ADDRESSES.read_text().splitlines()
    others = [
        line for line in kept if not line.split()[0].endswith(tuple(f"-{name}" for name in names))
    ]
    lines = [*others, *(line for name in names for line in write(name))]
    ADDRESSES.write_text("\n".join(sorted(lines)) + "\n")
    print(
        f"recorded {', '.join(names)}; review `git diff tests/snapshots`, and commit it",
        file=sys.stderr,
    )


if __name__ == "__main__":
    run_cli(lambda: main(sys.argv[1:]))
