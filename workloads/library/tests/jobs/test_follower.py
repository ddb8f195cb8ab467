"""`follow`: the lines that pods printed, read through the API server in pieces, become useful time
and lost steps.
"""

import json
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.clients.api import Api
from holdfast.commands import app
from holdfast.jobs.submit import follower
from holdfast.jobs.submit.follower import PodLines, make_bill
from holdfast.ledger.job_summary import read_job_summaries
from tests import platforms
from workloads.library.tests import sample
from workloads.library.tests.jobs.api_server import serving
from workloads.library.tests.jobs.test_causes import load_record
from workloads.library.tests.jobs.test_losses import make_sharded
from workloads.library.tests.jobs.test_one_answer import running_job, write_events

pytestmark = pytest.mark.process
DISRUPTED = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "TerminationByKubelet",
}
NEVER_STARTED = ("image", "device")
"""Recorded of a kubelet: a pod that it never started, and one that it turned away."""
POOL = platforms.load("example").pool("spot-l4-g2-standard-8")
PodLog = list[tuple[str, str]]


@pytest.fixture
def pod_log(tmp_path: Path) -> PodLog:
    """The log of a training job that was killed twice, with event lines between its own lines."""
    written = tmp_path / "written.jsonl"
    write_events(written, "train", sample.training("train", kills=sample.KILLS[:2]))
    lines: list[str] = []
    for line in written.read_text().splitlines():
        lines += ["epoch 1: loss 0.3", line]
    stamped_lines: PodLog = []
    for n, line in enumerate(lines):
        stamped_lines.append(
            (f"{datetime.fromtimestamp(1.79e9 + n // 7, UTC):%FT%T}.{n:09}Z", line)
        )
    return stamped_lines


def follow_log(folder: Path, *shown: PodLog) -> list[str]:
    """Returns the stored lines after a look at each of these logs, the last one twice."""
    events = folder / "events"
    now = list[tuple[str, str]]()
    events.mkdir()
    with serving(running_job("train"), folder, {"train-0": now}) as kubeconfig:
        api = Api(kubeconfig)
        lines = PodLines(events)
        (pod,) = api.items("/api/v1/pods")
        for lines_of_look in (*shown, []):
            now += lines_of_look
            lines.look(api, pod)
    stored: list[str] = []
    for path in sorted(events.glob("*.jsonl")):
        stored += path.read_text().splitlines()
    return stored


@pytest.mark.parametrize(("piece", "flooded"), [(2_000, False), (1 << 20, False), (2_000, True)])
def test_each_line_is_kept_once(tmp_path: Path, pod_log: PodLog, piece: int, flooded: bool) -> None:
    """Reads the log in pieces of any size, even after a second that prints more than one piece."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(follower, "PIECE", piece)
        if flooded:
            flood = []
            for n in range(100):
                flood.append((f"{pod_log[0][0][:19]}.{n:09}Z", "x" * 100))
            stored = follow_log(tmp_path, flood + pod_log[14:])
            expected = pod_log[15::2]
        else:  # the second look begins within the last second that was read
            stored = follow_log(tmp_path, pod_log[:30], pod_log[30:33], pod_log[33:])
            expected = pod_log[1::2]
        assert expected
        assert stored == [line for _, line in expected]


def test_an_ended_job_has_a_receipt_with_useful_time_and_its_lines_stay(
    tmp_path: Path, pod_log: PodLog
) -> None:
    lists = running_job("train")
    (job,) = lists["/apis/batch/v1/jobs"]
    (pod,) = lists["/api/v1/pods"]
    job["status"] |= {"conditions": [{"type": "Complete", "status": "True"}]}
    pod["spec"] |= {
        "nodeSelector": POOL.selector(),
        "tolerations": POOL.tolerations(),
    }
    evictions = []
    pod_lines = []
    for t, line in pod_log:
        if '"evict"' in line:
            evictions.append(json.loads(line))
        else:
            pod_lines.append((t, line))
    first, second = evictions
    eviction_time = f"{datetime.fromtimestamp(first['t'], UTC):%FT%TZ}"
    pod["status"] |= {
        "conditions": [evicted := DISRUPTED | {"lastTransitionTime": eviction_time}],
        "containerStatuses": load_record("crash")["pods"][0]["status"]["containerStatuses"],
    }
    logs = {"train-0": pod_lines}
    for case in NEVER_STARTED:
        logs[f"train-0-{case}"] = []
        rejected = deepcopy(pod)
        rejected["metadata"] |= {"name": f"train-0-{case}", "uid": case}
        rejected["status"] = load_record(case)["pods"][0]["status"] | {"phase": "Failed"}
        later = f"{datetime.fromtimestamp(second['t'], UTC):%FT%TZ}"
        rejected["status"].setdefault("conditions", []).append(
            evicted | {"lastTransitionTime": later}
        )
        lists["/api/v1/pods"].append(rejected)
    with serving(lists, tmp_path, logs) as kubeconfig:
        folder = tmp_path / "events"
        words = [
            "explain",
            "train",
            "--follow",
            "--events",
            str(folder),
            "--kubeconfig",
            str(kubeconfig),
        ]
        out = CliRunner().invoke(app, words, catch_exceptions=False).output
    (summary,) = read_job_summaries(folder).values()
    assert f"{summary.lost} steps lost" in out
    assert summary.lost > 0
    assert f"useful {100 * (summary.useful_ratio or 0):.1f} % of its time" in out
    assert "wasted by 1 evictions" in out, "by what the cluster shows of its pods"


def test_sharded_gang_pays_for_each_pod(tmp_path: Path) -> None:
    write_events(tmp_path / "w.jsonl", "w", sample.training("w"))
    paid: list[float] = []
    for job in (make_sharded("Succeeded"), make_sharded(*["Succeeded"] * 4)):
        job.pod_spec.update(
            {
                "nodeSelector": POOL.selector(),
                "tolerations": POOL.tolerations(),
            }
        )
        job.body["metadata"]["annotations"] = {"holdfast.dev/source": f"sha256:{'5e' * 32}"}
        receipt = make_bill(job, platforms.load("example"), tmp_path, [], POOL.name)
        assert "source sha256:5e5e" in receipt
        paid.append(float(receipt.partition("paid $")[2].split()[0]))
    assert paid[0] > 0
    assert paid[1] == pytest.approx(4 * paid[0], rel=0.05)
