"""A node that computed a step wrong is named by `explain`."""

from typing import Any

import pytest

from holdfast.clients.api import Object
from holdfast.jobs.diagnose.job_snapshot import JobSnapshot
from holdfast.jobs.diagnose.reasons import Cause, Reason
from holdfast.jobs.diagnose.wrong_result import explain_wrong_result
from holdfast.ledger.events import Event
from holdfast.ledger.job_summary import WrongResult, job_summary
from holdfast.vocabulary.telemetry import KIND_TRAINING

FOUND_S = 1_790_000_000.0  # 2026-09-21T14:13:20Z


def make_pod(name: str, node: str, created: str, host: str = "") -> Object:
    meta = {"name": name, "namespace": "training", "creationTimestamp": created}
    return {"metadata": meta, "spec": {"nodeName": node, "hostname": host}, "status": {}}


JOB = JobSnapshot(
    body={"kind": "Job", "metadata": {"name": "gang"}, "spec": {}},
    pods=[
        make_pod("gang-1-aaaaa", "spot-a", "2026-09-21T10:00:00Z", "gang-1"),
        make_pod("gang-1-bbbbb", "spot-b", "2026-09-21T14:13:30Z", "gang-1"),
        make_pod("gang-0-ccccc", "spot-c", "2026-09-21T10:00:00Z", "gang-0"),
    ],
)


def explain(reason: Reason, process: str = "gang-1-17-0a1b2c") -> Cause:
    cause = Cause(reason, "exit code 75 in 1 pods", "read the log", "kubectl logs")
    return explain_wrong_result(JOB, WrongResult(process, 12, FOUND_S), cause)


@pytest.mark.parametrize("reason", [Reason.CRASH, Reason.BACK_OFF, Reason.STARTING])
def test_a_wrong_result_explains_how_its_pod_ended(reason: Reason) -> None:
    cause = explain(reason)
    assert cause.reason is Reason.WRONG_RESULT
    assert cause.blocker == (
        "step 12 had other gradients on node spot-a (pod gang-1-aaaaa) than on other nodes:"
        " it is faulty, and left; exit code 75 in 1 pods"
    )
    assert "kubectl cordon spot-a" in cause.action
    assert cause.evidence == "kubectl get node spot-a -L holdfast.dev/gpu-fault"


def test_other_causes_stay_and_a_gang_that_runs_shows_it_as_its_history() -> None:
    assert "node spot-a" not in explain(Reason.QUOTA).blocker
    running = explain(Reason.NONE)
    assert running.reason is Reason.NONE
    assert "; step 12 had other gradients on node spot-a" in running.blocker


def test_a_process_whose_pod_is_gone_is_named_itself() -> None:
    assert "in gang-7-1-x than on other nodes" in explain(Reason.CRASH, "gang-7-1-x").blocker


def test_the_summary_has_wrong_results() -> None:
    def make_event(kind: str, **fields: Any) -> Event:
        return Event(int(FOUND_S * 1e6), kind, "gang", KIND_TRAINING, "gang-1-17-0a1b2c", fields)

    summary = job_summary([make_event("start", rank=0), make_event("miscomputed", step=12, rank=1)])
    assert summary.wrong_results == (WrongResult("gang-1-17-0a1b2c", 12, FOUND_S),)
