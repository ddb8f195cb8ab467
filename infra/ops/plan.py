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
from infra.ops.synth import ROOT, synthesise

OUT = ROOT / "out" / "plan"
# A file that the folder of a synthesis does not have.
EMPTY_STATE = {"terraform": {"backend": {"local": {"path": "recorded.tfstate"}}}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    address: str
    kind: str
    actions: tuple[str, ...]
    """As Terraform prints them: ("create",), ("delete", "create") for a replacement, ...; of
    `drift` also ("ignored",).
    """
    difference: str = ""
    """Of what Terraform ignores on purpose: the attribute, and how its set differs from what is
    stated.
    """

    fix: str = ""
    """The command that removes an ignored difference."""

    @property
    def destroys(self) -> bool:
        return "delete" in self.actions


Step = Callable[[str], object]


def plan(name: str, out: Path = OUT, *, step: Step = lambda _: None) -> dict[str, Path]:
    """Stack -> its plan as `terraform show -json` prints it. `step` gets each part that begins, in
    words.
    """
    step("synthesise")
    return plan_stacks(
        synthesise(name, out / name / "synth", local_state=True), out / name, step=step
    )


def plan_stacks(
    stacks: Mapping[str, Path], out: Path, *, step: Step = lambda _: None
) -> dict[str, Path]:
    """Stack -> its plan from an empty state, in a file of `out`."""
    init = engine.offline()
    step("find the provider")
    out.mkdir(parents=True, exist_ok=True)
    _initialise(init, list(stacks.values()))
    # Each plan starts a provider process that holds hundreds of megabytes: all stacks at once may
    # fill a laptop.
    with ThreadPoolExecutor(max_workers=2) as pool:
        running = {
            stack: pool.submit(_plan_stack, init, folder, out / f"{stack}.json", step)
            for stack, folder in stacks.items()
        }
        return {stack: done.result() for stack, done in running.items()}


def _initialise(init: engine.Engine, folders: list[Path]) -> None:
    """Once for all stacks with the same providers: finding and checking a provider takes as long as
    a plan.
    """
    ready: dict[str, Path] = {}
    for folder in folders:
        # Local state would hold what an earlier trial applied; the plan of a blueprint begins from
        # nothing.
        (folder / "backend_override.tf.json").write_text(json.dumps(EMPTY_STATE))
        wanted = json.dumps(
            json.loads((folder / "cdk.tf.json").read_text())["terraform"]["required_providers"]
        )
        if wanted in ready:
            take_over(ready[wanted], folder)
        else:
            init.run(folder, "init", "-no-color", "-reconfigure")
            ready[wanted] = folder


def take_over(initialised: Path, folder: Path) -> None:
    """What `init` left in a folder with the same providers and backend: links to providers, and
    their checksums.
    """
    shutil.rmtree(folder / ".terraform", ignore_errors=True)
    shutil.copytree(initialised / ".terraform", folder / ".terraform", symlinks=True)
    shutil.copy(initialised / ".terraform.lock.hcl", folder)


def _plan_stack(init: engine.Engine, folder: Path, target: Path, step: Step) -> Path:
    step(target.stem)
    # A plan that fails leaves the file of the one before, and `show` would print that.
    (folder / "plan").unlink(missing_ok=True)
    # From here on nothing may leave: the provider looks for its identity at Google although no
    # resource asks for it.
    run = engine.cut_off(init)
    run.run(folder, "plan", "-no-color", "-out=plan")
    # Sorted and indented, so that two plans can be compared by diff.
    target.write_text(
        json.dumps(json.loads(run.run(folder, "show", "-json", "plan")), indent=1, sort_keys=True)
        + "\n"
    )
    return target


def changes_of(plan_json: Mapping[str, Any]) -> list[Change]:
    """What the plan does, without what it leaves as it is."""
    found = [
        Change(
            address=c["address"],
            kind=c["type"],
            actions=tuple(c["change"]["actions"]),
        )
        for c in plan_json.get("resource_changes", [])
    ]
    return [c for c in found if c.actions != ("no-op",)]


def counts(found: list[Change]) -> dict[str, int]:
    return dict(sorted(Counter(c.kind for c in found if not c.destroys).items()))
