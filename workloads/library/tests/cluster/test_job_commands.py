"""`list`, `logs`, `stop`, `resume` and `shell` on the real control plane, with a trainer that gets
real signals.
"""

import json
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.clients.api import Api, Object
from holdfast.commands import app
from holdfast.cost.money import find_prices
from holdfast.jobs.diagnose import explain
from holdfast.mover.cluster_view import View, list_job_kinds
from holdfast.support.command_line import run_app
from holdfast.vocabulary.capacity import ANNOTATION_MAX_USD, ANNOTATION_STOPPED_FOR
from holdfast.vocabulary.pools import LABEL_ZONE, Pool
from tests import platforms
from tests.cluster.sim import queues
from tests.cluster.sim.host_kubelet import HostKubelet, running_on_host
from tests.cluster.sim.manager import OwnManager
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World

JOBS = "/apis/batch/v1"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
WINDOW_S = 30


@pytest.fixture(autouse=True)
def document(api: Api) -> Iterator[None]:
    """The cluster has the document of the platform `example`."""
    platforms.publish(api, platforms.load("example"))
    yield
    api.delete("/api/v1/namespaces/monitoring/configmaps/holdfast-platform")


@pytest.fixture
def kubelet(api: Api, cluster: OwnManager, world: World, spot: Pool) -> Iterator[HostKubelet]:
    assert cluster.host
    name = f"{world.name}-host"
    with running_on_host(api, name, cluster.host, spot, world.selector) as kubelet:
        yield kubelet


class Terminal:
    """Runs `holdfast` with the kubeconfig and the namespace of a test."""

    def __init__(self, kubeconfig: Path, namespace: str, capfd: pytest.CaptureFixture[str]) -> None:
        self.options = [
            "--namespace",
            namespace,
            "--kubeconfig",
            str(kubeconfig),
        ]
        self.capfd = capfd

    def run(self, *words: str, code: int = 0) -> str:
        """Returns what was printed, errors included."""
        shown, errors = self.run_apart(*words, code=code)
        return shown + errors

    def read_json(self, *words: str) -> Any:
        """Returns what a command with --json printed on standard output."""
        shown, _ = self.run_apart(*words, "--json")
        return json.loads(shown)

    def run_apart(self, *words: str, code: int = 0) -> tuple[str, str]:
        """Returns standard output and standard error."""
        self.capfd.readouterr()
        before = list(words)
        after: list[str] = []
        if "--" in before:
            after = before[before.index("--") :]
            before = before[: before.index("--")]
        ending = 0
        try:
            run_app(app, [*before, *self.options, *after])
        except SystemExit as end:
            ending = int(end.code or 0)
        shown = self.capfd.readouterr()
        assert ending == code, shown
        return shown.out, shown.err


@pytest.fixture
def terminal(cluster: OwnManager, world: World, capfd: pytest.CaptureFixture[str]) -> Terminal:
    assert cluster.kubeconfig
    return Terminal(cluster.kubeconfig, world.name, capfd)


def trainer(world: World, pool: Pool, checkpoints: Path, steps: int) -> Object:
    """Returns a pod of the reference trainer whose interval is so long that only a stop saves."""
    command = [sys.executable, "-m", "holdfast", "train", "run"]
    command += [
        "--checkpoints",
        str(checkpoints),
        "--run",
        "kept-run",
        "--ranks",
        "1",
    ]
    command += [
        "--steps",
        str(steps),
        "--every",
        "1000000",
        "--device",
        "cpu",
    ]
    command += ["--window", str(WINDOW_S)]
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(checkpoints.parent),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OMP_NUM_THREADS": "1",
    }
    template = world.pod_template(pool, terminationGracePeriodSeconds=WINDOW_S)
    template["spec"]["containers"][0] |= {
        "command": command,
        "env": [{"name": name, "value": value} for name, value in variables.items()],
    }
    return template


