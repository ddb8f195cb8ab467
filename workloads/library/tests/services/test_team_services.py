"""Tests of services in the namespace of a team: what is refused, and what a team's people send."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.commands import app
from holdfast.lint.engine import Options, lint_texts
from holdfast.manifests.render_context import RenderContext
from holdfast.platform import Platform
from holdfast.platform.document import Team
from holdfast.services import prepared_service
from holdfast.services.live_service import TEAM_KINDS
from holdfast.services.plan import compile_cache
from holdfast.services.render.manifests import SHARED
from holdfast.support.errors import InputError
from holdfast.vocabulary.kubernetes import SERVICE_PRIORITIES
from holdfast.vocabulary.roles import TEAM_PROXY
from tests.platforms import with_images, write_document
from workloads.library.tests.services.example_services import read, render
from workloads.manifests import rendering

VISION = Team(
    name="vision",
    members="vision@example.org",
    namespaces=("vision", "vision-dev"),
    service_gpus=4,
)
Object = dict[str, Any]


def share() -> Platform:
    """Returns the platform with a team that has services, and one that has none."""
    example = with_images("example")
    speech = Team(name="speech", members="speech@example.org", namespaces=("speech",))
    accounts = dict(example.accounts)
    for team in ("vision", "speech"):
        accounts[f"team-{team}"] = f"{team}@acme.iam.gserviceaccount.com"
    return replace(example, teams=(*example.teams, VISION, speech), accounts=accounts)


def render_platform() -> list[Object]:
    return rendering.platform(RenderContext(share()))


def list_accounts() -> set[str]:
    """Returns the accounts that the platform makes in the namespace of the team."""
    accounts: set[str] = set()
    for body in render_platform():
        metadata = body["metadata"]
        if body["kind"] == "ServiceAccount" and metadata["namespace"] == "vision":
            accounts.add(metadata["name"])
    return accounts


SMALL = {"base": "1", "overflow_most": "2"}
CASES = {
    "namespace of jobs": (SMALL | {"namespace": "training"}, "serving, vision"),
    "team without services": (SMALL | {"namespace": "speech"}, "service_gpus"),
    "second namespace": (SMALL | {"namespace": "vision-dev"}, "first namespace"),
    "more GPUs than the team has": (
        {"base": "3", "overflow_most": "2", "namespace": "vision"},
        "5 replicas under load x 1 = 5",
    ),
    "sleep": (
        {"base": "1", "least_replicas": "0", "namespace": "vision", "model": "gs://models/llama"},
        "submit it in the namespace serving",
    ),
    "load balancer": (SMALL | {"namespace": "vision", "reach": "internal"}, "auto, cluster"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused(case: str, tmp_path: Path) -> None:
    fields, text = CASES[case]
    out = tmp_path / "scores.yaml"
    document = write_document(share(), tmp_path / "platform")
    words = ["new-service", "scores", "--platform", str(document)]
    if "model" not in fields:
        words += ["--predictor", "entropy"]
    for name, value in fields.items():
        words += ["--set", f"{name}={value}"]
    error = CliRunner().invoke(app, [*words, "--out", str(out)]).exception
    assert isinstance(error, InputError)
    assert text in f"{error.got} {error.allowed} {error.fix}"
    assert not out.exists()


@pytest.mark.parametrize("name", ["chat", "scores"])
def test_team_services_have_only_objects_that_people_may_send(name: str) -> None:
    service = replace(
        read(name),
        namespace="vision",
        base=2,
        base_most=2,
        overflow_most=2,
        peak_per_s=0.0,
    )
    bodies = render(service, share())
    accounts: set[str] = set()
    priorities: set[str] = set()
    for body in bodies:
        assert body["metadata"]["namespace"] == "vision"
        assert body["kind"] in (*TEAM_KINDS, SHARED)
        if body["kind"] == "Deployment":
            pod = body["spec"]["template"]["spec"]
            accounts.add(pod["serviceAccountName"])
            priorities.add(pod["priorityClassName"])
    assert accounts == {"server", TEAM_PROXY}
    assert priorities == {*SERVICE_PRIORITIES}
    assert accounts <= list_accounts()
    text = prepared_service.render(service, share())
    report = lint_texts({f"{name}.yaml": text}, Options(platforms=[share()]))
    assert not report.findings


def test_grants_name_the_team_account(tmp_path: Path) -> None:
    service = replace(read("chat"), overflow_most=2, namespace="vision", callers=("vision",))
    prepared = prepared_service.prepare(service, share(), model_copy=None)
    notes = "\n".join(prepared.notes)
    assert "--member=serviceAccount:vision@acme.iam" in notes


@pytest.mark.parametrize(("team", "is_own"), [("vision", True), ("vision2", False)])
def test_teams_keep_kernels_in_their_folder(team: str, is_own: bool) -> None:
    platform = share()
    url = f"gs://{platform.buckets['checkpoints']}/teams/{team}/kernels"
    service = replace(
        read("chat"),
        namespace="vision",
        compile_cache=url,
    )
    if is_own:
        assert not compile_cache.check(service, platform, "account")
        return
    with pytest.raises(InputError) as caught:
        compile_cache.check(service, platform, "account")
    assert "teams/vision/" in caught.value.allowed


def test_only_namespaces_with_services_get_their_quota() -> None:
    quotas: dict[tuple[str, str], Object] = {}
    for body in render_platform():
        if body["kind"] == "ResourceQuota":
            metadata = body["metadata"]
            quotas[metadata["namespace"], metadata["name"]] = body["spec"]
    services = quotas["vision", "services"]
    assert services["hard"] == {"requests.nvidia.com/gpu": "4", "pods": "32"}
    assert read_priorities(services) == {*SERVICE_PRIORITIES}
    assert not read_priorities(quotas["vision", "reserved-priorities"]) & {*SERVICE_PRIORITIES}
    for namespace in ("vision-dev", "speech"):
        assert (namespace, "services") not in quotas
        assert read_priorities(quotas[namespace, "reserved-priorities"]) > {*SERVICE_PRIORITIES}


def read_priorities(quota: Object) -> set[str]:
    (scope,) = quota["scopeSelector"]["matchExpressions"]
    return {*scope["values"]}


def test_all_jobs_may_leave_for_team_services() -> None:
    homes: set[str] = set()
    for body in render_platform():
        if body["metadata"]["name"] == "call-services":
            homes.add(body["metadata"]["namespace"])
            (rule,) = body["spec"]["egress"]
            selector = rule["to"][0]["namespaceSelector"]
            assert selector["matchExpressions"][0]["values"] == ["serving", "vision"]
    assert homes == {"training", "batch", "serving", "vision", "vision-dev", "speech"}
