"""One name of a job, from the pod to the event line."""

import json
import os

import pytest

from holdfast.runtime.events import EventLog
from holdfast.vocabulary.environment import ENV_ATTEMPT, ENV_COMPLETION_INDEX, ENV_JOB
from holdfast.vocabulary.job_identity import JobIdentity


@pytest.mark.parametrize(
    ("run", "environ", "expected"),
    [
        (
            "train-flex-l4-2",
            {ENV_JOB: "train-flex-l4", ENV_COMPLETION_INDEX: "2"},
            ("train-flex-l4", 2),
        ),
        ("train-gang", {ENV_JOB: "train-gang", ENV_COMPLETION_INDEX: "1"}, ("train-gang", None)),
        ("mine", {ENV_JOB: "train-x", ENV_COMPLETION_INDEX: "0"}, ("train-x", None)),
        ("train-x-2", {ENV_JOB: "train-x", ENV_COMPLETION_INDEX: "3"}, ("train-x", None)),
        ("train-x-²", {ENV_JOB: "train-x", ENV_COMPLETION_INDEX: "²"}, ("train-x", None)),
        ("demo", {}, ("demo", None)),
        ("demo-0", {ENV_COMPLETION_INDEX: "0"}, ("demo-0", None)),
        ("demo", {ENV_JOB: ""}, ("demo", None)),
    ],
)
def test_a_run_has_an_identity(
    run: str, environ: dict[str, str], expected: tuple[str, int | None]
) -> None:
    identity = JobIdentity.of_run(run, environ)
    assert (identity.job, identity.index) == expected
    assert identity.run == (run if identity.index is not None else identity.job)


@pytest.mark.parametrize(
    ("text", "attempt"),
    [
        ("3", 3),
        ("", 0),
        ("-1", 0),
        ("x", 0),
        ("9" * 5_000, 0),
        ("2+1", 3),
        ("1+", 1),
        ("+", 0),
    ],
)
def test_an_attempt_adds_up_its_counts(text: str, attempt: int) -> None:
    assert JobIdentity.of_run("a", {ENV_ATTEMPT: text}).attempt == attempt


def test_lines_carry_the_cluster_job_and_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_JOB, "train-sweep")
    monkeypatch.setenv(ENV_COMPLETION_INDEX, "1")
    read, write = os.pipe()
    with EventLog(write, job="train-sweep-1", kind="training") as events:
        events.emit("start", rank=0)
    line = json.loads(os.read(read, 4096))
    os.close(read)
    assert line["job"] == "train-sweep"
    assert line["index"] == 1
