"""A run's identity has no right on another's checkpoints: rendered pods against the policy that is
deployed.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from holdfast.manifests.render_context import RenderContext
from holdfast.support import object_names
from holdfast.vocabulary.environment import ENV_RUN
from holdfast.vocabulary.kubernetes import ANNOTATION_GOOGLE_ACCOUNT
from infra import specs
from infra.describe import platform
from infra.environments import Environment, load
from infra.environments.runs import READERS, Run
from infra.rules import judge_environment
from infra.rules.identity import runs_are_read_by_name, runs_write_their_own
from infra.rules.model import Check, read_specs
from tests.infra.bucket_access import LIST, OBJECTS, may, principal
from tests.infra.rules.edits import put
from tests.infra.samples import make_hardened
from tests.workloads.manifests.rendered import jobs, load_objects, strip_version, workloads

PROD = load("prod")


def policy(environment: Environment, purpose: str = "checkpoints") -> list[dict[str, Any]]:
    """Return the grants on the bucket of a purpose."""
    bucket = environment.bucket(purpose)
    grants = []
    for resource in specs.resources(environment):
        is_grant = resource.kind == "google_storage_bucket_iam_member"
        if is_grant and resource.arguments["bucket"] == bucket:
            grants.append(dict(resource.arguments))
    return grants


def rights(
    grants: list[dict[str, Any]],
    identity: str,
    bucket: str,
    name: str,
) -> set[str]:
    """Return what an identity may do with an object."""
    rights: set[str] = set()
    for right in OBJECTS:
        if may(grants, identity, right, bucket, name):
            rights.add(right)
    return rights


def trainers() -> dict[str, tuple[str, list[str]]]:
    """Return name -> identity of the pods, and the runs that they write, of rendered training
    jobs.
    """
    accounts = {}
    for b in load_objects("prod"):
        if b["kind"] == "ServiceAccount":
            accounts[b["metadata"]["name"]] = b
    runs_by_job: dict[str, tuple[str, list[str]]] = {}
    for body, spec in jobs("prod"):
        template = spec["template"]
        container = template["spec"]["containers"][0]
        if "train" not in container["command"]:
            continue
        account = template["spec"]["serviceAccountName"]
        run = find_run(container)
        assert ANNOTATION_GOOGLE_ACCOUNT not in accounts[account]["metadata"].get("annotations", {})
        identity = principal(PROD.project_number.lower(), PROD.workload_pool, "training", account)
        numbered = run.replace("$(JOB_COMPLETION_INDEX)", "{}")
        if numbered != run:
            runs = []
            for index in range(spec["completions"]):
                runs.append(numbered.format(index))
        else:
            runs = [run]
        runs_by_job[strip_version(body)] = identity, runs
    return runs_by_job


def list_objects(run: str) -> list[str]:
    """One object of each kind that training makes."""
    attempt = "0123456789ab"
    return [
        object_names.commit_object(run, 3),
        object_names.shard_object(run, 3, attempt, 0, 0),
        object_names.manifest_object(run, 3, attempt, 0),
        object_names.epoch_object(run, 1),
        object_names.gang_object(run, 1),
    ]


def test_each_rendered_job_can_use_its_own_run_and_no_other() -> None:
    bucket = PROD.bucket("checkpoints")
    granted = policy(PROD)
    jobs = trainers()
    assert set(jobs) == {run.name for run in PROD.storage.runs}
    for job, (identity, runs) in jobs.items():
        assert may(granted, identity, LIST, bucket)
        assert not may(granted, identity, "create", bucket, "stray")
        for owner, (_, owner_runs) in jobs.items():
            for run in owner_runs:
                expected = set(OBJECTS) if run in runs else set[str]()
                for name in list_objects(run):
                    assert rights(granted, identity, bucket, name) == expected, (job, owner, name)


def find_run(container: dict[str, Any]) -> str:
    """Returns the run of a trainer, which is an option or a variable."""
    words = container["command"]
    if "--run" in words:
        return words[words.index("--run") + 1]
    return next(entry["value"] for entry in container["env"] if entry["name"] == ENV_RUN)


def loaders() -> Iterator[tuple[str, str, str]]:
    """Rendered pods of batch and serving that load checkpoints: role, Google account, run."""
    accounts = {}
    for b in load_objects("prod"):
        if b["kind"] == "ServiceAccount":
            accounts[(b["metadata"]["namespace"], b["metadata"]["name"])] = b
    for body, template in workloads("prod"):
        words = template["spec"]["containers"][0].get("command", [])
        if "--run" in words and ("batch" in words or "serve" in words):
            role = template["spec"]["serviceAccountName"]
            acts_as = accounts[body["metadata"]["namespace"], role]["metadata"]["annotations"]
            yield role, acts_as[ANNOTATION_GOOGLE_ACCOUNT], words[words.index("--run") + 1]


def test_each_rendered_pod_that_loads_reads_its_run_and_no_other() -> None:
    bucket = PROD.bucket("checkpoints")
    granted = policy(PROD)
    pods = list(loaders())
    roles = {role for role, _, _ in pods}
    assert roles == set(READERS)
    runs: list[str] = []
    for _, names in trainers().values():
        runs += names
    for role, email, loaded in pods:
        identity = f"serviceAccount:{email}"
        assert loaded in runs
        assert may(granted, identity, LIST, bucket)
        for run in runs:
            expected = {"get"} if run == loaded else set[str]()
            for name in list_objects(run):
                assert rights(granted, identity, bucket, name) == expected, (role, run)


def test_verifier_reads_all_runs_and_runs_read_data_without_writing() -> None:
    verifier = PROD.member("trainer")
    checkpoints = PROD.bucket("checkpoints")
    for run in PROD.storage.runs:
        assert rights(policy(PROD), verifier, checkpoints, f"{run.name}/x") == {"get"}
    data = PROD.bucket("data")
    for identity, _ in trainers().values():
        assert rights(policy(PROD, "data"), identity, data, "a") == {"get"}


def test_more_runs_than_a_condition_holds_are_read_by_several_grants() -> None:
    runs = tuple(Run(name=f"r{n}", read_by=("server",)) for n in range(25))
    environment = replace(make_hardened(), storage=replace(make_hardened().storage, runs=runs))
    identity = environment.member("server")
    bucket = environment.bucket("checkpoints")
    grants = []
    for g in policy(environment):
        if g["member"] == identity and "condition" in g:
            grants.append(g)
    assert [g["condition"]["expression"].count("||") for g in grants] == [11, 11, 0]
    for run in runs:
        assert may(grants, identity, "get", bucket, f"{run.name}/x")
    assert not judge_environment(environment)


def test_a_name_that_another_begins_with_is_another_run() -> None:
    environment = make_hardened()
    bucket = environment.bucket("checkpoints")
    pool = environment.workload_pool
    first = principal(environment.project_number, pool, "training", "run-gang")
    second = principal(environment.project_number, pool, "training", "run-gang-2")
    assert may(policy(environment), first, "delete", bucket, "gang/step")
    assert not may(policy(environment), first, "delete", bucket, "gang-2/step")
    assert not may(policy(environment), second, "delete", bucket, "gang/step")
    elsewhere = principal(environment.project_number, pool, "batch", "run-gang")
    assert not may(policy(environment), elsewhere, "delete", bucket, "gang/step")


def test_without_listed_runs_training_writes_below_one_prefix() -> None:
    shared = load("example")
    bucket = shared.bucket("checkpoints")
    granted = policy(shared)
    identity = shared.member("trainer")
    root = RenderContext(platform(shared)).checkpoints
    assert root == f"gs://{bucket}/default"
    for name in list_objects("any"):
        assert may(granted, identity, LIST, bucket)
        assert rights(granted, identity, bucket, f"default/{name}") == set(OBJECTS)
        assert rights(granted, identity, bucket, name) <= {"get"}
    for words in (s["template"]["spec"]["containers"][0]["command"] for _, s in jobs("example")):
        assert "--checkpoints" not in words or words[words.index("--checkpoints") + 1] == root
    assert not judge_environment(shared)
    whole = put("google_storage_bucket_iam_member.runs-trainer", "condition", None)(
        read_specs(shared)
    )
    (violation,) = runs_write_their_own(whole)
    assert "runs-trainer" in violation.where


WIDER = {
    "no condition": None,
    "another run's, or one that names another role": (
        'resource.name.startsWith("projects/_/buckets/{bucket}/objects/gang-2/")'
    ),
    "no slash": 'resource.name.startsWith("projects/_/buckets/{bucket}/objects/gang")',
    "opened again": 'resource.name.startsWith("projects/_/buckets/{bucket}/objects/gang/") || true',
    "another bucket's": 'resource.name.startsWith("projects/_/buckets/other/objects/gang/")',
    "one more": (
        'resource.name.startsWith("projects/_/buckets/{bucket}/objects/gang/") || '
        'resource.name.startsWith("projects/_/buckets/{bucket}/objects/gang-2/")'
    ),
}


@pytest.mark.parametrize("condition", WIDER)
@pytest.mark.parametrize(
    ("rule", "grant"),
    [(runs_write_their_own, "run-gang"), (runs_are_read_by_name, "runs-server")],
    ids=["write", "read"],
)
def test_a_wider_grant_breaks_the_rule(rule: Check, grant: str, condition: str) -> None:
    facts = read_specs(make_hardened())
    text = WIDER[condition]
    assert not list(rule(facts))
    wider = text and {"expression": text.format(bucket=make_hardened().bucket("checkpoints"))}
    (violation,) = rule(put(f"google_storage_bucket_iam_member.{grant}", "condition", wider)(facts))
    assert grant in violation.where
