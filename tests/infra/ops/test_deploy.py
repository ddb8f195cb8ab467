"""Bootstrap, deploy and destroy, against a gcloud that answers from a table and a cdktf that notes
its calls.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from holdfast.support.errors import InputError
from holdfast.vocabulary.exit_codes import EXIT_STOPPED
from infra.ops import deploy
from infra.specs.encryption import AGENTS
from infra.specs.network import APIS
from tests.infra.ops.google import Gcloud
from tests.infra.samples import EXAMPLE, make_hardened
from tests.support import program

ENVIRONMENT = replace(EXAMPLE, state_bucket="acme-state")


def test_bootstrap_makes_apis_agents_and_a_private_versioned_bucket(gcloud: Gcloud) -> None:
    for words in ("services enable", "beta services identity create", "storage"):
        gcloud.answer(words, {})
    commands = deploy.bootstrap(ENVIRONMENT, dry_run=False)
    output = [next(commands)]
    assert len(gcloud.calls()) == 1, "a person sees each command when it is done"
    output += commands
    assert [" ".join(["gcloud", *call]) for call in gcloud.calls()] == output
    for api in APIS:
        assert f"{api}.googleapis.com" in output[0]
    agents = re.findall(r"identity create --service=(\w+)", "\n".join(output))
    assert {*agents, "storage", "compute"} == set(AGENTS), (
        "Storage's agent has another command, Compute's comes with its API"
    )
    assert "--public-access-prevention" in output[-2]
    assert "--versioning" in output[-1]


def test_bootstrap_is_repeatable_and_creates_only_a_named_bucket(gcloud: Gcloud) -> None:
    for words in ("services enable", "beta services identity create", "storage"):
        gcloud.answer(words, {})
    gcloud.refuse(
        "storage buckets create", f"ERROR: (gcloud) {deploy.BUCKET_IS_OURS} and you already own it."
    )
    assert "--versioning" in list(deploy.bootstrap(ENVIRONMENT, dry_run=False))[-1]
    calls = gcloud.calls()
    assert "update" in calls[-1]
    commands = list(deploy.bootstrap(EXAMPLE, dry_run=True))
    assert gcloud.calls() == calls
    assert any("service-agent" in command for command in commands)
    for command in commands:
        assert "buckets" not in command


def test_destroy_stops_while_anything_is_protected(capsys: pytest.CaptureFixture[str]) -> None:
    assert deploy.destroy(make_hardened(), yes=True) == EXIT_STOPPED
    output = capsys.readouterr().err
    for word in ("cluster", "database", "bucket"):
        assert word in output


@pytest.fixture
def cdktf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[list[str]]]:
    """A cdktf command that notes how it was called and what it would lift."""
    calls = tmp_path / "calls"
    script = f'#!/bin/sh\necho "$HOLDFAST_UNPROTECTED|$*" >> {calls}\n'
    monkeypatch.setattr(deploy, "NODE_COMMANDS", program(tmp_path / "cdktf", script).parent)
    monkeypatch.setattr("sys.stdin", StringIO())
    return lambda: (
        [line.split("|") for line in calls.read_text().splitlines()] if calls.exists() else []
    )


def exit_with(code: int) -> None:
    script = deploy.NODE_COMMANDS / "cdktf"
    script.write_text(f"{script.read_text()}exit {code}\n")


def test_production_goes_where_its_name_is_given_once_more(
    cdktf: Callable[[], list[list[str]]],
) -> None:
    prod = replace(make_hardened(), name="prod")
    assert deploy.destroy(prod, yes=True, confirm="example") == EXIT_STOPPED
    assert cdktf() == [], "a wrong name does nothing at all"
    assert deploy.destroy(prod, yes=False, confirm="prod") == 0
    (lifted, first), (still, second) = cdktf()
    assert first.startswith("deploy foundation-prod cluster-prod monitoring-prod")
    assert lifted == "prod"
    assert second.startswith("destroy monitoring-prod cluster-prod foundation-prod")
    assert still == "prod"


def test_a_failed_unlock_destroys_nothing(
    cdktf: Callable[[], list[list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    exit_with(7)
    assert deploy.destroy(make_hardened(), yes=False, confirm="example") == 7
    assert len(cdktf()) == 1


def test_a_deployment_prints_outputs(
    cdktf: Callable[[], list[list[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert deploy.deploy(EXAMPLE, yes=True) == 0
    assert len(cdktf()) == 1
    assert "gcloud container clusters get-credentials holdfast-example" in capsys.readouterr().out
    exit_with(1)
    assert deploy.deploy(EXAMPLE, yes=True) == 1
    assert "get-credentials" not in capsys.readouterr().out, "nothing is promised of what failed"


def test_an_installed_cdk_terrain_deploys(
    cdktf: Callable[[], list[list[str]]], tmp_path: Path
) -> None:
    ran = program(tmp_path / "cdktn", '#!/bin/sh\necho "$0" > "$0.ran"\n').with_suffix(".ran")
    assert deploy.deploy(EXAMPLE, yes=True) == 0
    assert ran.exists() and cdktf() == []


def test_deploy_needs_consent_and_no_placeholder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", StringIO())
    with pytest.raises(InputError, match="repeat with --yes"):
        deploy.deploy(EXAMPLE, yes=False)
    with pytest.raises(InputError, match=r"infra/environments/example\.py: project_id"):
        deploy.deploy(replace(EXAMPLE, project_id="CHANGE-ME"), yes=True)
