"""Jobs under lost nodes, on the real Job controller."""

import time

from holdfast.clients.api import Object
from holdfast.jobs.diagnose.job_snapshot import disruption, when
from holdfast.vocabulary.exit_codes import EXIT_BUG
from holdfast.vocabulary.kubernetes import LABEL_JOBSET
from holdfast.vocabulary.pools import Pool
from tests.cluster.sim import jobsets
from tests.cluster.sim.jobsets import GROUP
from tests.cluster.sim.stages import SHUTDOWN_REASON
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from tests.workloads.manifests.rendered import load_objects
from workloads.library.tests.cluster.objects import list_uids

SIZE = 4
LOST = 2
# the Job controller's; it doubles with each failure, also with those that its policy ignores
FIRST_BACK_OFF_S = 10
CLOCK_S = 2  # both the end of a pod and the creation of the next one are whole seconds


def test_a_spot_job_survives_repeated_storms_without_a_charged_failure(
    world: World, spot: Pool
) -> None:
    world.add_nodes(spot, SIZE)
    world.create_job("train", world.job_spec(spot, SIZE))
    reasons: dict[str, str] = {}
    for _ in range(2):
        world.wait_running(SIZE)
        assert world.preempt(world.nodes[:LOST]) == LOST
        for pod in world.pods("Failed"):
            if disruption(pod) == SHUTDOWN_REASON:
                reasons[pod["metadata"]["name"]] = pod["status"]["reason"]
        world.add_nodes(spot, LOST)
    world.wait_running(SIZE)
    world.release()
    assert world.wait_condition("train") == "Complete"
    status = world.job("train")["status"]
    assert status["succeeded"] == SIZE
    assert not status.get("failedIndexes")
    assert len(reasons) == 2 * LOST, "the storms must have been real"
    assert set(reasons.values()) == {"Terminated"}


def test_plain_job_backs_off_after_ignored_evictions_and_jobset_does_not(
    world: World, spot: Pool, jobset: None
) -> None:
    """Shows why gangs are JobSets."""
    plain = world.job_spec(spot, 1, backoffLimit=0)
    del plain["backoffLimitPerIndex"]
    world.create_job("plain", plain)
    jobset = jobsets.jobset("ours", world.job_spec(spot, 1))
    world.api.create(world.path("jobsets", GROUP), jobset)
    for doubled in (1, 2):
        world.add_nodes(spot, 2)
        before = list_uids(world.wait_running(2))
        lost_s = time.time()
        world.preempt(list(world.nodes))
        starts = until("both have new pods", lambda old=before: find_replacement_times(world, old))
        assert starts["plain"] - lost_s > FIRST_BACK_OFF_S * doubled - CLOCK_S
        assert starts["ours"] < starts["plain"]
    assert not world.job("plain")["status"].get("failed"), "slow, but not charged"


def find_replacement_times(world: World, old: set[str]) -> dict[str, float] | None:
    """Returns when the new pod of each job was made, once both have one."""
    fresh = []
    for pod in world.pods():
        if pod["metadata"]["uid"] not in old and pod["status"]["phase"] == "Pending":
            fresh.append(pod)
    made = {}
    for pod in fresh:
        made["ours" if LABEL_JOBSET in pod["metadata"]["labels"] else "plain"] = when(
            pod["metadata"]["creationTimestamp"]
        )
    return made if len(made) == 2 else None


def test_a_bug_ends_a_job_at_once_and_a_jobset_without_a_restart(
    world: World, spot: Pool, jobset: None
) -> None:
    world.add_nodes(spot, 2)
    world.create_job("buggy", world.job_spec(spot, 2, run_s=1, code=EXIT_BUG))
    assert world.wait_condition("buggy") == "Failed:PodFailurePolicy"
    assert len(world.pods()) <= 2, "nothing was retried"
    path = world.path("jobsets", GROUP)
    world.api.create(path, jobsets.jobset("buggy", world.job_spec(spot, 2, run_s=1, code=EXIT_BUG)))
    status: dict[str, object] = until(
        "it ends",
        lambda: (
            s
            if (s := world.api.get(f"{path}/buggy").get("status", {})).get("terminalState")
            else None
        ),
    )
    assert status["terminalState"] == "Failed"
    assert status.get("restarts", 0) == 0


def test_gang_ends_at_its_deadline(world: World, spot: Pool, jobset: None) -> None:
    """Without the rule, a JobSet at its deadline would start again, as often as after crashes."""
    policies = []
    for body in load_objects("example"):
        if is_gang(body):
            policies.append(body["spec"]["failurePolicy"])
    policy = policies[0]
    assert policy["maxRestarts"] > 0
    world.add_nodes(spot, 2)
    body = jobsets.jobset("late", world.job_spec(spot, 2, activeDeadlineSeconds=2))
    body["spec"]["failurePolicy"] = policy
    path = world.path("jobsets", GROUP)
    world.api.create(path, body)
    status = until("it ends", lambda: find_end(world.api.get(f"{path}/late")))
    assert status["terminalState"] == "Failed"
    assert status.get("restarts", 0) == 0


def is_gang(body: Object) -> bool:
    return body["kind"] == "JobSet" and bool(body["spec"].get("failurePolicy", {}).get("rules"))


def find_end(body: Object) -> Object | None:
    """Returns the status of a JobSet that has ended."""
    status: Object = body.get("status", {})
    return status if status.get("terminalState") or status.get("restarts") else None


def test_exit_zero_on_the_signal_loses_the_index(world: World, spot: Pool) -> None:
    world.add_nodes(spot, 2)
    world.create_job("polite", world.job_spec(spot, 2))
    world.wait_running(2)
    world.preempt(list(world.nodes), code=0)
    assert world.wait_condition("polite") == "Complete"
    ends = []
    for pod in world.pods("Succeeded"):
        ends.append(pod["status"]["containerStatuses"][0]["state"]["terminated"])
    assert len(ends) == 2, "an hour of work each, recorded as done after seconds"
