"""Plan an environment with the real provider, without credentials and without network."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.ops import engine
from infra.ops.synth import ROOT, synthesize

OUT = ROOT / "out" / "plan"
# The folder of a synthesis does not have this file, so that the state is empty.
EMPTY_STATE = {"terraform": {"backend": {"local": {"path": "recorded.tfstate"}}}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    address: str
    kind: str
    actions: tuple[str, ...]
    """Terraform's actions: ("create",), ("delete", "create") for a replacement, ...; `drift` adds
    ("ignored",).
    """
    difference: str = ""
    """The attribute that Terraform ignores, and how its set differs from the specs."""
    fix: str = ""
    """The command that removes an ignored difference."""

    @property
    def destroys(self) -> bool:
        return "delete" in self.actions


Step = Callable[[str], object]


def plan(name: str, out: Path = OUT, *, step: Step = lambda _: None) -> dict[str, Path]:
    """Return stack -> its plan as `terraform show -json` prints it. `step` gets the name of each
    part that starts.
    """
    step("synthesize")
    stacks = synthesize(name, out / name / "synth", local_state=True)
    return plan_stacks(stacks, out / name, step=step)


def plan_stacks(
    stacks: Mapping[str, Path],
    out: Path,
    *,
    step: Step = lambda _: None,
) -> dict[str, Path]:
    """Return stack -> its plan from an empty state, in a file of `out`."""
    init = engine.offline()
    step("find the provider")
    out.mkdir(parents=True, exist_ok=True)
    _initialize(init, list(stacks.values()))
    files = {stack: out / f"{stack}.json" for stack in stacks}
    # Each plan starts a provider process of hundreds of megabytes: all stacks at once could fill a
    # laptop's memory.
    with ThreadPoolExecutor(max_workers=2) as pool:
        plans = []
        for stack, folder in stacks.items():
            plans.append(pool.submit(_plan_stack, init, folder, files[stack], step))
        for planned in plans:
            planned.result()
    return files


def _initialize(init: engine.Engine, folders: list[Path]) -> None:
    """Run `init` once for all stacks with the same providers: it takes as long as a plan."""
    initialized: dict[str, Path] = {}
    for folder in folders:
        # Local state would hold what an earlier trial applied; the plan of a blueprint starts from
        # nothing.
        (folder / "backend_override.tf.json").write_text(json.dumps(EMPTY_STATE))
        file = folder / "cdk.tf.json"
        configuration = json.loads(file.read_text())
        # The import of an adopted cluster would read it from the cloud.
        if configuration.pop("import", None):
            file.write_text(json.dumps(configuration))
        providers = json.dumps(configuration["terraform"]["required_providers"])
        if providers in initialized:
            take_over(initialized[providers], folder)
        else:
            init.run(folder, "init", "-no-color", "-reconfigure")
            initialized[providers] = folder


def take_over(initialized: Path, folder: Path) -> None:
    """Copy the result of `init` from a folder with the same providers and backend: links to
    providers, and their checksums.
    """
    shutil.rmtree(folder / ".terraform", ignore_errors=True)
    shutil.copytree(initialized / ".terraform", folder / ".terraform", symlinks=True)
    shutil.copy(initialized / ".terraform.lock.hcl", folder)


def _plan_stack(
    init: engine.Engine,
    folder: Path,
    target: Path,
    step: Step,
) -> None:
    step(target.stem)
    # A plan that fails would leave the previous file, and `show` would print that.
    (folder / "plan").unlink(missing_ok=True)
    # No connection is allowed from here on: the provider looks for its identity at Google although
    # no resource needs it.
    run = engine.isolate(init)
    run.run(folder, "plan", "-no-color", "-out=plan")
    plan_json = json.loads(run.run(folder, "show", "-json", "plan"))
    # Sorted and indented, two plans can be compared by diff.
    target.write_text(json.dumps(plan_json, indent=1, sort_keys=True) + "\n")


def list_changes(plan_json: Mapping[str, Any]) -> list[Change]:
    """Return the changes of the plan, without resources that stay as they are."""
    changes: list[Change] = []
    for resource in plan_json.get("resource_changes", []):
        actions = tuple(resource["change"]["actions"])
        if actions != ("no-op",):
            change = Change(address=resource["address"], kind=resource["type"], actions=actions)
            changes.append(change)
    return changes


def counts(changes: list[Change]) -> dict[str, int]:
    """Count the resources that are created or changed in place, by kind."""
    kinds = sorted(change.kind for change in changes if not change.destroys)
    return dict(Counter(kinds))
