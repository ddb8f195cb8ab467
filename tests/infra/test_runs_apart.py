"""A run's identity has no right on another's checkpoints: rendered pods against the policy that is
deployed.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from holdfast.manifests.render_context import RenderContext
from holdfast.support import object_names
from holdfast.vocabulary.kubernetes import ANNOTATION_GOOGLE_ACCOUNT
from infra import specs
from infra.describe import platform
from infra.environments import Environment, load
from infra.environments.runs import READERS, Run
from infra.environments.schema import Storage
from infra.rules import judge_environment
from infra.rules.identity import runs_are_read_by_name, runs_write_their_own
from infra.rules.model import Check, facts_of_specs
from tests.infra.bucket_access import LIST, OBJECTS, may, principal
from tests.infra.rules.edits import put
from tests.infra.samples import hardened
from tests.workloads.manifests.rendered import bodies, jobs, unversioned, workloads

PROD = load("prod")


def policy(environment: Environment, purpose: str = "checkpoints") -> list[dict[str, Any]]:
    grants = []
    for r in specs.resources(environment):
        if r.kind == "google_storage_bucket_iam_member":
            grants.append(r.arguments)
    return [dict(grant) for grant in grants if grant["bucket"] == environment.bucket(purpose)]


def trainers() -> dict[str, tuple[str, list[str]]]:
    """Of the rendered jobs that train: name -> identity of the pods, and the runs that they write."""
    accounts = {b["metadata"]["name"]: b for b in bodies("prod") if b["kind"] == "ServiceAccount"}
    found: dict[str, tuple[str, list[str]]] = {}
    for body, spec in jobs("prod"):
        template = spec["template"]
        words = template["spec"]["containers"][0]["command"]
        if "train" not in words:
            continue
        account = template["spec"]["serviceAccountName"]
        run = words[words.index("--run") + 1]
        assert ANNOTATION_GOOGLE_ACCOUNT not in accounts[account]["metadata"].get("annotations", {})
        identity = principal(PROD.project_number.lower(), PROD.workload_pool, "training", account)
        numbered = run.replace("$(JOB_COMPLETION_INDEX)", "{}")
        if numbered != run:
            runs = [numbered.format(index) for index in range(spec["completions"])]
        else:
            runs = [run]
        found[unversioned(body)] = identity, runs
    return found


def written_by(run: str) -> list[str]:
    """One object of each kind that training makes."""
    attempt = "0123456789ab"
    return [
        object_names.commit_object(run, 3),
        object_names.shard_object(run, 3, attempt, 0, 0),
        object_names.manifest_object(run, 3, attempt, 0),
        object_names.epoch_object(run, 1),
        object_names.gang_object(run, 1),
    ]


def test_each_rendered_job_does_what_it_must_with_its_own_run_and_nothing_with_another() -> None:
    bucket = PROD.bucket("checkpoints")
    granted = policy(PROD)
    found = trainers()
    assert set(found) == {run.name for run in PROD.storage.runs}
    for job, (identity, runs) in found.items():
        assert may(granted, identity, LIST, bucket) and not may(
            granted, identity, "create", bucket, "stray"
        )
        assert all(
            may(granted, identity, each, bucket, name)
            for run in runs
            for name in written_by(run)
            for each in OBJECTS
        )
        others = [run for other, (_, theirs) in found.items() if other != job for run in theirs]
        for name in [name for run in others for name in written_by(run)]:
            assert not [each for each in OBJECTS if may(granted, identity, each, bucket, name)], (
                job,
                name,
            )


def loaders() -> Iterator[tuple[str, str, str]]:
    """Rendered pods of batch and serving that load checkpoints: role, Google account, run."""
    accounts = {}
    for b in bodies("prod"):
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
    found = list(loaders())
    assert {role for role, _, _ in found} == set(READERS)
    runs = [name for _, names in trainers().values() for name in names]
    for role, email, loaded in found:
        identity = f"serviceAccount:{email}"
        assert loaded in runs and may(granted, identity, LIST, bucket)
        for run in runs:
            for name in written_by(run):
                rights = {each for each in OBJECTS if may(granted, identity, each, bucket, name)}
                assert rights == ({"get"} if run == loaded else set()), (role, run)


def test_who_verifies_reads_every_run_and_runs_read_the_data_and_neither_writes() -> None:
    verifies = PROD.member("trainer")
    asked = [(verifies, "checkpoints", f"{run.name}/x") for run in PROD.storage.runs]
    for identity, purpose, name in [
        *asked,
        *((identity, "data", "a") for identity, _ in trainers().values()),
    ]:
        rights = set()
        for each in OBJECTS:
            if may(policy(PROD, purpose), identity, each, PROD.bucket(purpose), name):
                rights.add(each)
        assert rights == {"get"}


def test_more_runs_than_a_condition_holds_are_read_by_several_grants() -> None:
    runs = tuple(Run(name=f"r{n}", read_by=("server",)) for n in range(25))
    environment = replace(hardened(), storage=Storage(runs=runs))
    identity = environment.member("server")
    bucket = environment.bucket("checkpoints")
    grants = [g for g in policy(environment) if g["member"] == identity and "condition" in g]
    assert [g["condition"]["expression"].count("||") for g in grants] == [11, 11, 0]
    assert all(may(grants, identity, "get", bucket, f"{run.name}/x") for run in runs)
    assert not judge_environment(environment)


def test_a_name_that_another_begins_with_is_another_run() -> None:
    environment = hardened()
    bucket = environment.bucket("checkpoints")
    pool = environment.workload_pool
    one, two = (
        principal(environment.project_number, pool, "training", f"run-{name}")
        for name in ("gang", "gang-2")
    )
    assert may(policy(environment), one, "delete", bucket, "gang/step")
    assert not may(policy(environment), one, "delete", bucket, "gang-2/step")
    assert not may(policy(environment), two, "delete", bucket, "gang/step")
    elsewhere = principal(environment.project_number, pool, "batch", "run-gang")
    assert not may(policy(environment), elsewhere, "delete", bucket, "gang/step")


def test_where_no_runs_are_listed_all_training_writes_below_one_prefix() -> None:
    shared = load("example")
    bucket = shared.bucket("checkpoints")
    granted = policy(shared)
    identity = shared.member("trainer")
    root = RenderContext(platform(shared)).checkpoints
    assert root == f"gs://{bucket}/default"
    for name in written_by("any"):
        assert may(granted, identity, LIST, bucket)
        assert all(may(granted, identity, each, bucket, f"default/{name}") for each in OBJECTS)
        assert not [
            each for each in OBJECTS if each != "get" and may(granted, identity, each, bucket, name)
        ]
    for words in (s["template"]["spec"]["containers"][0]["command"] for _, s in jobs("example")):
        assert "--checkpoints" not in words or words[words.index("--checkpoints") + 1] == root
    assert not judge_environment(shared)
    whole = put("google_storage_bucket_iam_member.runs-trainer", "condition", None)(
        facts_of_specs(shared)
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
    facts = facts_of_specs(hardened())
    text = WIDER[condition]
    assert not list(rule(facts))
    wider = text and {"expression": text.format(bucket=hardened().bucket("checkpoints"))}
    (violation,) = rule(put(f"google_storage_bucket_iam_member.{grant}", "condition", wider)(facts))
    assert grant in violation.where
