"""Every stack of a hardened environment is applied, planned again and destroyed by the real
provider.

Google is a stand-in that knows the published definitions of its APIs and refuses what they do not
know. It has the habits that the provider does not hide: answers in another order, and grants that
take minutes. The open environment is applied by the cdktf command line (test_cdktf_cli.py).
"""

import filecmp
import json
import re
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from infra.contract import names
from infra.ops import drift
from infra.ops.engine import EngineFailed
from infra.specs.cluster import IGNORED
from tests.plan.stand_in import apply
from tests.plan.stand_in.app import fill_placeholders
from tests.plan.stand_in.objects import is_allowed, list_allowed
from tests.plan.stand_in.server import serving
from tests.plan.stand_in.world import World

pytestmark = [pytest.mark.plan, pytest.mark.timeout(900)]
STACKS = names.stacks("prod")
# Folders of two teams, of a listed run that batch and server read, and of an unlisted run.
FOLDERS = ("teams/vision", "teams/speech", "train-gang", "elsewhere")
NewProject = Callable[[str], apply.Project]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The results of an environment's life, from a fresh project to an empty one."""

    calls: set[str]
    differs: dict[str, Any]
    """Address -> what a plan right after the apply would change."""
    without_exceptions: dict[str, Any]
    """The same for the cluster's stack, if it ignored no change of what is a set to the API."""
    by_hand: list[str]
    """The findings of the nightly comparison, after somebody changed two of those sets."""
    left: list[str]
    used: dict[str, set[str]]
    """Role of an account -> permissions that its calls needed."""
    rights: dict[str, dict[str, set[str]]]
    """Account -> folder of the checkpoints -> what the account may do with an object there."""
    refusals: dict[str, str]
    """World -> what Terraform printed of the one thing that is wrong there."""


@pytest.fixture(scope="module")
def new_project(tmp_path_factory: pytest.TempPathFactory) -> Generator[NewProject]:
    """Returns a function: `new_project("hasty")` makes a project in a world of that name."""
    worlds: dict[str, World] = {}
    folder = tmp_path_factory.mktemp("projects")
    with serving(worlds) as address:

        def project(world: str) -> apply.Project:
            worlds[world] = apply.fresh_project("prod")
            return apply.Project(
                folder=folder / world,
                address=address,
                world=worlds[world],
            )

        yield project


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory, new_project: NewProject) -> Outcome:
    """Outcome of all runs, at once: the provider waits for most of the time."""
    variants = apply.synthesize(tmp_path_factory.mktemp("variants"))
    with ThreadPoolExecutor(1 + len(WRONG)) as pool:
        refusals = {
            world: pool.submit(_refusal, world, new_project(world), variants / "settled")
            for world in WRONG
        }
        story = _story(new_project("prod"), variants / "settled", variants / "unprotected")
        return Outcome(**story, refusals={world: done.result() for world, done in refusals.items()})


def edit_stack(
    project: apply.Project,
    synthesized: Path,
    stack: str,
    edit: Callable[[dict[str, Any]], object],
) -> Path:
    """Writes a stack that `edit` changed, and returns its folder."""
    folder = project.stack(synthesized, stack)
    configuration = json.loads((folder / "cdk.tf.json").read_text())
    edit(configuration["resource"])
    (folder / "cdk.tf.json").write_text(json.dumps(configuration))
    return folder


def no_exceptions(resources: dict[str, Any]) -> None:
    resources["google_container_cluster"]["cluster"]["lifecycle"] = {"ignore_changes": IGNORED[:3]}
    for pool in resources["google_container_node_pool"].values():
        pool["lifecycle"] = {"ignore_changes": ["initial_node_count"]}


def change_by_hand(world: World) -> None:
    """Change two lists past Terraform, which ignores both."""
    cluster = next(r for path, r in world.resources.items() if re.search(r"/clusters/[^/]+$", path))
    cluster["monitoringConfig"]["componentConfig"]["enableComponents"].remove("DCGM")
    pool = next(
        r
        for path, r in world.resources.items()
        if path.endswith("/nodePools/spot-l4-g2-standard-8")
    )
    taints = pool["config"]["taints"]
    pool["config"]["taints"] = [taint for taint in taints if taint["key"] != "provisioning-tier"]


# World -> the resource of the foundation that Google refuses, the words of the refusal, and the
# edit that causes it.
WRONG: dict[str, tuple[str, str, Callable[[dict[str, Any]], object]]] = {
    "hasty": (  # a key is used before its grants are in force
        "google_storage_bucket.data",
        "Permission denied on Cloud KMS key",
        lambda resources: resources["terraform_data"]["key-in-force"].pop("provisioner"),
    ),
    "disordered": (  # a resource comes before its API
        "google_pubsub_topic.dead",
        r"pubsub\.googleapis\.com has not been used",
        lambda resources: resources["google_pubsub_topic"]["dead"].pop("depends_on"),
    ),
    "unprepared": (  # bootstrap was not run
        "google_pubsub_topic_iam_member.dead-agent",
        r"gcp-sa-pubsub\S+ does not exist",
        lambda resources: None,
    ),
}


