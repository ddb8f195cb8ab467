"""Every stack of every environment is applied, planned again and destroyed by the real provider.

Google is a stand-in that knows the published definitions of its APIs and refuses what they do not know. It has the
habits that the provider does not hide: answers in another order, grants that take minutes, names that stay taken.
"""

import json
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from infra.contract import names
from infra.ops.engine import EngineFailed
from infra.specs.cluster import IGNORED
from tests.plan.stand_in import apply, definitions
from tests.plan.stand_in.server import serving
from tests.plan.stand_in.world import World

pytestmark = [pytest.mark.plan, pytest.mark.timeout(900)]
ENVIRONMENTS = ("dev", "example", "prod")
NewProject = Callable[[str, str], apply.Project]


@dataclass(kw_only=True)
class Story:
    """What came of one environment, from a fresh project to an empty one."""

    project: apply.Project
    differs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Address -> what a plan right after the apply would change."""
    without_exceptions: dict[str, Any] = field(default_factory=dict[str, Any])
    """The same for the cluster's stack, if it ignored no change of what is a set to the API."""
    left: list[str] = field(default_factory=list[str])


@pytest.fixture(scope="module")
def synthesised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return apply.synthesise(tmp_path_factory.mktemp("settled"), "settled", *ENVIRONMENTS)


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
def stories(synthesised: Path, new_project: NewProject, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Story]:
    with ThreadPoolExecutor(len(ENVIRONMENTS) + 1) as pool:
        unprotected = pool.submit(apply.synthesise, tmp_path_factory.mktemp("unprotected"), "unprotected", "prod")
        running = {
            name: pool.submit(_story, name, new_project(name, name), synthesised, unprotected) for name in ENVIRONMENTS
        }
        return {name: done.result() for name, done in running.items()}


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


def _story(environment: str, project: apply.Project, synthesised: Path, unprotected: Future[Path]) -> Story:
    """Deploy, compare, destroy: the steps of `infra.ops.deploy`, which the cdktf command line takes elsewhere."""
    story = Story(project=project)
    stacks = names.stacks(environment)
    for stack in stacks:
        project.apply(project.stack(synthesised, stack))
    for stack in stacks:
        story.differs |= project.changes(project.folder / stack)
    if environment == "dev":
        cluster = edited(project, synthesised, "cluster-dev", no_exceptions)
        story.without_exceptions = project.changes(cluster)
    if environment == "prod":
        for stack in stacks:
            project.apply(project.stack(unprotected.result(), stack))
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
    assert stories[environment].project.world.resources.keys() == set(stories[environment].left)


@pytest.mark.parametrize(
    ("message", "value", "problem"),
    [
        ("NodeTaint", {"key": "a", "effect": "NoSchedule"}, "effect: 'NoSchedule' is none of"),
        ("NodePool", {"config": {"machine_type": "e2-medium"}}, "config.machine_type: no field of NodeConfig"),
        ("NodePool", {"initialNodeCount": "three"}, "initialNodeCount: 'three' is no integer"),
        ("NodePool", {"locations": "us-central1-a"}, "locations: 'us-central1-a' is no list"),
    ],
)
def test_a_body_that_googles_definitions_do_not_know_is_refused(message: str, value: Any, problem: str) -> None:
    assert any(problem in found for found in definitions.misfits("container", message, value, ""))


def test_every_kind_that_is_planned_was_applied(stories: dict[str, Story]) -> None:
    calls = {call for story in stories.values() for call in story.project.world.calls}
    for call in ("sql.instances.insert", "billingbudgets.billingAccounts.budgets.create", "dns.changes.create"):
        assert call in calls


def test_a_key_is_used_only_once_its_grants_are_in_force(synthesised: Path, new_project: NewProject) -> None:
    def hasten(resources: dict[str, Any]) -> None:
        del resources["terraform_data"]["key-in-force"]["provisioner"]

    project = new_project("prod", "hasty")
    stack = edited(project, synthesised, "foundation-prod", hasten)
    with pytest.raises(EngineFailed, match="Permission denied on Cloud KMS key"):
        project.apply(stack, "-target=google_storage_bucket.data")


def test_a_resource_comes_after_its_api(synthesised: Path, new_project: NewProject) -> None:
    project = new_project("dev", "disordered")
    stack = edited(project, synthesised, "foundation-dev", lambda r: r["google_pubsub_topic"]["dead"].pop("depends_on"))
    with pytest.raises(EngineFailed, match=r"pubsub\.googleapis\.com has not been used"):
        project.apply(stack, "-target=google_pubsub_topic.dead")


def test_a_grant_needs_the_agent_that_bootstrap_makes(synthesised: Path, new_project: NewProject) -> None:
    project = new_project("dev", "unprepared")
    project.world.agents.clear()
    stack = project.stack(synthesised, "foundation-dev")
    with pytest.raises(EngineFailed, match=r"gcp-sa-pubsub\S+ does not exist"):
        project.apply(stack, "-target=google_pubsub_topic_iam_member.dead-agent")


def test_the_order_of_sets_differs_without_the_exceptions(stories: dict[str, Story]) -> None:
    """What the stand-in answers in another order would be changed by every plan."""
    differs = stories["dev"].without_exceptions
    before, after = (differs["google_container_node_pool.pool-spot-a100"][side] for side in ("before", "after"))
    assert before["node_config"][0]["taint"] == list(reversed(after["node_config"][0]["taint"]))
    assert "google_container_cluster.cluster" in differs


def test_a_destroyed_database_comes_back_as_the_next_generation(
    stories: dict[str, Story], synthesised: Path, tmp_path: Path
) -> None:
    """Google holds its name for a week, and the peering with the range of the last deployment is still there."""
    project, only = stories["example"].project, "-target=google_sql_database_instance.results"
    with pytest.raises(EngineFailed, match="can be used again a week later"):
        project.apply(project.stack(synthesised, "foundation-example"), only)
    again = apply.synthesise(tmp_path / "again", "again", "example")
    project.apply(project.stack(again, "foundation-example"), only)
    assert any(path.endswith("holdfast-example-results-2") for path in project.world.resources)
