"""The stacks on release 8 of the provider: the same plans, and a state of release 7 that needs no
change.

`make test-next-provider` builds it, which takes ten minutes the first time.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.contract import names
from infra.ops import engine
from infra.ops.plan import plan_stacks
from tests import support
from tests.plan import inventory
from tests.plan.stand_in import apply
from tests.plan.stand_in.server import serving
from tests.plan.test_apply import no_exceptions
from tests.tools import build

pytestmark = [pytest.mark.next_provider, pytest.mark.timeout(900)]
STACKS = names.stacks("prod")
POOL = "google_container_node_pool."
SynthesizePlans = Callable[[str], tuple[Path, dict[str, dict[str, Any]]]]


@pytest.fixture(scope="module", autouse=True)
def next_provider() -> None:
    tool = build.TOOLS["terraform-provider-google-8"]
    support.require(
        tool.binary.exists() or build.registry_answers(),
        f"`make test-next-provider` has not built {tool.name}",
    )


def require_next_provider(stack: Path) -> None:
    """Let a stack's folder demand release 8. It keeps its state."""
    file = stack / "cdk.tf.json"
    configuration = json.loads(file.read_text())
    provider = configuration["terraform"]["required_providers"]["google"]
    assert provider["version"] == build.PROVIDER_VERSION
    provider["version"] = build.NEXT_PROVIDER_VERSION
    file.write_text(json.dumps(configuration))
    (stack / ".terraform.lock.hcl").unlink(missing_ok=True)
    shutil.rmtree(stack / ".terraform", ignore_errors=True)


@pytest.mark.parametrize("environment", inventory.ENVIRONMENTS)
def test_release_8_plans_the_same(
    synthesize_plans: SynthesizePlans, tmp_path: Path, environment: str
) -> None:
    """A difference is what the move to it would change; no inventory of its own hides one."""
    folder, plans = synthesize_plans(environment)
    stacks: dict[str, Path] = {}
    for stack in plans:
        copy = tmp_path / stack
        copy.mkdir()
        shutil.copy(folder / stack / "cdk.tf.json", copy)
        require_next_provider(copy)
        stacks[stack] = copy
    for stack, file in plan_stacks(stacks, tmp_path / "plans").items():
        recorded = inventory.load_inventory(environment, stack)
        assert inventory.differences(recorded, json.loads(file.read_text())) == []


def test_older_state_needs_no_change(tmp_path: Path) -> None:
    variants = apply.synthesize(tmp_path / "variants")
    world = apply.fresh_project("prod")
    with serving({"prod": world}) as address:
        project = apply.Project(
            folder=tmp_path / "prod",
            address=address,
            world=world,
        )
        folders = [project.stack(variants / "settled", stack) for stack in STACKS]
        for folder in folders:
            project.apply(folder)
        for folder in folders:
            require_next_provider(folder)
            engine.offline().run(folder, "init", "-no-color")
            assert project.changes(folder) == {}
        changed = plan_without_exceptions(project, folders[STACKS.index("cluster-prod")])
    # Decision 0016: the API answers sets in any order. Release 8 compares components as sets,
    # taints of pools not yet.
    assert changed and all(address.startswith(POOL) for address in changed), changed


def plan_without_exceptions(project: apply.Project, cluster: Path) -> dict[str, Any]:
    """Return the changes of the cluster's stack if it ignored no order of a set."""
    file = cluster / "cdk.tf.json"
    configuration = json.loads(file.read_text())
    no_exceptions(configuration["resource"])
    file.write_text(json.dumps(configuration))
    return project.changes(cluster)
