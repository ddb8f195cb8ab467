"""Two teams in one cluster: queues that add up, rights of their own, identities, budgets, and jobs
that find their home.
"""

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import pytest

from holdfast.cost import prices
from holdfast.jobs.file.job_file import OwnJob
from holdfast.jobs.plan import placement
from holdfast.jobs.render import manifests
from holdfast.jobs.submit import prepared_job
from holdfast.lint.engine import Options, lint_texts
from holdfast.manifests.render_context import RenderContext
from holdfast.support.errors import InputError
from infra import describe, specs
from infra.rules import judge_environment
from monitoring.stack import NAMESPACE_COSTS, budget
from tests.infra.samples import EXAMPLE, two_teams
from workloads.manifests import rendering

TEAMS = two_teams()
PLATFORM = describe.platform(TEAMS, {})
GPU = "nvidia.com/gpu"
IMAGE = f"us-docker.pkg.dev/p/r/train@sha256:{'a' * 64}"


def bodies(environment: Any = TEAMS) -> list[Any]:
    return rendering.platform(RenderContext(describe.platform(environment, {})))


def lent(environment: Any) -> Counter[str]:
    """Flavor -> GPUs over all ClusterQueues."""
    found: Counter[str] = Counter()
    for body in bodies(environment):
        for flavor in (
            body["spec"]["resourceGroups"][0]["flavors"] if body["kind"] == "ClusterQueue" else ()
        ):
            found[flavor["name"]] += int(
                next(r["nominalQuota"] for r in flavor["resources"] if r["name"] == GPU)
            )
    return found


def test_teams_get_what_they_are_guaranteed_and_the_cluster_lends_no_more_than_before() -> None:
    assert lent(TEAMS) == lent(EXAMPLE)
    queues = {b["metadata"]["name"]: b["spec"] for b in bodies() if b["kind"] == "ClusterQueue"}
    assert {spec["cohortName"] for spec in queues.values()} == {"gpus"}, "else nothing is borrowed"
    assert all("borrowingLimit" not in str(spec) for spec in queues.values())
    assert (
        queues["vision-spot"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"]
        == "4"
    )
    assert queues["speech-spot"]["namespaceSelector"] == {
        "matchLabels": {"holdfast.dev/team": "speech"}
    }
    local = defaultdict[str, set[str]](set)
    for body in bodies():
        if body["kind"] == "LocalQueue":
            local[body["metadata"]["namespace"]].add(body["spec"]["clusterQueue"])
    assert "vision-spot" in local["vision"] and "spot" not in local["vision"]
    assert local["speech"] == local["speech-dev"] and local["training"] == local["batch"]


def test_a_capacity_smaller_than_what_is_guaranteed_is_shared_in_proportion() -> None:
    one, other = TEAMS.teams
    teams = (one, replace(other, quotas=one.quotas))  # 8 L4 guaranteed; the serving pool has 4
    found = {}
    for body in bodies(replace(TEAMS, teams=teams)):
        if body["kind"] == "ClusterQueue" and "on-demand" in body["metadata"]["name"]:
            found[body["metadata"]["name"]] = next(
                f for f in body["spec"]["resourceGroups"][0]["flavors"] if "serving" in f["name"]
            )
    gpus = {name: int(flavor["resources"][0]["nominalQuota"]) for name, flavor in found.items()}
    assert gpus == {
        "on-demand": 0,
        "vision-on-demand": 2,
        "speech-on-demand": 2,
    }


def test_each_namespace_of_a_team_is_bounded_as_those_of_the_default_team() -> None:
    kinds = ("ResourceQuota", "LimitRange", "PersistentVolumeClaim", "Namespace", "Role")
    of = {
        space: {
            b["kind"]
            for b in bodies()
            if space in (b["metadata"].get("namespace"), b["metadata"]["name"])
        }
        for space in ("vision", "speech-dev")
    }
    assert all(set(kinds) <= found for found in of.values())
    policies = {
        (b["metadata"]["namespace"], b["metadata"]["name"])
        for b in bodies()
        if b["kind"] == "NetworkPolicy"
    }
    assert {(space, "default-deny") for space in of} <= policies
    mover = next(
        b for b in bodies() if b["metadata"]["name"] == "mover" and b["kind"] == "Deployment"
    )
    words = mover["spec"]["template"]["spec"]["containers"][0]["command"]
    assert [words[i + 1] for i, word in enumerate(words) if word == "--team"] == [
        "default=training",
        "default=batch",
        "vision=vision",
        "speech=speech",
        "speech=speech-dev",
    ]
    assert not judge_environment(TEAMS)


def test_identities_and_budget_follow_the_namespace() -> None:
    resources = specs.resources(TEAMS)
    members = {str(r.arguments.get("member")) for r in resources}
    assert f"serviceAccount:{TEAMS.workload_pool}[vision/batch]" in members
    assert any(m.endswith("/subject/ns/vision/sa/run-detector") for m in members)
    assert not any(m.endswith("/subject/ns/training/sa/run-detector") for m in members)
    planned: Any = budget(TEAMS, [], TEAMS.teams[0])
    assert planned["budget_filter"]["labels"] == {NAMESPACE_COSTS: "vision"}
    assert planned["amount"]["specified_amount"]["units"] == "500"


def test_the_linter_finds_nothing_in_them() -> None:
    texts = {
        name: text for name, text in rendering.texts(PLATFORM).items() if name.endswith(".yaml")
    }
    assert "platform/11-teams.yaml" in texts
    assert [str(hit) for hit in lint_texts(texts, Options(platforms=[PLATFORM])).active] == []


def own(**fields: Any) -> OwnJob:
    given: dict[str, Any] = {
        "name": "detector",
        "environment": "example",
        "image": IMAGE,
        "command": ("python", "train.py"),
    }
    given |= {"gpus": "1xl4"} | fields
    return OwnJob(**given)


@pytest.mark.parametrize("shape", [{"nodes": 2}, {"nodes": "2..4"}, {"nodes": 1}])
def test_all_that_a_job_sends_is_in_its_teams_namespace(shape: dict[str, Any]) -> None:
    job = own(namespace="vision", **shape)
    placed = placement.place(job, PLATFORM, prices.load())
    made = manifests.bodies(job, RenderContext(PLATFORM), placed)
    assert {body["metadata"]["namespace"] for body in made} == {"vision"}
    assert "run-detector" in str(made[-1])


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"namespace": "mine"}, "training, batch, vision"),
        ({}, "allowed vision"),
        ({"namespace": "speech"}, "allowed vision"),
    ],
)
def test_a_job_without_a_home_is_refused(fields: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match="namespace") as caught:
        prepared_job.prepare(own(**fields), PLATFORM)
    assert word in f"allowed {caught.value.allowed}"
