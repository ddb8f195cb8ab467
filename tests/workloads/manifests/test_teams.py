"""Tests of two teams in one cluster: queues, rights, identities, budgets, namespaces of jobs."""

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from holdfast.clients.api import Object
from holdfast.cost import prices
from holdfast.jobs.file.job_file import JobSpec
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

Body = dict[str, Any]
TEAMS = two_teams()
PLATFORM = describe.platform(TEAMS, {})
GPU = "nvidia.com/gpu"
IMAGE = f"us-docker.pkg.dev/p/r/train@sha256:{'a' * 64}"


def bodies(environment: Any = TEAMS) -> list[Any]:
    return rendering.platform(RenderContext(describe.platform(environment, {})))


def list_queues(environment: Any = TEAMS) -> Body:
    """Returns the specs of the ClusterQueues by name."""
    specs: Body = {}
    for body in bodies(environment):
        if body["kind"] == "ClusterQueue":
            specs[body["metadata"]["name"]] = body["spec"]
    return specs


def read_gpus(queue: Any) -> dict[str, int]:
    """Returns the GPUs that a ClusterQueue lends by flavor."""
    gpus: dict[str, int] = {}
    for flavor in queue["resourceGroups"][0]["flavors"]:
        quotas = {}
        for resource in flavor["resources"]:
            quotas[resource["name"]] = resource["nominalQuota"]
        gpus[flavor["name"]] = int(quotas[GPU])
    return gpus


def sum_gpus(environment: Any) -> Counter[str]:
    """Returns the GPUs of each flavor over all ClusterQueues."""
    gpus: Counter[str] = Counter()
    for queue in list_queues(environment).values():
        gpus.update(read_gpus(queue))
    return gpus


def test_team_quotas_add_up_to_the_cluster_quota() -> None:
    assert sum_gpus(TEAMS) == sum_gpus(EXAMPLE)
    queues = list_queues()
    for queue in queues.values():
        assert queue["cohortName"] == "gpus", "else nothing is borrowed"
        assert "borrowingLimit" not in str(queue)
    assert next(iter(read_gpus(queues["vision-spot"]).values())) == 4
    labels = queues["speech-spot"]["namespaceSelector"]["matchLabels"]
    assert labels == {"holdfast.dev/team": "speech"}
    queues_by_namespace = defaultdict[str, set[str]](set)
    for body in bodies():
        if body["kind"] == "LocalQueue":
            queues_by_namespace[body["metadata"]["namespace"]].add(body["spec"]["clusterQueue"])
    vision_queues = queues_by_namespace["vision"]
    assert "vision-spot" in vision_queues
    assert "spot" not in vision_queues
    assert queues_by_namespace["speech"] == queues_by_namespace["speech-dev"]
    assert queues_by_namespace["training"] == queues_by_namespace["batch"]


def test_small_capacity_is_shared_in_proportion() -> None:
    vision, speech = TEAMS.teams
    # 8 L4 are guaranteed; the on-demand group for jobs has 4.
    teams = (vision, replace(speech, quotas=vision.quotas))
    gpus: dict[str, int] = {}
    for name, queue in list_queues(replace(TEAMS, teams=teams)).items():
        for flavor, count in read_gpus(queue).items():
            if "on-demand" in name and "demand-l4" in flavor:
                gpus[name] = count
    assert gpus == {
        "on-demand": 0,
        "vision-on-demand": 2,
        "speech-on-demand": 2,
    }


def test_team_namespaces_have_the_default_bounds() -> None:
    objects: set[tuple[str, str, str]] = set()
    for body in bodies():
        metadata = body["metadata"]
        objects.add((body["kind"], metadata.get("namespace", ""), metadata["name"]))
    for namespace in ("vision", "speech-dev"):
        assert ("Namespace", "", namespace) in objects
        assert ("NetworkPolicy", namespace, "default-deny") in objects
        kinds = set()
        for kind, home, _ in objects:
            if home == namespace:
                kinds.add(kind)
        assert {"ResourceQuota", "LimitRange", "PersistentVolumeClaim", "Role"} <= kinds
    assert not judge_environment(TEAMS)