def list_rights(world: World) -> dict[str, dict[str, set[str]]]:
    """Ask the stand-in for an object of each folder as each account that uses checkpoints."""
    environment = fill_placeholders("prod")
    bucket = environment.bucket("checkpoints")
    roles = [*(team.role for team in environment.teams), "batch", "server", "trainer"]
    callers = world.callers
    world.callers = {role: environment.member(role) for role in roles}
    rights: dict[str, dict[str, set[str]]] = {}
    for role in roles:
        assert is_allowed(world, role, "GET", bucket), role
        rights[role] = {}
        for folder in FOLDERS:
            name = f"{folder}/object"
            rights[role][folder] = list_allowed(world, role, bucket, name)
    world.callers = callers
    return rights


def _refusal(world: str, project: apply.Project, synthesized: Path) -> str:
    """Return Terraform's error; empty if it succeeded."""
    target, _, edit = WRONG[world]
    if world == "unprepared":
        project.world.agents.clear()
    try:
        project.apply(
            edit_stack(project, synthesized, "foundation-prod", edit), f"-target={target}"
        )
    except EngineFailed as error:
        return error.output
    return ""


def _story(project: apply.Project, protected: Path, unprotected: Path) -> dict[str, Any]:
    """Deploy, compare, destroy: the steps of `infra.ops.deploy`, which the cdktf command line takes
    elsewhere.
    """

    def same(stack: str) -> bool:
        return filecmp.cmp(
            *(variant / "stacks" / stack / "cdk.tf.json" for variant in (protected, unprotected)),
            shallow=False,
        )

    for stack in STACKS:
        project.apply(project.stack(protected, stack))
    with ThreadPoolExecutor(len(STACKS)) as pool:
        # As the workflows do both: each with the roles of its own account.
        planner = replace(project, caller="planner")
        deployer = replace(project, caller="deployer")
        folders = [project.folder / stack for stack in STACKS]
        changes = list(pool.map(planner.changes, folders))
        list(
            pool.map(
                deployer.apply,
                [project.stack(unprotected, stack) for stack in STACKS if not same(stack)],
            )
        )
    rights = list_rights(project.world)
    change_by_hand(project.world)
    without_exceptions = project.changes(
        edit_stack(project, unprotected, "cluster-prod", no_exceptions)
    )
    differences = [
        {"address": address, "change": change} for address, change in without_exceptions.items()
    ]
    ignored = drift.find_list_changes(fill_placeholders("prod"), {"resource_changes": differences})
    for stack in reversed(STACKS):
        project.destroy(project.folder / stack)
    return {
        "calls": {*project.world.calls},
        "differs": {
            address: change for of_stack in changes for address, change in of_stack.items()
        },
        "without_exceptions": without_exceptions,
        "by_hand": sorted(f"{change.address} {change.difference}" for change in ignored),
        "rights": rights,
        "used": project.world.used,
        "left": [path for path in sorted(project.world.resources) if "/connections/" not in path],
    }


def test_second_plan_is_empty_and_destroy_leaves_only_the_peering(outcome: Outcome) -> None:
    assert (outcome.differs, outcome.left) == ({}, [])
    called = (
        "sql.instances.insert",
        "billingbudgets.billingAccounts.budgets.create",
        "dns.changes.create",
    )
    assert {*called, "pubsub.projects.topics.create"} <= outcome.calls


def test_workflows_plan_and_deploy_with_their_own_roles(outcome: Outcome) -> None:
    """The stand-in refuses a call whose permission the caller's roles do not hold."""
    reading = (".get", ".list", ".getIamPolicy")
    assert len(outcome.used["planner"]) > 25
    assert all(permission.endswith(reading) for permission in outcome.used["planner"])
    changes = {permission.rpartition(".")[2] for permission in outcome.used["deployer"]}
    assert changes & {"update", "create", "delete"}


def test_applied_grants_end_at_team_folders(outcome: Outcome) -> None:
    """The stand-in evaluates the conditions that the provider sent."""
    everything = {"create", "get", "update", "delete"}
    nothing = {folder: set[str]() for folder in FOLDERS}
    readers = nothing | {"train-gang": {"get"}}
    assert outcome.rights == {
        "team-vision": nothing | {"teams/vision": everything},
        "team-speech": nothing | {"teams/speech": everything},
        "batch": readers,
        "server": readers,
        "trainer": {folder: {"get"} for folder in FOLDERS},
    }


@pytest.mark.parametrize("world", WRONG)
def test_wrong_creation_order_is_refused(outcome: Outcome, world: str) -> None:
    assert re.search(WRONG[world][1], outcome.refusals[world]), outcome.refusals[world]


def test_set_order_differs_without_the_exceptions(outcome: Outcome) -> None:
    """Every plan would change lists that the stand-in answers in another order."""
    differs = outcome.without_exceptions
    change = differs["google_container_node_pool.pool-spot-a100"]
    before = change["before"]
    after = change["after"]
    taints_before = before["node_config"][0]["taint"]
    taints_after = after["node_config"][0]["taint"]
    assert taints_before == list(reversed(taints_after))
    assert "google_container_cluster.cluster" in differs


def test_the_night_finds_a_set_that_was_changed_by_hand_and_no_other_order(
    outcome: Outcome,
) -> None:
    cluster, pool = outcome.by_hand
    assert (
        cluster
        == 'google_container_cluster.cluster monitoring_config[0].enable_components lacks "DCGM"'
    )
    assert pool.startswith(
        "google_container_node_pool.pool-spot-l4-g2-standard-8 node_config[0].taint lacks"
    )
