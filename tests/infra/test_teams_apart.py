"""Pods of a team use the team's folder of the checkpoints and no other, under any account of its
namespaces.
"""

from dataclasses import replace
from typing import Any

import pytest

from holdfast.cost import prices
from holdfast.jobs.file.job_file import JobSpec
from holdfast.jobs.plan import placement
from holdfast.jobs.render import manifests
from holdfast.manifests.render_context import RenderContext
from holdfast.support.errors import InputError
from holdfast.vocabulary.kubernetes import ANNOTATION_GOOGLE_ACCOUNT
from infra import describe
from infra.environments import Environment
from infra.environments.schema import Storage
from infra.rules import judge_environment
from infra.rules.identity import runs_are_read_by_name, runs_write_their_own
from infra.rules.model import read_specs
from tests.infra.bucket_access import OBJECTS, may, principal
from tests.infra.rules.edits import put
from tests.infra.samples import two_teams
from tests.infra.test_runs_apart import list_objects, policy
from workloads.manifests import rendering

LISTED = two_teams()
UNLISTED = replace(
    LISTED,
    storage=Storage(allow_destroy=True),
    teams=tuple(replace(t, runs=()) for t in LISTED.teams),
)
ENVIRONMENTS = pytest.mark.parametrize(
    "environment", [LISTED, UNLISTED], ids=["runs listed", "no runs listed"]
)
FOLDERS = ("teams/vision", "teams/speech", "teams/vision-2", "default")
LISTED_RUNS = ("detector", "train-gang")


def identities(environment: Environment, namespace: str) -> set[str]:
    """Return the identities that pods have under the accounts of the namespace."""
    bodies = rendering.platform(RenderContext(describe.platform(environment, {})))
    accounts = []
    for b in bodies:
        if b["kind"] == "ServiceAccount" and b["metadata"]["namespace"] == namespace:
            accounts.append(b["metadata"])
    number = environment.project_number.lower()
    pool = environment.workload_pool
    emails: set[str] = set()
    for account in accounts:
        google = account.get("annotations", {}).get(ANNOTATION_GOOGLE_ACCOUNT)
        itself = principal(number, pool, namespace, account["name"])
        emails.add(f"serviceAccount:{google}" if google else itself)
    return emails


def rights(environment: Environment, identity: str, name: str) -> set[str]:
    bucket = environment.bucket("checkpoints")
    return {right for right in OBJECTS if may(policy(environment), identity, right, bucket, name)}


@ENVIRONMENTS
def test_no_team_account_reads_or_writes_foreign_checkpoints(
    environment: Environment,
) -> None:
    for team in environment.teams:
        for namespace in team.spaces:
            accounts = identities(environment, namespace)
            assert environment.member(team.role) in accounts
            for identity in accounts:
                names = []
                for run in LISTED_RUNS:
                    if run not in team.runs:
                        names += list_objects(run)
                folders = [folder for folder in FOLDERS if folder != team.folder]
                for folder in folders:
                    for name in list_objects("run"):
                        names.append(f"{folder}/{name}")
                for name in names:
                    assert not rights(environment, identity, name), (identity, team.name, name)


@ENVIRONMENTS
def test_a_run_with_any_name_saves_in_its_team_folder(environment: Environment) -> None:
    platform = describe.platform(environment, {})
    job = JobSpec(
        name="never-deployed",
        environment="example",
        image=f"us-docker.pkg.dev/p/r/train@sha256:{'a' * 64}",
        command=("python", "train.py"),
        gpus="1xl4",
        namespace="vision",
    )
    job_bodies = manifests.bodies(
        job, RenderContext(platform), placement.place(job, platform, prices.load())
    )
    pod = job_bodies[-1]["spec"]["template"]["spec"]
    variables = {}
    for entry in pod["containers"][0]["env"]:
        variables[entry["name"]] = entry.get("value")
    bucket, _, folder = variables["HOLDFAST_CHECKPOINTS"].removeprefix("gs://").partition("/")
    assert bucket == environment.bucket("checkpoints")
    assert folder == "teams/vision"
    assert pod["serviceAccountName"] == "trainer"
    identity = environment.member("team-vision")
    assert identity in identities(environment, "vision")
    for name in list_objects("never-deployed"):
        assert rights(environment, identity, f"{folder}/{name}") == {*OBJECTS}


def test_a_listed_run_keeps_its_own_prefix_and_its_team_reads_it() -> None:
    platform = describe.platform(LISTED, {})
    assert platform.account_of("detector", "vision") == "run-detector"
    assert platform.checkpoints_of("detector", "vision") == f"gs://{LISTED.bucket('checkpoints')}"
    itself = principal(
        LISTED.project_number.lower(), LISTED.workload_pool, "vision", "run-detector"
    )
    for name in list_objects("detector"):
        assert rights(LISTED, itself, name) == {*OBJECTS}
        assert rights(LISTED, LISTED.member("team-vision"), name) == {"get"}
        assert not rights(LISTED, LISTED.member("team-speech"), name)


def test_the_default_team_still_needs_a_listed_run() -> None:
    with pytest.raises(InputError, match="no prefix"):
        describe.platform(LISTED, {}).account_of("never-deployed", "training")


def test_a_team_name_that_is_too_long_gets_a_digest() -> None:
    long = replace(
        LISTED,
        teams=(replace(LISTED.teams[0], name="v" * 20, namespaces=("vision",)), LISTED.teams[1]),
    )
    names = [long.account_id(team.role) for team in long.teams]
    for name in names:
        assert len(name) <= 30
    assert len({*names}) == 2
    assert not judge_environment(long)


@ENVIRONMENTS
@pytest.mark.parametrize("wider", [None, "teams/speech/", "teams/", "teams/vision"])
def test_a_wider_team_grant_breaks_a_rule(environment: Environment, wider: str | None) -> None:
    facts = read_specs(environment)
    bucket = environment.bucket("checkpoints")
    expression = f'resource.name.startsWith("projects/_/buckets/{bucket}/objects/{wider}")'
    condition: Any = wider and {"expression": expression}
    grants = "google_storage_bucket_iam_member.team-vision"
    listing = f"{grants}-list"
    written = put(grants, "condition", condition)(facts)
    read = put(grants, "role", "roles/storage.objectViewer")(written)
    named = put(listing, "role", "roles/storage.objectViewer")(facts)
    for rule, edited in (
        (runs_write_their_own, written),
        (runs_are_read_by_name, read),
        (runs_are_read_by_name, named),
    ):
        assert not list(rule(facts))
        (violation,) = rule(edited)
        assert "team-vision" in violation.where