def test_mover_knows_all_team_namespaces() -> None:
    deployments = [body for body in bodies() if body["kind"] == "Deployment"]
    (mover,) = [body for body in deployments if body["metadata"]["name"] == "mover"]
    words = mover["spec"]["template"]["spec"]["containers"][0]["command"]
    teams = []
    for word, successor in pairwise(words):
        if word == "--team":
            teams.append(successor)
    assert teams == [
        "default=training",
        "default=batch",
        "vision=vision",
        "speech=speech",
        "speech=speech-dev",
    ]


def test_identities_and_budget_follow_the_namespace() -> None:
    resources = specs.resources(TEAMS)
    members = {str(resource.arguments.get("member")) for resource in resources}
    assert f"serviceAccount:{TEAMS.workload_pool}[vision/batch]" in members
    subjects = {member.partition("/subject/")[2] for member in members}
    assert "ns/vision/sa/run-detector" in subjects
    assert "ns/training/sa/run-detector" not in subjects
    team_budget: Any = budget(TEAMS, [], TEAMS.teams[0])
    assert team_budget["budget_filter"]["labels"] == {NAMESPACE_COSTS: "vision"}
    assert team_budget["amount"]["specified_amount"]["units"] == "500"


def test_team_servers_act_as_the_team() -> None:
    vision, speech = TEAMS.teams
    serving = replace(TEAMS, teams=(replace(vision, service_gpus=2), speech))
    servers: list[str] = []
    for resource in specs.resources(serving):
        member = str(resource.arguments.get("member"))
        if member.endswith("/server]"):
            servers.append(member.removeprefix(f"serviceAccount:{TEAMS.workload_pool}"))
    assert servers == ["[serving/server]", "[vision/server]"]
    accounts: dict[str, str] = {}
    for body in bodies(serving):
        metadata = body["metadata"]
        if body["kind"] == "ServiceAccount" and metadata["name"] == "server":
            accounts[metadata["namespace"]] = str(metadata["annotations"])
    assert "team-vision" in accounts["vision"]
    assert "team-vision" not in accounts["serving"]
    assert not judge_environment(serving)


def test_manifests_with_two_teams_are_clean() -> None:
    texts = rendering.texts(PLATFORM)
    manifests = {}
    for name, text in texts.items():
        if name.endswith(".yaml"):
            manifests[name] = text
    assert "platform/11-teams.yaml" in manifests
    report = lint_texts(manifests, Options(platforms=[PLATFORM]))
    assert [str(finding) for finding in report.active] == []


def make_job(**fields: Any) -> JobSpec:
    defaults: Object = {
        "name": "detector",
        "environment": "example",
        "image": IMAGE,
        "command": ("python", "train.py"),
        "gpus": "1xl4",
    }
    return JobSpec(**(defaults | fields))


@pytest.mark.parametrize("shape", [{"nodes": 2}, {"nodes": "2..4"}, {"nodes": 1}])
def test_job_objects_are_in_the_teams_namespace(shape: Body) -> None:
    job = make_job(namespace="vision", **shape)
    placed_job = placement.place(job, PLATFORM, prices.load())
    objects = manifests.bodies(job, RenderContext(PLATFORM), placed_job)
    assert {body["metadata"]["namespace"] for body in objects} == {"vision"}
    assert "run-detector" in str(objects[-1])


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"namespace": "mine"}, "training, batch, vision"),
        ({}, "allowed vision"),
        ({"namespace": "speech"}, "allowed vision"),
    ],
)
def test_job_without_a_namespace_is_rejected(fields: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match="namespace") as error:
        prepared_job.prepare(make_job(**fields), PLATFORM)
    assert word in f"allowed {error.value.allowed}"
