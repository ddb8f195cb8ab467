"""What a change of the code does to resources that exist: two plans against the state that the first would leave."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.ops import engine, replay
from infra.ops.plan import plan_stacks
from infra.ops.synth import synthesise

Change = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    kind: str
    """destroyed, replaced, changed or created."""
    line: str


def effects(environment: str, root: Path, other: Path, folder: Path) -> list[Effect]:
    """Of `other` on what `root` deployed. Needs the provider of this checkout, and of `other` if it pins another."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        sides = [
            pool.submit(synthesise, environment, folder / side, local_state=True, root=at)
            for side, at in (("now", root), ("then", other))
        ]
        now, then = (side.result() for side in sides)
        # What both sides write alike needs no plan: most merges touch one stack, or none.
        stacks = [s for s in [*now, *(s for s in then if s not in now)] if not _same(now.get(s), then.get(s))]
        touched = {stack: path for stack, path in now.items() if stack in stacks}
        plans = {stack: json.loads(file.read_text()) for stack, file in plan_stacks(touched, folder / "plans").items()}
        running = [pool.submit(_stack, s, now.get(s), then.get(s), plans.get(s), folder) for s in stacks]
        return [effect for stack in running for effect in stack.result()]


def _same(now: Path | None, then: Path | None) -> bool:
    return now is not None and then is not None and _configuration(now) == _configuration(then)


def _configuration(stack: Path) -> dict[str, Any]:
    """Without the backend, which names the folder of its checkout."""
    read = json.loads((stack / "cdk.tf.json").read_text())
    read["terraform"].pop("backend", None)
    return read


def _providers(stack: Path) -> object:
    return _configuration(stack)["terraform"]["required_providers"]


def _stack(stack: str, now: Path | None, then: Path | None, plan: replay.Plan | None, folder: Path) -> list[Effect]:
    if now is None or plan is None:
        return [Effect(kind="created", line=f"{stack} (a new stack)")]
    if then is None:
        planned = plan["planned_values"]["root_module"].get("resources", [])
        return [Effect(kind="destroyed", line=f"{stack} {resource['address']}") for resource in planned]
    state = replay.state_of(plan)
    before = _changes(replay.replan(now, state, folder / "replay-now" / stack, initialised=now))
    after = _changes(_with_a_provider(then, now, state, folder / "replay-then" / stack))
    return [
        effect
        for address, change in after.items()
        for effect in _effect(f"{stack} {address}", change, before.get(address, {}))
    ]


def _with_a_provider(then: Path, now: Path, state: dict[str, Any], folder: Path) -> replay.Plan:
    """With the provider that the other side pins; where it cannot be had, with the one of this side."""
    try:
        return replay.replan(then, state, folder, initialised=now if _providers(now) == _providers(then) else None)
    except engine.EngineFailed as error:
        # Any other failure is one of the configuration and must not be hidden by planning with another provider.
        if "Failed to query available provider packages" not in error.output:
            raise
    configuration = json.loads((then / "cdk.tf.json").read_text())
    configuration["terraform"]["required_providers"] = _providers(now)
    (then / "cdk.tf.json").write_text(json.dumps(configuration))
    return replay.replan(then, state, folder, initialised=now)


def _changes(plan: replay.Plan) -> dict[str, Change]:
    return {c["address"]: c["change"] for c in plan["resource_changes"]}


def _effect(where: str, change: Change, before: Change) -> Iterator[Effect]:
    """Only what the other side does and this side does not: a state made from a plan has gaps that both show."""
    actions = change["actions"]
    if actions == ["delete"]:
        yield Effect(kind="destroyed", line=where)
    elif actions == ["create"]:
        yield Effect(kind="created", line=where)
    # A state made from planned values forces some replacements of its own; both sides show those.
    elif forcing := sorted(_paths(change) - _paths(before)):
        yield Effect(kind="replaced", line=f"{where}: {', '.join(forcing)}")
    elif different := _differing(change.get("after") or {}, before.get("after") or {}):
        yield Effect(kind="changed", line=f"{where}: {', '.join(different)}")


def _paths(change: Change) -> set[str]:
    """Attributes that force a replacement, as `node_config.oauth_scopes`."""
    return {
        ".".join(str(part) for part in path if not isinstance(part, int)) for path in change.get("replace_paths", [])
    }


def _differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return sorted(key for key in one | other if one.get(key) != other.get(key))