def create(world: World, name: str, template: Object, **spec: Any) -> None:
    labels = {"app.kubernetes.io/name": "kept-run"}
    annotations = spec.pop("annotations", {})
    queue = spec.pop("queue", "")
    if queue:
        labels[queues.QUEUE_LABEL] = queue
    body = {
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": annotations,
        },
        "spec": {
            "completionMode": "Indexed",
            "completions": 1,
            "parallelism": 1,
            "backoffLimitPerIndex": 3,
            "template": template,
        }
        | spec,
    }
    world.api.create(world.path("jobs", JOBS), body, fieldValidation="Strict")


def events(kubelet: HostKubelet, kind: str) -> list[dict[str, Any]]:
    """The event lines that the pods of the node have printed."""
    lines: list[dict[str, Any]] = []
    for running in list(kubelet.running.values()):
        for _, line in list(running.lines):
            if line.startswith("{") and f'"event": "{kind}"' in line:
                lines.append(json.loads(line))
    return lines


@pytest.mark.timeout(300)
def test_a_queued_job_saves_when_it_is_stopped_and_resumes_from_there(
    world: World,
    spot: Pool,
    kueue: None,
    kubelet: HostKubelet,
    terminal: Terminal,
    tmp_path: Path,
) -> None:
    queues.lend(world, spot, 1)
    template = trainer(world, spot, tmp_path / "checkpoints", 1_000_000)
    create(
        world,
        "kept-run-1a2b3c4d",
        template,
        queue=queues.QUEUE,
        suspend=True,
    )
    until("it trains", lambda: events(kubelet, "window"))
    assert not events(kubelet, "commit")

    listed = json.loads(terminal.run("list", "-o", "json"))
    assert [(row["name"], row["status"]) for row in listed["jobs"]] == [
        ("kept-run-1a2b3c4d", "Running")
    ]
    assert '"event": "window"' in terminal.run("logs", "kept-run")

    printed = terminal.run("stop", "kept-run", "--yes")
    (commit,) = events(kubelet, "commit")
    saved = re.search(r"saved step (\d+) of kept-run\S*, \d+ s after the call", printed)
    assert saved, printed
    assert int(saved[1]) == commit["step"] > 0, printed
    assert "Next: holdfast resume kept-run" in printed
    assert world.pods() == []
    cause = explain.explain(world.api, "kept-run", world.name).cause
    assert cause.reason == "suspended"
    assert cause.action == "holdfast resume kept-run-1a2b3c4d"
    assert "stopped already" in terminal.run("stop", "kept-run", "--yes")

    resumed = terminal.read_json("resume", "kept-run")
    assert resumed["job"] == "kept-run-1a2b3c4d"
    restores = until(
        "it has restored",
        lambda: [line for line in events(kubelet, "restore") if line["step"] > 0],
    )
    assert restores[0]["step"] == commit["step"]
    assert "is not stopped" in terminal.run("resume", "kept-run", code=2)

    body, notes = terminal.run_apart("stop", "kept-run", "--now", "-y", "--json")
    assert "to exit at once" in notes
    stopped = json.loads(body)
    assert (stopped["job"], stopped["result"]) == ("kept-run-1a2b3c4d", "stopped")
    assert stopped["pods"] == 1
    until("its pods are gone", lambda: not world.pods())
    second_stop = terminal.read_json("stop", "kept-run")
    assert second_stop["result"] == "stopped before"
    job = world.job("kept-run-1a2b3c4d")
    assert job["spec"]["suspend"]
    assert not job["status"].get("failed")


