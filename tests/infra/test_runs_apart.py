"""A run's identity has no right on another's checkpoints: rendered pods against the policy that is deployed."""

from dataclasses import replace
from typing import Any

import pytest

from holdfast.contract import object_names
from holdfast.contract.errors import InputError
from infra import specs
from infra.contract.kubernetes import ANNOTATION_GOOGLE_ACCOUNT
from infra.environments import Environment, load
from infra.environments.runs import Run
from infra.environments.schema import Storage
from infra.rules import judge_environment
from infra.rules.identity import runs_write_their_own
from infra.rules.model import facts_of_specs
from tests.infra.bucket_access import LIST, OBJECTS, may, principal
from tests.infra.samples import hardened
from tests.workloads.manifests.rendered import bodies, jobs, unversioned

PROD = load("prod")


def policy(environment: Environment, purpose: str = "checkpoints") -> list[dict[str, Any]]:
    grants = [r.arguments for r in specs.resources(environment) if r.kind == "google_storage_bucket_iam_member"]
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
        account, run = template["spec"]["serviceAccountName"], words[words.index("--run") + 1]
        assert ANNOTATION_GOOGLE_ACCOUNT not in accounts[account]["metadata"].get("annotations", {})
        identity = principal(PROD.project_number.lower(), PROD.workload_pool, "training", account)
        numbered = run.replace("$(JOB_COMPLETION_INDEX)", "{}")
        runs = [numbered.format(index) for index in range(spec["completions"])] if numbered != run else [run]
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
        object_names.pin_object(run, 3),
    ]


def test_each_rendered_job_does_what_it_must_with_its_own_run_and_nothing_with_another() -> None:
    bucket, granted, found = PROD.bucket("checkpoints"), policy(PROD), trainers()
    assert set(found) == {run.name for run in PROD.storage.runs}
    for job, (identity, runs) in found.items():
        assert may(granted, identity, LIST, bucket) and not may(granted, identity, "create", bucket, "stray")
        assert all(
            may(granted, identity, each, bucket, name) for run in runs for name in written_by(run) for each in OBJECTS
        )
        others = [run for other, (_, theirs) in found.items() if other != job for run in theirs]
        for name in [name for run in others for name in written_by(run)]:
            assert not [each for each in OBJECTS if may(granted, identity, each, bucket, name)], (job, name)


def test_who_verifies_and_who_serves_reads_every_run_and_writes_none() -> None:
    for role in ("trainer", "batch", "server"):
        identity = f"serviceAccount:{PROD.service_account_email(role)}"
        rights = {
            each for each in OBJECTS if may(policy(PROD), identity, each, PROD.bucket("checkpoints"), "train-gang/x")
        }
        assert rights == {"get"}, role


def test_runs_read_the_data_and_do_not_write_it() -> None:
    for identity, _ in trainers().values():
        rights = {each for each in OBJECTS if may(policy(PROD, "data"), identity, each, PROD.bucket("data"), "a")}
        assert rights == {"get"}


def test_a_name_that_another_begins_with_is_another_run() -> None:
    environment = hardened()
    bucket, pool = environment.bucket("checkpoints"), environment.workload_pool
    one, two = (principal(environment.project_number, pool, "training", f"run-{name}") for name in ("gang", "gang-2"))
    assert may(policy(environment), one, "delete", bucket, "gang/step")
    assert not may(policy(environment), one, "delete", bucket, "gang-2/step")
    assert not may(policy(environment), two, "delete", bucket, "gang/step")
    elsewhere = principal(environment.project_number, pool, "batch", "run-gang")
    assert not may(policy(environment), elsewhere, "delete", bucket, "gang/step")


def test_where_runs_are_not_kept_apart_they_share_one_account_that_may_write_all() -> None:
    shared = load("example")
    identity = f"serviceAccount:{shared.service_account_email('trainer')}"
    assert may(policy(shared), identity, "delete", shared.bucket("checkpoints"), "any/step")
    assert not judge_environment(shared)


WIDER = {
    "no condition": None,
    "another run's": 'resource.name.startsWith("projects/_/buckets/{bucket}/objects/gang-2/")',
    "no slash": 'resource.name.startsWith("projects/_/buckets/{bucket}/objects/gang")',
    "opened again": 'resource.name.startsWith("projects/_/buckets/{bucket}/objects/gang/") || true',
    "another bucket's": 'resource.name.startsWith("projects/_/buckets/other/objects/gang/")',
    "one more": 'resource.name.startsWith("projects/_/buckets/{bucket}/objects/gang/") || '
    'resource.name.startsWith("projects/_/buckets/{bucket}/objects/gang-2/")',
}


@pytest.mark.parametrize("condition", WIDER)
def test_a_wider_grant_breaks_the_rule(condition: str) -> None:
    facts = facts_of_specs(hardened())
    assert not list(runs_write_their_own(facts))
    text = WIDER[condition]
    expression = text and {"expression": text.format(bucket=hardened().bucket("checkpoints"))}

    def edited(values: Any) -> dict[str, Any]:
        return {key: value for key, value in (dict(values) | {"condition": expression}).items() if value}

    (own,) = (r for r in facts.resources if r.address == "google_storage_bucket_iam_member.run-gang")
    others = tuple(r for r in facts.resources if r is not own)
    wrong = replace(facts, resources=(*others, replace(own, values=edited(own.values))))
    (violation,) = runs_write_their_own(wrong)
    assert "run-gang" in violation.where


@pytest.mark.parametrize(
    "storage",
    [
        lambda: Storage(runs=(Run(name="a"), Run(name="a"))),
        lambda: Storage(runs=(Run(name="a", indices=2), Run(name="a-1"))),
        lambda: Storage(runs=(Run(name="a"),), hierarchical_namespace=True),
        lambda: Storage(runs=tuple(Run(name=f"r{n}") for n in range(91))),
        lambda: Run(name="a/../b"),
        lambda: Run(name="a", indices=13),
    ],
)
def test_runs_that_cannot_be_kept_apart_are_refused(storage: Any) -> None:
    with pytest.raises(InputError, match=r"storage\."):
        storage()
