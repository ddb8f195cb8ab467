"""Tests of `logs`, `stop` and `shell` without a cluster, and of the flags of all commands."""

import itertools
import json
import re
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

import holdfast
from holdfast.clients.api import Api, Object
from holdfast.commands import app
from holdfast.job_commands.control import pod_logs
from holdfast.job_commands.control.pod_logs import (
    Selection,
    select_sources,
    show,
    suggest_cloud_logs,
)
from holdfast.job_commands.control.shell import read_exit_code
from holdfast.job_commands.control.stopping import (
    Saves,
    describe,
    is_stopped,
    stop,
    stop_json,
)
from holdfast.jobs.diagnose.job_snapshot import JobSnapshot
from holdfast.support import progress
from holdfast.support.errors import InputError, Unjudged
from holdfast.vocabulary.capacity import ANNOTATION_QUEUED_AGAIN, ANNOTATION_REQUEST_ENDED
from tests import platforms
from tests.command_lines import COMMANDS

PROJECT = Path(holdfast.__file__).parents[1] / "pyproject.toml"
# As a kubelet ends a command that exits with 7.
EXITED = {
    "metadata": {},
    "status": "Failure",
    "message": "command terminated with non-zero exit code: exit status 7",
    "reason": "NonZeroExitCode",
    "details": {"causes": [{"reason": "ExitCode", "message": "7"}]},
}
FOR_A_CLUSTER = (
    "list",
    "logs",
    "stop",
    "resume",
    "shell",
    "explain",
    "submit",
    "try",
    "new-job",
    "place",
)


def make_pod(name: str, index: int, created: str, **status: Object) -> Object:
    return {
        "metadata": {
            "name": name,
            "namespace": "training",
            "uid": name,
            "creationTimestamp": created,
            "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
        },
        "spec": {"containers": [{"name": "sidecar"}, {"name": "main"}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [{"name": "main"} | status],
        },
    }


def make_job(*pods: Object, **workload: object) -> JobSnapshot:
    body = {
        "kind": "Job",
        "metadata": {
            "name": "my-run-1a2b3c4d",
            "namespace": "training",
            "uid": "u",
        },
        "spec": {
            "parallelism": 2,
            "template": {"spec": {"containers": []}},
        },
    }
    spec = {"spec": workload} if workload else None
    return JobSnapshot(body=body, pods=[*pods], workload=spec)


COMPLETE = {"type": "Complete", "status": "True"}
RAN = {"state": {"terminated": {"exitCode": 1}}}
RUNS = {"state": {"running": {}}}
WAITS = {"state": {"waiting": {"reason": "ContainerCreating"}}}


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Selection(), [("a-0-new", False), ("a-1", False)]),
        (Selection(index=1), [("a-1", False)]),
        (Selection(previous=True), [("a-0-old", False), ("a-1", True)]),
    ],
)
def test_each_index_shows_its_newest_attempt(
    selection: Selection, expected: list[tuple[str, bool]]
) -> None:
    job = make_job(
        make_pod("a-0-new", 0, "2026-01-01T00:02:00Z", **RUNS),
        make_pod("a-0-old", 0, "2026-01-01T00:00:00Z", **RAN),
        make_pod("a-1", 1, "2026-01-01T00:00:00Z", **RUNS, restartCount=2),
        make_pod("a-1-next", 1, "2026-01-01T00:03:00Z", **WAITS),
    )
    sources = select_sources(job, selection)
    selected = []
    for source in sources:
        assert source.container == "main"
        selected.append((source.pod["metadata"]["name"], source.previous))
    assert selected == expected


def follow_logs(api: Any, *snapshots: JobSnapshot) -> list[str]:
    """Returns the lines that `logs --follow` prints of these snapshots, of which the last ended."""
    first, *later = snapshots
    printed: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pod_logs, "POLL_S", 0.01)
        pod_logs.follow(
            api,
            platforms.load("example"),
            first,
            Selection(),
            printed.append,
            look_again=lambda *_: later.pop(0),
        )
    return printed


