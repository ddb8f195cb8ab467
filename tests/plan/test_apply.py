"""Every stack of an open and of a hardened environment is applied, planned again and destroyed by the real provider.

Google is a stand-in that knows the published definitions of its APIs and refuses what they do not know. It has the
habits that the provider does not hide: answers in another order, and grants that take minutes.
"""

import filecmp
import json
import re
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from infra.contract import names
from infra.ops import drift
from infra.ops.engine import EngineFailed
from infra.specs.cluster import IGNORED
from tests.plan.stand_in import apply
from tests.plan.stand_in.app import settled
from tests.plan.stand_in.server import serving
from tests.plan.stand_in.world import World

pytestmark = [pytest.mark.plan, pytest.mark.timeout(900)]
ENVIRONMENTS = ("example", "prod")
NewProject = Callable[[str, str], apply.Project]


@dataclass(kw_only=True)
class Story:
    """What came of one environment, from a fresh project to an empty one."""

    project: apply.Project
    differs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Address -> what a plan right after the apply would change."""
    without_exceptions: dict[str, Any] = field(default_factory=dict[str, Any])
    """The same for the cluster's stack, if it ignored no change of what is a set to the API."""
    by_hand: list[str] = field(default_factory=list[str])
    """What the nightly comparison finds of it, after somebody changed two of those sets."""
    left: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, kw_only=True)
class Synthesised:
    """Folders of stacks, by variant."""

    settled: Path
    unprotected: Path


@dataclass(frozen=True, kw_only=True)
class Played:
    stories: dict[str, Story]
    refusals: dict[str, str]
    """World -> what Terraform printed of the one thing that is wrong there."""


@pytest.fixture(scope="module")
def synthesised(tmp_path_factory: pytest.TempPathFactory) -> Synthesised:
    asked = (*(f"settled:{name}" for name in ENVIRONMENTS), "unprotected:prod")
    made = apply.synthesise(tmp_path_factory.mktemp("variants"), *asked)
    return Synthesised(settled=made / "settled", unprotected=made / "unprotected")


@pytest.fixture(scope="module")
def new_project(tmp_path_factory: pytest.TempPathFactory) -> Generator[NewProject]:
    """`new_project("prod", "hasty")`: for that environment, in a world of that name."""
    worlds: dict[str, World] = {}
    folder = tmp_path_factory.mktemp("projects")
    with serving(worlds) as address:

        def project(environment: str, world: str) -> apply.Project:
            worlds[world] = apply.fresh_project(environment)
            return apply.Project(folder=folder / world, address=address, world=worlds[world])

        yield project


@pytest.fixture(scope="module")
def played(synthesised: Synthesised, new_project: NewProject) -> Played:
    """All at once: the provider waits for most of the time, whatever answers it."""
    with ThreadPoolExecutor(len(ENVIRONMENTS) + len(WRONG)) as pool:
        stories = {name: pool.submit(_story, name, new_project(name, name), synthesised) for name in ENVIRONMENTS}
        refusals = {
            world: pool.submit(_refusal, wrong, new_project(wrong.environment, world), synthesised.settled)
            for world, wrong in WRONG.items()
        }
        return Played(
            stories={name: done.result() for name, done in stories.items()},
            refusals={world: done.result() for world, done in refusals.items()},
        )


@pytest.fixture(scope="module")
def stories(played: Played) -> dict[str, Story]:
    return played.stories


def differ(one: Path, other: Path, stack: str) -> bool:
    return not filecmp.cmp(*(made / "stacks" / stack / "cdk.tf.json" for made in (one, other)), shallow=False)


def edited(project: apply.Project, synthesised: Path, stack: str, edit: Callable[[dict[str, Any]], object]) -> Path:
    """A stack with one thing wrong."""
    folder = project.stack(synthesised, stack)
    configuration = json.loads((folder / "cdk.tf.json").read_text())
    edit(configuration["resource"])
    (folder / "cdk.tf.json").write_text(json.dumps(configuration))
    return folder


def no_exceptions(resources: dict[str, Any]) -> None:
    resources["google_container_cluster"]["cluster"]["lifecycle"] = {"ignore_changes": IGNORED[:3]}
    for pool in resources["google_container_node_pool"].values():
        pool["lifecycle"] = {"ignore_changes": ["initial_node_count"]}


def change_by_hand(world: World) -> None:
    """Past Terraform, which ignores both lists."""
    cluster = next(r for path, r in world.resources.items() if re.search(r"/clusters/[^/]+$", path))
    cluster["monitoringConfig"]["componentConfig"]["enableComponents"].remove("DCGM")
    pool = next(r for path, r in world.resources.items() if path.endswith("/nodePools/spot-l4-g2-standard-8"))
    pool["config"]["taints"] = [taint for taint in pool["config"]["taints"] if taint["key"] != "provisioning-tier"]