@pytest.mark.timeout(300)
def test_a_job_saves_before_it_reaches_its_max_usd(
    world: World,
    spot: Pool,
    kueue: None,
    kubelet: HostKubelet,
    terminal: Terminal,
    tmp_path: Path,
) -> None:
    """The mover looks an hour later: what that hour costs is close to the limit."""
    queues.lend(world, spot, 1)
    template = trainer(world, spot, tmp_path / "checkpoints", 1_000_000)
    prices = find_prices(spot.machine_type, "us-central1")
    create(
        world,
        "kept-run-1a2b3c4d",
        template,
        annotations={ANNOTATION_MAX_USD: f"{prices.spot:.4f}"},
        queue=queues.QUEUE,
        suspend=True,
    )
    until("it trains", lambda: events(kubelet, "window"))
    assert not events(kubelet, "commit")
    now_s = time.time() + 3_600
    view = View(clock=lambda: now_s)
    for node in world.api.items("/api/v1/nodes"):
        node["metadata"]["labels"][LABEL_ZONE] = "us-central1-a"
        view.node("ADDED", node)
    for pod in world.pods():
        view.pod("ADDED", pod)
    (kind,) = [kind for kind in list_job_kinds([world.name]) if kind.path.startswith(JOBS)]
    for job in world.api.items(kind.path):
        kind.apply(view)("ADDED", job)
    view.count_time(now_s)
    assert view.spending.act(world.api, now_s) == 1

    (commit,) = until("it has saved", lambda: events(kubelet, "commit"))
    assert commit["step"] > 0
    until("its pods are gone", lambda: not world.pods())
    cause = explain.explain(world.api, "kept-run", world.name).cause
    assert "it was stopped before its max_usd" in cause.blocker
    assert "--max-usd" in terminal.run("resume", "kept-run", code=2)
    assert "resumed kept-run" in terminal.run("resume", "kept-run", "--max-usd", "500")
    until(
        "it has restored",
        lambda: [line for line in events(kubelet, "restore") if line["step"] == commit["step"]],
    )
    annotations = world.job("kept-run-1a2b3c4d")["metadata"]["annotations"]
    assert annotations[ANNOTATION_MAX_USD] == "500"
    assert ANNOTATION_STOPPED_FOR not in annotations


