"""Our trainer as a real pod on a real kubelet: preempted, replaced on the other machine, resumed."""

import time
from pathlib import Path

import pytest

from holdfast.contract.exit_codes import EXIT_PREEMPTED
from holdfast.contract.lifecycle import DEFAULT_WINDOW
from holdfast.contract.pools import Pool
from holdfast.jobs.job_snapshot import exit_code, when
from tests.cluster.sim.event_lines import events
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World, disruption
from workloads.library.tests.node.lab import pods
from workloads.library.tests.node.lab.lab import Lab

EVERY, STEPS = 20, 400

pytestmark = pytest.mark.timeout(600)


def test_the_trainer_commits_in_its_window_and_resumes_on_the_other_machine(
    lab: Lab, world: World, spot: Pool, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "text.txt").write_text("a spot machine may be taken away at any time. " * 2_000)
    log = tmp_path / "events.jsonl"
    arguments = [
        *("-m", "holdfast", "train", "run", "--data", data, "--checkpoints", tmp_path / "ckpt", "--run", "node"),
        *("--ranks", 1, "--steps", STEPS, "--every", EVERY, "--device", "cpu", "--events", log),
        *("--window", DEFAULT_WINDOW.pod_s),
    ]
    first = lab.boot("spot-a", spot)
    world.create_job("train", pods.job(pods.python(spot, [str(part) for part in arguments], tmp_path)))
    (pod,) = world.wait_running(1)
    until("a first checkpoint is committed", lambda: events(log, "commit"), 180)
    noticed = time.time()
    assert lab.preempt(first), "the kubelet gave its lock back within the window"

    found = world.pod(pod["metadata"]["name"])
    assert (disruption(found), exit_code(found)) == ("TerminationByKubelet", EXIT_PREEMPTED)
    terminated = found["status"]["containerStatuses"][0]["state"]["terminated"]
    assert when(terminated["finishedAt"]) - noticed <= DEFAULT_WINDOW.pod_s
    committed = max(event["step"] for event in events(log, "commit"))
    stopped = events(log, "exit")[-1]
    assert stopped["code"] == EXIT_PREEMPTED
    assert 0 <= stopped["step"] - committed <= EVERY, "at most one interval is lost"

    lab.boot("spot-b", spot)
    assert world.wait_condition("train", 300) == "Complete"
    assert events(log, "restore")[-1]["step"] == committed
    assert events(log, "exit")[-1]["step"] == STEPS
    assert not world.job("train")["status"].get("failedIndexes")
