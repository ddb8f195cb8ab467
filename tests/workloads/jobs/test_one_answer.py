"""report, explain and list give one answer about one job: same event file, same figures to the digit."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from holdfast.contract.environment import ENV_COMPLETION_INDEX, ENV_JOB
from holdfast.contract.job_identity import LABEL_RUN_PER_INDEX
from holdfast.contract.telemetry import KIND_TRAINING
from holdfast.runtime.events import EventLog
from tests.monitoring import sample
from tests.workloads.jobs.api_server import serving
from tests.workloads.manifests import rendered
from workloads.jobs.api import Object

pytestmark = pytest.mark.process
START = "2026-01-01T00:00:00Z"


def write_events(path: Path, job: str, lines: list[sample.Line]) -> None:
    """Through the log that pods write with, at the history's own times."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for line in sorted(lines, key=lambda line: line["t"]):
            fields = {key: line[key] for key in line if key not in ("v", "t", "event", "job", "kind", "process")}
            log = EventLog(
                descriptor, job=job, kind=line["kind"], process=line["process"], clock=lambda now=line["t"]: now
            )
            log.emit(line["event"], **fields)
    finally:
        os.close(descriptor)


def running_job(name: str) -> dict[str, list[Object]]:
    labels = {"batch.kubernetes.io/job-name": name}
    meta = {"name": name, "namespace": "train", "uid": name, "creationTimestamp": START}
    container = {"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec = {"containers": [container], "nodeSelector": {}, "nodeName": "n"}
    status = {"phase": "Running", "startTime": START, "conditions": [], "containerStatuses": []}
    pod = {"metadata": meta | {"name": f"{name}-0", "uid": "p", "labels": labels}, "spec": spec, "status": status}
    job = {"metadata": meta, "spec": {"parallelism": 1, "template": {"spec": spec}}, "status": {"startTime": START}}
    return {"/apis/batch/v1/jobs": [job], "/api/v1/pods": [pod], "/api/v1/nodes": [], "/api/v1/events": []}


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Generator[Path]:
    with serving(running_job("train"), tmp_path) as path:
        yield path


def command(*arguments: str) -> Any:
    done = subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("lines", "share", "step"),
    [
        (sample.killed_and_restored("train"), "27.6", 60),
        (sample.training("train", kills=sample.KILLS), None, 300),
        (sample.training("train"), None, 300),
    ],
    ids=["killed at 100, restored at 45, now at 60", "evicted three times", "never disturbed"],
)
def test_report_explain_and_list_agree_to_the_digit(
    tmp_path: Path, kubeconfig: Path, lines: list[sample.Line], share: str | None, step: int
) -> None:
    events = tmp_path / "events"
    events.mkdir()
    write_events(events / "train.jsonl", "train", lines)
    folder, cluster = ("--events", str(events)), ("--kubeconfig", str(kubeconfig))
    report = json.loads(command("monitoring", "report", *folder, "--json", "--out", str(tmp_path / "report.html")))
    listed = json.loads(command("workloads", "list", *folder, *cluster, "--json"))
    table = command("workloads", "list", *folder, *cluster)
    explained = json.loads(command("workloads", "explain", "train", *folder, *cluster, "--json"))
    (row,), (job,) = report["jobs"], listed["jobs"]
    assert round(job["useful_ratio"], 4) == row["goodput"]
    shown = f"{100 * job['useful_ratio']:.1f}"
    assert (share or shown, step) == (shown, job["step"])
    assert f" {shown} " in table.splitlines()[1]
    assert f"useful {shown} % of its time, step {job['step']}" in explained["cause"]["blocker"]


def test_the_age_of_the_last_save_is_that_of_the_newest_commit(tmp_path: Path, kubeconfig: Path) -> None:
    now = time.time()
    with EventLog.open(tmp_path / "train.jsonl", job="train", kind=KIND_TRAINING) as log:
        log.emit("start", rank=0)
        log.emit("commit", step=10, seconds=1.0, bytes=1)
    options = ("--events", str(tmp_path), "--kubeconfig", str(kubeconfig), "--json")
    (job,) = json.loads(command("workloads", "list", *options))["jobs"]
    assert 0 <= job["saved_age_s"] <= time.time() - now


def rendered_training_jobs() -> dict[str, tuple[Object, Object]]:
    """One JobSet whose pods share a run, one Job whose indices train apart: as `render` writes them."""
    found: dict[str, tuple[Object, Object]] = {}
    for body, spec in rendered.jobs("example"):
        if spec["template"]["spec"]["containers"][0]["command"][3:5] == ["train", "run"]:
            apart = spec["template"]["metadata"]["labels"].get(LABEL_RUN_PER_INDEX) == "true"
            found.setdefault("by index" if apart else "gang", (body, spec))
    return found


@pytest.mark.parametrize("kind", ["gang", "by index"])
def test_a_rendered_job_is_found_by_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """What its processes write joins what the cluster lists, whether its run bears an index or not."""
    body, spec = rendered_training_jobs()[kind]
    name = body["metadata"]["name"]
    variables = {key: entry.get("value", "") for key, entry in rendered.variables(spec["template"]).items()}
    monkeypatch.setenv(ENV_JOB, variables[ENV_JOB])
    monkeypatch.setenv(ENV_COMPLETION_INDEX, "0")
    command_of = spec["template"]["spec"]["containers"][0]["command"]
    run = rendered.option(command_of, "--run").replace(f"$({ENV_COMPLETION_INDEX})", "0")
    write_events(tmp_path / "events.jsonl", run, sample.killed_and_restored(run))
    meta = body["metadata"] | {"namespace": "training", "uid": "u", "creationTimestamp": START}
    plural = "/apis/batch/v1/jobs" if body["kind"] == "Job" else "/apis/jobset.x-k8s.io/v1alpha2/jobsets"
    lists = {plural: [body | {"metadata": meta}], "/api/v1/pods": [], "/api/v1/nodes": [], "/api/v1/events": []}
    with serving(lists, tmp_path) as kubeconfig:
        options = ("--events", str(tmp_path), "--kubeconfig", str(kubeconfig), "--json")
        (job,) = json.loads(command("workloads", "list", *options))["jobs"]
    assert (job["name"], job["step"], f"{100 * job['useful_ratio']:.1f}") == (name, 60, "27.6")