def test_a_log_shows_each_attempt_and_a_job_that_never_started_has_none(
    world: World,
    spot: Pool,
    kubelet: HostKubelet,
    terminal: Terminal,
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    script = "echo first words; while [ ! -e $0 ]; do sleep 0.1; done; echo last words; exit 3"
    template = world.pod_template(spot)
    template["spec"]["containers"][0] |= {
        "command": [
            "/bin/sh",
            "-c",
            script,
            str(gate),
        ],
        "env": [],
    }
    create(world, "later", template | {}, suspend=True)
    never = terminal.run("logs", "later", code=2)
    assert "no pod of the job has started yet" in never
    assert "later, suspended," in never
    world.create_job("pending", world.job_spec(spot, 1) | {"template": waiting(template)})
    until("it has a pod", lambda: list_pods(world, "pending"))
    never = terminal.run("logs", "pending", code=2)
    assert "no pod of the job has started yet" in never
    assert "holdfast explain pending" in never

    create(world, "program", template, backoffLimitPerIndex=1)
    until("it writes", lambda: "first words" in "".join(read_output(kubelet)))
    world.wait_running(1)
    assert terminal.run("logs", "program") == "first words\n"
    assert "no earlier attempt is kept" in terminal.run("logs", "program", "--previous", code=2)
    gate.touch()
    until(
        "a second attempt has ended",
        lambda: len(list_pods(world, "program", "Failed")) > 1,
    )
    assert terminal.run("logs", "program", "--previous") == "first words\nlast words\n"
    assert terminal.run("logs", "program", "--tail", "1") == "last words\n"
    followed = terminal.run("logs", "program", "--follow", code=1)
    assert followed.count("last words") >= 1
    newest = terminal.run("logs", "program", "--follow", "--tail", "1", code=1)
    assert newest == "last words\n"
    assert "no pod with this index" in terminal.run("logs", "program", "--index", "7", code=2)


def waiting(template: Object) -> Object:
    """Returns the template with a selector that no node matches."""
    selector = template["spec"]["nodeSelector"] | {"sim.holdfast.dev/nobody": "has-it"}
    return template | {"spec": template["spec"] | {"nodeSelector": selector}}


def list_pods(world: World, job: str, phase: str = "") -> list[Object]:
    return [pod for pod in world.pods(phase) if job in pod["metadata"]["name"]]


def read_output(kubelet: HostKubelet) -> list[str]:
    lines: list[str] = []
    for running in list(kubelet.running.values()):
        lines += [line for _, line in running.lines]
    return lines


def test_a_shell_runs_a_command_in_a_pod(world: World, spot: Pool, terminal: Terminal) -> None:
    world.create_job("held", world.job_spec(spot, 1))
    assert "no pod of the job runs" in terminal.run("shell", "held", "--", "true", code=2)
    world.add_nodes(spot, 1)
    world.wait_running(1)

    def run(script: str, typed: bytes = b"") -> tuple[int, bytes, bytes]:
        words = [
            sys.executable,
            "-m",
            "holdfast",
            "shell",
            "held",
            *terminal.options,
        ]
        words += ["--", "sh", "-c", script]
        done = subprocess.run(
            words,
            input=typed,
            capture_output=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    assert run("echo hello; echo oops >&2") == (0, b"hello\n", b"oops\n")
    assert run("head -c 3", b"abcdef") == (0, b"abc", b"")
    # kwok does not send the code of a command, as a kubelet does.
    assert run("exit 7")[0] != 0


def test_a_shell_on_a_terminal_is_interactive(world: World, spot: Pool, terminal: Terminal) -> None:
    world.create_job("held", world.job_spec(spot, 1))
    world.add_nodes(spot, 1)
    world.wait_running(1)
    leader, follower = pty.openpty()
    words = [
        sys.executable,
        "-m",
        "holdfast",
        "shell",
        "held",
        "--index",
        "0",
        *terminal.options,
    ]
    process = subprocess.Popen(
        words,
        stdin=follower,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    os.write(leader, b"echo $((6 * 7))\n")
    shown = b""
    while b"42" not in shown:
        shown += os.read(leader, 4096)
    os.write(leader, b"exit 5\n")
    with suppress(OSError):  # on Linux, after the last writer has closed the terminal
        while chunk := os.read(leader, 4096):
            shown += chunk
    os.close(leader)
    assert process.wait() != 0, shown


def test_stop_without_the_right_changes_nothing(
    world: World,
    spot: Pool,
    cluster: OwnManager,
    api: Api,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert cluster.host
    create(world, "theirs", waiting(world.pod_template(spot)))
    account = "/api/v1/namespaces/default/serviceaccounts/default/token"
    token = api.create(account, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    rights = reader_rights(world.name)
    for body in rights:
        api.apply(api.path_of(body), body)
    kubeconfig = cluster.host.write_kubeconfig(f"reader-{world.name}", {"token": token})
    other = Terminal(kubeconfig, world.name, capfd)
    until("the rights are in force", lambda: may_list_jobs(api, world.name))
    assert "theirs" in other.run("list")
    refused = other.run("stop", "theirs", "--yes", code=3)
    assert "no right to change Job theirs" in refused
    assert "nothing was changed" in refused
    assert not world.job("theirs")["spec"].get("suspend")
    for body in rights:
        api.delete(api.path_of(body))


def may_list_jobs(api: Api, namespace: str) -> bool:
    attributes = {
        "verb": "list",
        "group": "batch",
        "resource": "jobs",
        "namespace": namespace,
    }
    spec = {
        "user": "system:serviceaccount:default:default",
        "resourceAttributes": attributes,
    }
    review = api.create(REVIEWS, {"spec": spec})
    return review["status"]["allowed"]


def reader_rights(name: str) -> list[Object]:
    """Returns the rights of a person who may read all jobs, and change none."""
    rule = {
        "apiGroups": ["*"],
        "resources": ["*"],
        "verbs": ["get", "list"],
    }
    subject = {
        "kind": "ServiceAccount",
        "name": "default",
        "namespace": "default",
    }
    group = "rbac.authorization.k8s.io"
    return [
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": name},
            "rules": [rule],
        },
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {
                "kind": "ClusterRole",
                "name": name,
                "apiGroup": group,
            },
            "subjects": [subject],
        },
    ]