def test_a_restarted_container_is_followed_again() -> None:
    """The servers of a service start again in their pods."""

    class Restarting:
        logs: ClassVar[list[list[str]]] = [["first"], ["second"]]

        def lines(self, path: str, **query: object) -> Iterator[str]:
            yield from self.logs.pop(0)

    created = "2026-01-01T00:00:00Z"
    pod = make_pod(
        "a-0",
        0,
        created,
        **RUNS,
        restartCount=0,
    )
    restarted = make_pod(
        "a-0",
        0,
        created,
        **RUNS,
        restartCount=1,
    )
    ended_job = make_job(restarted)
    ended_job.body["status"] = {"conditions": [COMPLETE]}
    printed = follow_logs(
        Restarting(), make_job(pod), make_job(pod), make_job(restarted), ended_job
    )
    assert printed == ["[0] first", "[0] second"]


def test_pods_that_are_not_followed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_logs, "MAX_STREAMS", 1)
    has_ended = threading.Event()

    class Endless:
        def lines(self, path: str, **query: object) -> Iterator[str]:
            yield path.split("/")[-2]
            has_ended.wait(10.0)

    created = "2026-01-01T00:00:00Z"
    pods = [
        make_pod(
            f"a-{index}",
            index,
            created,
            **RUNS,
        )
        for index in range(2)
    ]
    ended_job = make_job(*pods)
    ended_job.body["status"] = {"conditions": [COMPLETE]}
    printed = follow_logs(
        Endless(),
        make_job(*pods),
        make_job(*pods),
        ended_job,
    )
    has_ended.set()
    assert printed[0] == "[0] a-0"
    (skipped,) = printed[1:]
    assert skipped.startswith("[1] (not followed yet")
    assert "--index 1" in skipped


def test_gone_logs_are_found_by_a_whole_command() -> None:
    platform = platforms.load("example")
    command = suggest_cloud_logs(platform, make_job())
    assert command.startswith("gcloud logging read '")
    assert f"--project={platform.project}" in command
    assert 'namespace_name="training"' in command
    assert 'pod_name:"my-run-1a2b3c4d-"' in command


def read_refusal(job: JobSnapshot, index: int | None = None) -> str:
    with pytest.raises(InputError) as error:
        show(Api.over(None), platforms.load("example"), job, Selection(index=index))
    return str(error.value)


def test_a_job_without_pods_never_started_or_its_logs_are_gone() -> None:
    assert "no pod of the job has started yet" in read_refusal(make_job(active=True))
    stopped = make_job(active=False)
    assert stopped.workload
    stopped.workload["status"] = {"conditions": [{"type": "Evicted", "status": "True"}]}
    text = read_refusal(stopped)
    assert "not in the cluster any more" in text
    assert "gcloud logging read" in text


def test_index_is_refused_where_pods_have_none() -> None:
    """The servers of a service have none."""
    server = make_pod("server", 0, "2026-01-01T00:00:00Z")
    job = make_job(server)
    assert "0 to 0" in read_refusal(job, index=3)
    server["metadata"]["annotations"] = {}
    assert "its pods have no index" in read_refusal(job, index=0)


def test_a_job_that_waits_in_its_queue_is_not_stopped() -> None:
    assert not is_stopped(make_job(active=True))
    assert is_stopped(make_job(active=False))


def test_a_job_that_completes_in_its_window_is_stopped() -> None:
    """Kueue never suspends it."""
    job = make_job(active=True)
    assert job.workload
    job.workload["metadata"] = {"name": "w"}
    changes: list[Object] = []

    class Completing:
        def merge(self, path: str, change: Object) -> Object:
            changes.append(change)
            return {"metadata": {}}

        def items(self, path: str, **query: str) -> list[Object]:
            return []

        def find(self, path: str) -> Object:
            return job.body | {"status": {"conditions": [COMPLETE]}}

    api: Any = Completing()
    platform = platforms.load("example")
    clock = itertools.count()
    stop(api, platform, job, print, clock=clock.__next__)
    (change,) = changes
    assert change["spec"] == {"active": False}
    marks = change["metadata"]["annotations"]
    assert marks == {
        ANNOTATION_QUEUED_AGAIN: None,
        ANNOTATION_REQUEST_ENDED: None,
    }, "the mover would start it again"


