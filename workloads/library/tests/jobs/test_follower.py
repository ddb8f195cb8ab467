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
from workloads.library.tests.jobs.test_causes import recorded
from workloads.library.tests.jobs.test_losses import sharded
from workloads.library.tests.jobs.test_one_answer import running_job, write_events

pytestmark = pytest.mark.process
DISRUPTED = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "TerminationByKubelet",
}
NEVER_BEGAN = ("image", "device")
"""Recorded of a kubelet: a pod that it never started, and one that it turned away."""
POOL = platforms.load("example").pool("spot-l4-g2-standard-8")
Printed = list[tuple[str, str]]


@pytest.fixture
def printed(tmp_path: Path) -> Printed:
    """Of a training job that was killed twice, between lines of its own; several a second."""
    written = tmp_path / "written.jsonl"
    write_events(written, "train", sample.training("train", kills=sample.KILLS[:2]))
    lines = [
        each for line in written.read_text().splitlines() for each in ("epoch 1: loss 0.3", line)
    ]
    return [
        (f"{datetime.fromtimestamp(1.79e9 + n // 7, UTC):%FT%T}.{n:09}Z", line)
        for n, line in enumerate(lines)
    ]


def looked(folder: Path, *shown: Printed) -> list[str]:
    """What is kept after a look at each of these, the last one twice."""
    events = folder / "events"
    now = list[tuple[str, str]]()
    events.mkdir()
    with serving(running_job("train"), folder, {"train-0": now}) as kubeconfig:
        api = Api(kubeconfig)
        lines = PodLines(events)
        (pod,) = api.items("/api/v1/pods")
        for more in (*shown, []):
            now += more
            lines.look(api, pod)
    return [
        line for path in sorted(events.glob("*.jsonl")) for line in path.read_text().splitlines()
    ]


@pytest.mark.parametrize(("piece", "flooded"), [(2_000, False), (1 << 20, False), (2_000, True)])
def test_each_line_is_kept_once(
    tmp_path: Path, printed: Printed, piece: int, flooded: bool
) -> None:
    """However it comes, also after a second that prints more than a piece."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(follower, "PIECE", piece)
        if flooded:
            flood = [(f"{printed[0][0][:19]}.{n:09}Z", "x" * 100) for n in range(100)]
            assert looked(tmp_path, flood + printed[14:]) == [line for _, line in printed[15::2]]
        else:  # the second look begins within the last second that was read
            kept = looked(tmp_path, printed[:30], printed[30:33], printed[33:])
            assert kept == [line for _, line in printed[1::2]]


def test_an_ended_job_has_a_receipt_with_useful_time_and_its_lines_stay(
    tmp_path: Path, printed: Printed
) -> None:
    lists = running_job("train")
    (job,), (pod,) = lists["/apis/batch/v1/jobs"], lists["/api/v1/pods"]
    job["status"] |= {"conditions": [{"type": "Complete", "status": "True"}]}
    pod["spec"] |= {
        "nodeSelector": POOL.selector(),
        "tolerations": POOL.tolerations(),
    }
    first, second = (json.loads(line) for _, line in printed if '"evict"' in line)
    taken = f"{datetime.fromtimestamp(first['t'], UTC):%FT%TZ}"
    pod["status"] |= {
        "conditions": [evicted := DISRUPTED | {"lastTransitionTime": taken}],
        "containerStatuses": recorded("crash")["pods"][0]["status"]["containerStatuses"],
    }
    for case in NEVER_BEGAN:
        turned_away = deepcopy(pod)
        turned_away["metadata"] |= {"name": f"train-0-{case}", "uid": case}
        turned_away["status"] = recorded(case)["pods"][0]["status"] | {"phase": "Failed"}
        later = f"{datetime.fromtimestamp(second['t'], UTC):%FT%TZ}"
        turned_away["status"].setdefault("conditions", []).append(
            evicted | {"lastTransitionTime": later}
        )
        lists["/api/v1/pods"].append(turned_away)
    of_pods = [(t, line) for t, line in printed if '"evict"' not in line]
    with serving(
        lists, tmp_path, {"train-0": of_pods} | {f"train-0-{case}": [] for case in NEVER_BEGAN}
    ) as kubeconfig:
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
    assert f"{summary.lost} steps lost" in out and summary.lost > 0
    assert f"useful {100 * (summary.useful_ratio or 0):.1f} % of its time" in out
    assert "wasted by 1 evictions" in out, "by what the cluster shows of its pods"


def test_a_sharded_gang_pays_for_each_of_its_pods(tmp_path: Path) -> None:
    write_events(tmp_path / "w.jsonl", "w", sample.training("w"))
    paid: list[float] = []
    for job in (sharded("Succeeded"), sharded(*["Succeeded"] * 4)):
        job.pod_spec.update(
            {
                "nodeSelector": POOL.selector(),
                "tolerations": POOL.tolerations(),
            }
        )
        receipt = make_bill(job, platforms.load("example"), tmp_path, [], POOL.name)
        paid.append(float(receipt.partition("paid $")[2].split()[0]))
    assert paid[0] > 0 and paid[1] == pytest.approx(4 * paid[0], rel=0.05)
