"""Inventories: what a plan must contain. A recorded value must be in the plan; the plan may hold more.

`python -m tests.plan.inventory` (`make snapshots`) records those that exist anew; `python -m tests.plan.inventory eu`
(`make inventory ENV=eu`) records one, which the plan tests hold from then on.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from holdfast.contract.errors import run_cli
from infra.environments import load
from infra.ops.plan import plan

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "snapshots" / "plan"
ADDRESSES = ROOT / "tests" / "snapshots" / "addresses.txt"
REGENERATE = "make snapshots"
# Texts that follow the checkout's git remote, or are judged by monitoring's own tests.
NOT_RECORDED = ("documentation", "dashboard_json")


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
        kept = {k: _pruned(v) for k, v in value.items() if k not in NOT_RECORDED}
        return {k: v for k, v in kept.items() if v not in (None, [], {})}
    if isinstance(value, list):
        return [_pruned(v) for v in value]
    return value


def record(plan_json: dict[str, Any]) -> dict[str, Any]:
    values = planned(plan_json)
    kinds = [address.split(".")[0] for address in values]
    return {"counts": {k: kinds.count(k) for k in sorted(set(kinds))}, "values": dict(sorted(values.items()))}


def differences(inventory: dict[str, Any], plan_json: dict[str, Any]) -> list[str]:
    """Each line names one recorded fact that the plan does not hold."""
    now = record(plan_json)
    lines = list(_missing(inventory["values"], now["values"], ""))
    if inventory["counts"] != now["counts"]:
        lines.append(f"counts: recorded {inventory['counts']}, planned {now['counts']}")
    return lines


def _missing(recorded: Any, planned_value: Any, at: str) -> Iterator[str]:
    if isinstance(recorded, dict) and isinstance(planned_value, dict):
        for key, value in recorded.items():
            where = f"{at}.{key}" if at else key
            if key in planned_value:
                yield from _missing(value, planned_value[key], where)
            else:
                yield f"{where}: recorded {value!r}, not planned"
    elif isinstance(recorded, list) and isinstance(planned_value, list) and len(recorded) == len(planned_value):
        for i, (left, right) in enumerate(zip(recorded, planned_value, strict=True)):
            yield from _missing(left, right, f"{at}[{i}]")
    elif recorded != planned_value:
        yield f"{at}: recorded {recorded!r}, planned {planned_value!r}"


def load_inventory(environment: str, stack: str) -> dict[str, Any]:
    return YAML(typ="safe").load((FOLDER / environment / f"{stack}.yaml").read_text())


def addresses(plans: dict[str, dict[str, Any]]) -> list[str]:
    return [f"{stack} {address}" for stack, plan_json in plans.items() for address in sorted(planned(plan_json))]


def write(environment: str) -> list[str]:
    """Record one environment; its addresses."""
    load(environment)
    plans = {stack: json.loads(file.read_text()) for stack, file in plan(environment).items()}
    folder = FOLDER / environment
    folder.mkdir(parents=True, exist_ok=True)
    yaml = YAML()
    yaml.width, yaml.default_flow_style = 120, False
    for stack, plan_json in plans.items():
        with (folder / f"{stack}.yaml").open("w") as file:
            yaml.dump(record(plan_json), file)
    return addresses(plans)


def main(chosen: Sequence[str]) -> None:
    names = tuple(chosen) or ENVIRONMENTS
    kept = [] if names == ENVIRONMENTS else ADDRESSES.read_text().splitlines()
    others = [line for line in kept if not line.split()[0].endswith(tuple(f"-{name}" for name in names))]
    lines = [*others, *(line for name in names for line in write(name))]
    ADDRESSES.write_text("\n".join(sorted(lines)) + "\n")
    print(f"recorded {', '.join(names)}; review `git diff tests/snapshots`, and commit it", file=sys.stderr)


if __name__ == "__main__":
    run_cli(lambda: main(sys.argv[1:]))
