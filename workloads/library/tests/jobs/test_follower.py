"""`follow`: the lines that pods printed, read through the API server in pieces, become useful time
and lost steps.
"""

import json
import time
from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.clients.api import Api, ApiError, Object
from holdfast.commands import app
from holdfast.jobs.diagnose import job_snapshot
from holdfast.jobs.diagnose.job_snapshot import when
from holdfast.jobs.submit import follower
from holdfast.jobs.submit.follower import Following, PodLines, make_bill
from holdfast.ledger.job_summary import read_job_summaries
from holdfast.support.errors import Unjudged
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
COMPLETE = {"type": "Complete", "status": "True"}
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


def test_lines_after_a_progress_bar_are_kept(tmp_path: Path, pod_log: PodLog) -> None:
    """A progress bar returns to the start of its line, and a kubelet's own text has no time."""
    (t, _) = pod_log[29]
    bar = (t, "\rEpoch 0:   0%|     | 0/9\rEpoch 0: 100%|#####| 9/9")
    kubelet_text = ("unable to retrieve container logs for", "containerd://5e5e")
    stored = follow_log(
        tmp_path,
        [*pod_log[:30], bar],
        [kubelet_text],
        pod_log[30:],
    )
    assert stored == [line for _, line in pod_log[1::2]]


def test_a_first_line_longer_than_a_piece_is_passed_over(
    tmp_path: Path, pod_log: PodLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of a pod that draws a progress bar has no line end for hours."""
    monkeypatch.setattr(follower, "PIECE", 2_000)
    times: list[object] = []
    text = Api.text

    def count(self: Api, path: str, **query: object) -> str:
        times.append(query.get("sinceTime"))
        assert len(times) < 100, times
        return text(self, path, **query)

    monkeypatch.setattr(Api, "text", count)
    (t, _) = pod_log[0]
    stored = follow_log(tmp_path, [(t, "x" * 5_000), *pod_log[14:]])
    assert stored == [line for _, line in pod_log[15::2]]


def test_an_ended_job_has_a_receipt_with_useful_time_and_its_lines_stay(
    tmp_path: Path, pod_log: PodLog
) -> None:
    lists = running_job("train")
    (job,) = lists["/apis/batch/v1/jobs"]
    (pod,) = lists["/api/v1/pods"]
    job["status"] |= {"conditions": [COMPLETE]}
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


def follow_job(lists: dict[str, list[Object]], folder: Path, report: Callable[[str], None]) -> int:
    """Follows the only job of a cluster, without pauses, to its end."""
    with serving(lists, folder) as kubeconfig, pytest.MonkeyPatch.context() as patch:
        patch.setattr(follower, "POLL_S", 0.0)
        api = Api(kubeconfig)
        job = job_snapshot.find(api, "train")
        return follower.follow(
            api, platforms.load("example"), job, Following(timeout_s=20.0), report
        )


def test_a_cluster_that_is_away_for_a_while_ends_no_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = running_job("train")
    (job,) = lists["/apis/batch/v1/jobs"]
    get = Api.get
    reported: list[str] = []

    def be_away(*_: object, **__: object) -> Object:
        raise Unjudged("the cluster does not answer", got="connection refused")

    def report(line: str) -> None:
        reported.append(line)
        if "does not answer" in line:
            job["status"] |= {"conditions": [COMPLETE]}
        monkeypatch.setattr(Api, "get", get if "does not answer" in line else be_away)

    assert follow_job(lists, tmp_path, report) == 0
    assert reported[1:] == [
        "the cluster does not answer: connection refused; asking again",
        "Complete",
    ]


def test_a_refusal_ends_a_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Object:
        raise ApiError(403, "pods is forbidden")

    with pytest.raises(ApiError, match="forbidden"):
        follow_job(
            running_job("train"),
            tmp_path,
            lambda _: monkeypatch.setattr(Api, "get", refuse),
        )


def test_a_node_that_does_not_answer_ends_no_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def be_silent(*_: object, **__: object) -> str:
        raise Unjudged("the cluster does not answer", got="no answer within 60 s")

    monkeypatch.setattr(Api, "text", be_silent)
    with serving(running_job("train"), tmp_path) as kubeconfig:
        api = Api(kubeconfig)
        (pod,) = api.items("/api/v1/pods")
        PodLines(tmp_path).look(api, pod)
    assert not list(tmp_path.glob("*.jsonl"))


def test_a_pod_that_is_gone_is_paid_until_it_was_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = running_job("train")
    (job,) = lists["/apis/batch/v1/jobs"]
    (pod,) = lists["/api/v1/pods"]
    pod["spec"] |= {"nodeSelector": POOL.selector(), "tolerations": POOL.tolerations()}
    clock_s = when(pod["status"]["startTime"]) + 600.0
    monkeypatch.setattr(time, "time", lambda: clock_s)

    def report(_: str) -> None:
        nonlocal clock_s
        clock_s += 36_000.0
        lists["/api/v1/pods"].clear()
        job["status"] |= {"conditions": [COMPLETE]}

    assert follow_job(lists, tmp_path, report) == 0
    assert "for 10.0 minutes with 0 evictions" in capsys.readouterr().out
