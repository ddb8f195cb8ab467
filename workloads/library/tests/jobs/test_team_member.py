"""Commands for a member of a team, who may list the team's namespaces and not the cluster."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.clients.api import Object
from holdfast.commands import app
from holdfast.platform.document import Team
from holdfast.support.command_line import run_app
from workloads.library.tests.jobs.api_server import EXAMPLE, serving

pytestmark = pytest.mark.process
TEAMS = (
    Team(
        name="vision",
        namespaces=("vision", "vision-dev"),
        runs=(),
        members="vision@acme.ai",
    ),
    Team(
        name="speech",
        namespaces=("speech",),
        runs=(),
        members="speech@acme.ai",
    ),
)
PLATFORM = replace(EXAMPLE, teams=(*EXAMPLE.teams, *TEAMS))
MEMBER_OF = ("vision", "vision-dev")


def make_job(name: str, namespace: str) -> Object:
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": name,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {
            "parallelism": 1,
            "template": {"spec": {"containers": [{"name": "main", "image": "i"}]}},
        },
        "status": {"conditions": [{"type": "Complete", "status": "True"}]},
    }


LISTS: dict[str, list[Object]] = {
    "/api/v1/pods": [],
    "/api/v1/nodes": [],
    "/api/v1/events": [],
    "/apis/batch/v1/jobs": [
        make_job("segment", "vision"),
        make_job("probe", "vision-dev"),
        make_job("whisper", "speech"),
    ],
}


def end(kubeconfig: Path, *words: str) -> int:
    """Run a command and return its exit code."""
    try:
        run_app(app, [*words, "--kubeconfig", str(kubeconfig)])
    except SystemExit as error:
        return int(error.code or 0)
    return 0


def test_member_sees_jobs_of_own_namespaces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(
        LISTS,
        tmp_path,
        platform=PLATFORM,
        member_of=MEMBER_OF,
    ) as kubeconfig:
        assert end(kubeconfig, "list", "--json") == 0
        rows = json.loads(capsys.readouterr().out)["jobs"]
        segment, probe = rows
        assert segment["name"] == "segment"
        assert probe["name"] == "probe"
        assert end(kubeconfig, "list") == 0
        table = [line.split()[:2] for line in capsys.readouterr().out.splitlines() if line]
        assert table == [
            ["NAME", "NAMESPACE"],
            ["segment", "vision"],
            ["probe", "vision-dev"],
        ]
        assert end(kubeconfig, "list", "-n", "vision") == 0
        assert "NAMESPACE" not in capsys.readouterr().out


def test_member_explains_own_job_without_namespace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(
        LISTS,
        tmp_path,
        platform=PLATFORM,
        member_of=MEMBER_OF,
    ) as kubeconfig:
        assert end(kubeconfig, "explain", "probe", "--json") == 0
        assert json.loads(capsys.readouterr().out)["namespace"] == "vision-dev"
        assert end(kubeconfig, "explain", "probe", "--follow") == 0
        assert "Complete" in capsys.readouterr().err


def test_member_does_not_find_job_of_another_team(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(
        LISTS,
        tmp_path,
        platform=PLATFORM,
        member_of=MEMBER_OF,
    ) as kubeconfig:
        assert end(kubeconfig, "explain", "whisper") == 2
        assert "segment" in capsys.readouterr().err
        for words in (["stop", "whisper", "--yes"], ["resume", "whisper"], ["logs", "whisper"]):
            assert end(kubeconfig, *words) == 2
            assert "no such job" in capsys.readouterr().err


def test_user_without_any_right_gets_reason_and_fix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(LISTS, tmp_path, platform=PLATFORM, member_of=()) as kubeconfig:
        assert end(kubeconfig, "list") == 3
        text = capsys.readouterr().err
        assert "403: /api/v1/pods is forbidden" in text
        assert "ask the platform team" in text
