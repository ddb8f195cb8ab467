"""`place`, `submit` and `explain` ask how obtainable machines are now, and fail for no answer."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from holdfast.clients import capacity_advice
from holdfast.clients.api import Api
from holdfast.commands import app
from holdfast.jobs.diagnose.explain import explain
from holdfast.jobs.file import file_text
from holdfast.jobs.plan import obtainability
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.exit_codes import EXIT_STOPPED
from tests import platforms
from tests.platforms import with_images
from workloads.library.tests.clients.capacity_advisor import Advisor, advising
from workloads.library.tests.jobs.api_server import serving
from workloads.library.tests.jobs.test_job_file import own
from workloads.library.tests.jobs.test_one_answer import running_job

EXAMPLE = platforms.load("example")
POOL = EXAMPLE.pool("spot-l4-g2-standard-8")
SCORES = {
    ("g2-standard-8", "SPOT"): (0.2, "600s"),
    ("g2-standard-8", "FLEX_START"): (0.9, "3600s"),
    ("g2-standard-4", "FLEX_START"): (0.9, "3600s"),
}


@pytest.fixture
def advisor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Advisor]:
    """Google's answers; gcloud is not needed, as the environment has a token."""
    monkeypatch.setenv("HOLDFAST_GOOGLE_TOKEN", "not-a-secret")
    advisor = Advisor(dict(SCORES))
    with advising(advisor) as address:
        monkeypatch.setenv("HOLDFAST_CAPACITY_ADVICE", address)
        yield advisor


@pytest.fixture
def document(tmp_path: Path) -> Path:
    return platforms.write_document(with_images("example"), tmp_path)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def place(document: Path, *options: str) -> Result:
    size = ("--gpu", "l4", "--gpus", "1", "--hours", "10h")
    return run("place", *size, "--platform", document, *options)


def test_place_has_a_column_for_now(advisor: Advisor, document: Path) -> None:
    result = place(document)
    assert result.exit_code == 0
    table, _, _ = result.stdout.partition("each scenario")
    rows = {row.split()[0]: row for row in table.splitlines()}
    assert " now " in rows["capacity"]
    assert " 0.2, 10 min " in rows["spot"]
    assert " 0.9, 1 h " in rows["flex-start"]
    body = json.loads(place(document, "--json").stdout)
    answers: dict[str, float] = {}
    for row in body["now"]:
        answers[row["capacity"]] = row["obtainability"]
    assert answers == {"spot": 0.2, "flex-start": 0.9}
    (_, request) = advisor.requests[0]
    assert request["size"] == 1


def test_place_without_an_answer_says_so_in_one_line(
    document: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_CAPACITY_ADVICE", "off")
    result = place(document)
    assert result.exit_code == 0 and " now " not in result.stdout.splitlines()[0]
    assert result.stderr.count("not asked: HOLDFAST_CAPACITY_ADVICE=off") == 1


def write_job(folder: Path, nodes: int) -> Path:
    file = folder / "job.yaml"
    job = own(gpus="1xl4", nodes=nodes, capacity="spot")
    file.write_text(file_text.dump(job))
    return file


def submit(document: Path, nodes: int, *options: str) -> Result:
    file = write_job(document.parent, nodes)
    return run(
        "submit",
        file,
        "--platform",
        document,
        "--dry-run",
        *options,
    )


def test_submit_refuses_below_a_limit(advisor: Advisor, document: Path) -> None:
    result = submit(document, 1, "--min-obtainability", "0.5")
    assert result.exit_code == EXIT_STOPPED
    assert "spot: 0.2, 10 min, below --min-obtainability 0.5" in result.stderr
    assert submit(document, 1, "--min-obtainability", "0.2").exit_code == 0


def test_an_unknown_obtainability_refuses_nothing(
    document: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_GOOGLE_TOKEN", "not-a-secret")
    monkeypatch.setenv("HOLDFAST_CAPACITY_ADVICE", "http://127.0.0.1:1")
    result = submit(document, 1, "--min-obtainability", "0.5")
    assert result.exit_code == 0
    assert result.stderr.count("not known (Google did not answer") == 1


@pytest.mark.parametrize("limit", ["1.5", "-1", "nan"])
def test_a_limit_that_is_no_likelihood_is_refused(document: Path, limit: str) -> None:
    result = submit(document, 1, "--min-obtainability", limit)
    assert result.exit_code != 0 and isinstance(result.exception, Exception)


def test_a_dry_run_without_a_limit_asks_nothing(advisor: Advisor, document: Path) -> None:
    assert submit(document, 4).exit_code == 0
    assert advisor.requests == []


def test_a_pod_is_on_one_machine() -> None:
    """Three pods of five GPUs do not share two machines of eight."""
    pod_spec = {
        "nodeSelector": EXAMPLE.pool("spot-a100x8").selector(),
        "containers": [{"resources": {"limits": {"nvidia.com/gpu": 5}}}],
    }
    request = obtainability.make_request(pod_spec, 3, EXAMPLE, Capacity.SPOT)
    assert request is not None and request.size == 3


def make_waiting() -> dict[str, list[Any]]:
    """A job whose pod waits while Google has no machine."""
    lists = running_job("train")
    [pod] = lists["/api/v1/pods"]
    [job] = lists["/apis/batch/v1/jobs"]
    placement = {
        "nodeSelector": POOL.selector(),
        "tolerations": POOL.tolerations(),
    }
    pod["spec"] |= placement
    del pod["spec"]["nodeName"]
    job["spec"]["template"]["spec"] |= placement
    pod["status"] = {
        "phase": "Pending",
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
            }
        ],
    }
    lists["/api/v1/events"] = [
        {
            "metadata": {"namespace": "train", "name": "e"},
            "involvedObject": {"uid": pod["metadata"]["uid"], "kind": "Pod"},
            "reason": "FailedScaleUp",
            "message": "Node scale up in zones failed: GCE out of resources.",
            "lastTimestamp": pod["metadata"]["creationTimestamp"],
        }
    ]
    return lists


def test_explain_says_where_it_is_better(advisor: Advisor, tmp_path: Path) -> None:
    with serving(make_waiting(), tmp_path) as kubeconfig:
        explanation = explain(
            Api(kubeconfig),
            "train",
            platform=EXAMPLE,
            ask=capacity_advice.ask,
        )
    assert explanation.cause.reason == "stock-out"
    text = dict(explanation.lines())["now"]
    assert text.startswith("1 g2-standard-8 spot: 0.2, 10 min, best in us-central1-")
    assert "; better: 1 g2-standard-8 flex-start: 0.9, 1 h" in text


def test_a_running_job_asks_nothing(advisor: Advisor, tmp_path: Path) -> None:
    with serving(running_job("train"), tmp_path) as kubeconfig:
        explanation = explain(
            Api(kubeconfig),
            "train",
            platform=EXAMPLE,
            ask=capacity_advice.ask,
        )
    assert explanation.now == "" and advisor.requests == []
