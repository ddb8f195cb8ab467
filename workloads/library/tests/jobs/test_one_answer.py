"""report, explain and list give one answer about one job: same event file, same figures to the
digit.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.clients.api import Object
from holdfast.commands import app
from holdfast.runtime.events import EventLog
from holdfast.vocabulary.environment import ENV_COMPLETION_INDEX, ENV_JOB
from holdfast.vocabulary.job_identity import LABEL_RUN_PER_INDEX
from tests.workloads.manifests import rendered
from workloads.library.tests import sample
from workloads.library.tests.jobs.api_server import serving

pytestmark = pytest.mark.process
START = "2026-01-01T00:00:00Z"


def write_events(path: Path, job: str, lines: list[sample.Line]) -> None:
    """Writes lines through the log that pods use, at the history's own times."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for line in sorted(lines, key=lambda line: line["t"]):
            fields = {}
            for key in line:
                if key not in ("v", "t", "event", "job", "kind", "process"):
                    fields[key] = line[key]
            about = {
                "job": job,
                "kind": line["kind"],
                "process": line["process"],
            }
            log = EventLog(descriptor, **about, clock=lambda now=line["t"]: now)
            log.emit(line["event"], **fields)
    finally:
        os.close(descriptor)


def running_job(name: str) -> dict[str, list[Object]]:
    labels = {"batch.kubernetes.io/job-name": name}
    meta = {
        "name": name,
        "namespace": "train",
        "uid": name,
        "creationTimestamp": START,
    }
    container = {
        "name": "main",
        "image": "i",
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    spec = {
        "containers": [container],
        "nodeSelector": {},
        "nodeName": "n",
    }
    status = {
        "phase": "Running",
        "startTime": START,
        "conditions": [],
        "containerStatuses": [],
    }
    about = meta | {
        "name": f"{name}-0",
        "uid": f"{name}-p",
        "labels": labels,
    }
    pod = {
        "metadata": about,
        "spec": spec,
        "status": status,
    }
    job = {
        "metadata": meta,
        "spec": {
            "parallelism": 1,
            "template": {"spec": spec},
        },
        "status": {"startTime": START},
    }
    return {
        "/apis/batch/v1/jobs": [job],
        "/api/v1/pods": [pod],
        "/api/v1/nodes": [],
        "/api/v1/events": [],
    }


def command(*arguments: str) -> Any:
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code in (0, 1), done.stderr
    return done.stdout


HISTORIES = {
    "set-back": sample.kill_and_restore("set-back"),
    "evicted": sample.training("evicted", kills=sample.KILLS),
    "calm": sample.training("calm"),
    "naive": sample.naive("naive"),
    "elastic": sample.elastic("elastic"),
    "batch": sample.batch("batch", kills=6),
}


def test_report_explain_and_list_agree_to_the_digit_on_every_history(tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    cluster = running_job("set-back")
    for name, lines in HISTORIES.items():
        write_events(events / f"{name}.jsonl", name, lines)
        for path, objects in running_job(name).items():
            cluster[path] += objects if name != "set-back" else []
    with serving(cluster, tmp_path) as config:
        options = ("--events", str(events), "--kubeconfig", str(config))
        listed = {}
        for row in json.loads(command("list", *options, "--json"))["jobs"]:
            listed[row["name"]] = row
        table = {}
        for row in command("list", *options).splitlines():
            if row.split():
                table[row.split()[0]] = row
        causes = {}
        for name in HISTORIES:
            causes[name] = json.loads(command("explain", name, *options, "--json"))["cause"]
    report = command(
        "report", "--events", str(events), "--json", "--out", str(tmp_path / "report.html")
    )
    reported = {}
    for row in json.loads(report)["jobs"]:
        reported[row["job"]] = row
    assert listed.keys() == reported.keys() == HISTORIES.keys()
    for name, row in listed.items():
        assert round(row["useful_ratio"], 4) == reported[name]["goodput"]
        shown = f"{100 * row['useful_ratio']:.1f}"
        assert f" {shown} " in table[name]
        step = "" if row["step"] is None else f", step {row['step']}"
        assert f"useful {shown} % of its time{step}" in causes[name]["blocker"]
    figures = {}
    for name, row in listed.items():
        figures[name] = (f"{100 * row['useful_ratio']:.1f}", row["step"])
    assert figures["set-back"] == ("27.6", 60)
    assert figures["elastic"] == ("87.5", 60)
    assert listed["elastic"]["why"].startswith("8/8 nodes for ")
    assert listed["calm"]["why"] == "none"
    assert listed["evicted"]["step"] == listed["calm"]["step"] == 300
    assert listed["batch"]["step"] is None


def load_training_jobs() -> dict[str, tuple[Object, Object]]:
    """Returns a JobSet whose pods share a run, and a Job whose indices train apart."""
    jobs: dict[str, tuple[Object, Object]] = {}
    for body, spec in rendered.jobs("example"):
        if spec["template"]["spec"]["containers"][0]["command"][3:5] == ["train", "run"]:
            apart = spec["template"]["metadata"]["labels"].get(LABEL_RUN_PER_INDEX) == "true"
            jobs.setdefault("by index" if apart else "gang", (body, spec))
    return jobs


@pytest.mark.parametrize("kind", ["gang", "by index"])
def test_a_rendered_job_is_found_by_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Tests that event lines join the listed job, for a run with an index and for one without."""
    body, spec = load_training_jobs()[kind]
    name = body["metadata"]["name"]
    variables = {}
    for key, entry in rendered.variables(spec["template"]).items():
        variables[key] = entry.get("value", "")
    monkeypatch.setenv(ENV_JOB, variables[ENV_JOB])
    monkeypatch.setenv(ENV_COMPLETION_INDEX, "0")
    command_words = spec["template"]["spec"]["containers"][0]["command"]
    run = rendered.option(command_words, "--run").replace(f"$({ENV_COMPLETION_INDEX})", "0")
    write_events(tmp_path / "events.jsonl", run, sample.kill_and_restore(run))
    meta = body["metadata"] | {
        "namespace": "training",
        "uid": "u",
        "creationTimestamp": START,
    }
    if body["kind"] == "Job":
        plural = "/apis/batch/v1/jobs"
    else:
        plural = "/apis/jobset.x-k8s.io/v1alpha2/jobsets"
    lists = {
        plural: [body | {"metadata": meta}],
        "/api/v1/pods": [],
        "/api/v1/nodes": [],
        "/api/v1/events": [],
    }
    with serving(lists, tmp_path) as kubeconfig:
        options = ("--events", str(tmp_path), "--kubeconfig", str(kubeconfig), "--json")
        (job,) = json.loads(command("list", *options))["jobs"]
    assert job["name"] == name
    assert job["step"] == 60
    assert f"{100 * job['useful_ratio']:.1f}" == "27.6"