def test_only_commits_after_the_call_are_reported() -> None:
    saves = Saves(since_s=100.0)
    for t, step in ((99.0, 10), (104.0, 12)):
        saves.read(
            json.dumps(
                {
                    "event": "commit",
                    "t": t,
                    "step": step,
                    "job": "my-run",
                }
            )
        )
    saves.read("epoch 3: loss 0.1")
    saves.read('{"event": broken')
    lines = describe(make_job(), saves, had_pods=True)
    assert lines == ["saved step 12 of my-run, 4 s after the call", "stopped my-run-1a2b3c4d"]
    body = stop_json(make_job(), "stopped", saves)
    assert body["saves"] == [{"run": "my-run", "step": 12, "after_s": 4.0}]


def test_a_stop_without_a_commit_says_what_is_lost() -> None:
    saves = Saves(since_s=100.0)
    saves.read(
        json.dumps(
            {
                "event": "exit",
                "t": 104.0,
                "step": 12,
                "job": "my-run",
            }
        )
    )
    first, _ = describe(make_job(), saves, had_pods=True)
    assert first.startswith("no checkpoint was committed after the call, of 12 that were done")
    silent, _ = describe(make_job(), Saves(since_s=0.0), had_pods=True)
    assert "is not known" in silent


def test_a_command_in_a_pod_ends_with_its_code() -> None:
    assert read_exit_code(b'{"metadata":{},"status":"Success"}') == 0
    assert read_exit_code(json.dumps(EXITED).encode()) == 7
    with pytest.raises(Unjudged, match="ended before"):
        read_exit_code(b"")


def test_package_and_distribution_have_one_version() -> None:
    version = tomllib.loads(PROJECT.read_text())["project"]["version"]
    assert holdfast.__version__ == version
    printed = CliRunner().invoke(app, ["--version"])
    assert printed.exit_code == 0
    assert printed.output == f"holdfast-gke {version}\n"


@pytest.mark.parametrize("name", FOR_A_CLUSTER)
def test_commands_for_a_cluster_share_their_options(name: str) -> None:
    options = set()
    for parameter in COMMANDS[f"holdfast {name}"].params:
        for option in parameter.opts:
            options.add(option)
    assert "--context" in options
    for letter, long in (("-n", "--namespace"), ("-y", "--yes"), ("-f", "--follow")):
        assert (letter in options) == (long in options), long
    if "--json" in options:
        assert "-o" in options
    assert CliRunner().invoke(app, [name, "-h"]).exit_code == 0


WORDS: dict[str, tuple[str, ...]] = {
    "list": (),
    "logs": ("my-run",),
    "stop": ("my-run",),
    "resume": ("my-run",),
    "shell": ("my-run",),
    "explain": ("my-run",),
    "submit": ("my-run.yaml",),
    "try": (),
    "new-job": ("my-run", "--image", "trainer", "--", "train"),
    "place": ("--gpu", "l4", "--hours", "1h"),
}
"""The arguments of a command for a cluster."""


@pytest.mark.parametrize("name", FOR_A_CLUSTER)
def test_a_wait_for_the_cluster_is_shown(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []

    @contextmanager
    def record(text: str) -> Iterator[Callable[[str], None]]:
        shown.append(text)
        yield lambda _: None

    monkeypatch.setattr(progress, "working", record)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, [name, *WORDS[name]])
    assert isinstance(result.exception, InputError | Unjudged)
    assert shown[:1] == ["ask the cluster"]
    # The fix names no option that the command lacks.
    options = set()
    for parameter in COMMANDS[f"holdfast {name}"].params:
        options.update(parameter.opts)
    assert set(re.findall(r"--[a-z-]+", result.exception.fix)) <= options