def hasten(resources: dict[str, Any]) -> None:
    del resources["terraform_data"]["key-in-force"]["provisioner"]


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """One thing that is wrong in a foundation, and the resource that Google then refuses."""

    environment: str
    target: str
    edit: Callable[[dict[str, Any]], object] = lambda resources: None
    agents: bool = True
    """Whether bootstrap was run."""


WRONG = {
    "hasty": Wrong(environment="prod", target="google_storage_bucket.data", edit=hasten),
    "disordered": Wrong(
        environment="example",
        target="google_pubsub_topic.dead",
        edit=lambda resources: resources["google_pubsub_topic"]["dead"].pop("depends_on"),
    ),
    "unprepared": Wrong(environment="example", target="google_pubsub_topic_iam_member.dead-agent", agents=False),
}


def _refusal(wrong: Wrong, project: apply.Project, synthesised: Path) -> str:
    """What Terraform printed; empty where all went well."""
    if not wrong.agents:
        project.world.agents.clear()
    stack = edited(project, synthesised, f"foundation-{wrong.environment}", wrong.edit)
    try:
        project.apply(stack, f"-target={wrong.target}")
    except EngineFailed as error:
        return error.output
    return ""


def _story(environment: str, project: apply.Project, synthesised: Synthesised) -> Story:
    """Deploy, compare, destroy: the steps of `infra.ops.deploy`, which the cdktf command line takes elsewhere."""
    story = Story(project=project)
    stacks = names.stacks(environment)
    for stack in stacks:
        project.apply(project.stack(synthesised.settled, stack))
    with ThreadPoolExecutor(len(stacks)) as pool:
        for changes in pool.map(project.changes, [project.folder / stack for stack in stacks]):
            story.differs |= changes
        if environment == "prod":
            guarded = [stack for stack in stacks if differ(synthesised.settled, synthesised.unprotected, stack)]
            list(pool.map(project.apply, [project.stack(synthesised.unprotected, stack) for stack in guarded]))
    if environment == "example":
        change_by_hand(project.world)
        cluster = edited(project, synthesised.settled, "cluster-example", no_exceptions)
        story.without_exceptions = project.changes(cluster)
        found = [{"address": address, "change": change} for address, change in story.without_exceptions.items()]
        ignored = drift.ignored_differences(settled("example"), {"resource_changes": found})
        story.by_hand = [f"{change.address} {change.difference}" for change in ignored]
    for stack in reversed(stacks):
        project.destroy(project.folder / stack)
    story.left = sorted(project.world.resources)
    return story


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_a_plan_after_the_apply_is_empty(stories: dict[str, Story], environment: str) -> None:
    assert stories[environment].differs == {}


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_a_destroy_leaves_the_abandoned_peering_and_nothing_else(stories: dict[str, Story], environment: str) -> None:
    assert [path for path in stories[environment].left if "/connections/" not in path] == []


def test_every_kind_that_is_planned_was_applied(stories: dict[str, Story]) -> None:
    calls = {call for story in stories.values() for call in story.project.world.calls}
    for call in ("sql.instances.insert", "billingbudgets.billingAccounts.budgets.create", "dns.changes.create"):
        assert call in calls


@pytest.mark.parametrize(
    ("world", "pattern"),
    [
        pytest.param(
            "hasty", "Permission denied on Cloud KMS key", id="a key is used only once its grants are in force"
        ),
        pytest.param("disordered", r"pubsub\.googleapis\.com has not been used", id="a resource comes after its API"),
        pytest.param("unprepared", r"gcp-sa-pubsub\S+ does not exist", id="a grant needs the agent of bootstrap"),
    ],
)
def test_what_the_stacks_keep_in_order_is_refused_without_it(played: Played, world: str, pattern: str) -> None:
    assert re.search(pattern, played.refusals[world]), played.refusals[world]


def test_the_order_of_sets_differs_without_the_exceptions(stories: dict[str, Story]) -> None:
    """What the stand-in answers in another order would be changed by every plan."""
    differs = stories["example"].without_exceptions
    before, after = (differs["google_container_node_pool.pool-spot-a100"][side] for side in ("before", "after"))
    assert before["node_config"][0]["taint"] == list(reversed(after["node_config"][0]["taint"]))
    assert "google_container_cluster.cluster" in differs


def test_the_night_finds_a_set_that_was_changed_by_hand_and_no_other_order(stories: dict[str, Story]) -> None:
    cluster, pool = sorted(stories["example"].by_hand)
    assert cluster == 'google_container_cluster.cluster monitoring_config[0].enable_components lacks "DCGM"'
    assert pool.startswith("google_container_node_pool.pool-spot-l4-g2-standard-8 node_config[0].taint lacks")
