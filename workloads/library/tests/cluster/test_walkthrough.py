"""Takes rendered jobs the whole way: from the queue through eviction and drought to the receipt and
the page.

Only the size of rendered objects is changed for the real API server, JobSet, Kueue and scheduler.
The exporter watches under the rights that are rendered for it; its samples go through Cloud
Monitoring's names into Prometheus' own engine with the deployed alerts. Between the acts the
story's clock skips hours: see sim/story.py.
"""

from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests
from kubernetes import client

from holdfast.clients.api import Api
from holdfast.cost import prices
from holdfast.jobs.diagnose import explain
from holdfast.jobs.diagnose.explain import Row
from holdfast.vocabulary.roles import NAMESPACE_BATCH, NAMESPACE_TRAINING
from monitoring.alerting.alert import Severity
from monitoring.alerting.alerts import alerts
from tests.cluster.sim.story import StoryApi, StoryClock, watching
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from tests.monitoring.alerting.firings import Firing
from tests.workloads.manifests import rendered
from workloads.library.tests.cluster.cast import SYSTEM, Cast, list_time_limited, provision
from workloads.library.tests.cluster.walk import ENVIRONMENT, LIMITS, Walk
from workloads.library.tests.controllers.log_server import LogServer, serving

pytestmark = pytest.mark.usefixtures("kueue")
# Between what makes a query true and its first sample, and between two looks of the rule.
DELAY_MIN = 3
A100 = "accelerator=nvidia-tesla-a100"
BATCH_PODS = f"/api/v1/namespaces/{NAMESPACE_BATCH}/pods"


@pytest.fixture
def story(
    api: Api,
    exporter: client.ApiClient,
    mover_account: client.ApiClient,
    tmp_path: Path,
) -> Generator[Walk]:
    clock = StoryClock()
    rights = exporter, mover_account
    with (
        serving(LogServer()) as logs,
        requests.Session() as session,
        watching(*rights, clock) as watched,
    ):
        session.trust_env = False
        walk = Walk(api, clock, watched, logs, session, mover_account, tmp_path)
        walk.receipts.start()
        yield walk
        walk.receipts.close()
        walk.receipts.join(30)


@pytest.fixture
def cast(world: World, story: Walk) -> Generator[Cast]:
    members = Cast(world, story)
    yield members
    for job in members.jobs:
        job.cancel()


def test_rendered_job_keeps_its_identity_from_queue_to_receipt(
    cast: Cast,
    api: Api,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = cast.story
    flex_index = f"job={cast.flex.name}"
    monkeypatch.setattr(explain, "time", SimpleNamespace(time=story.clock))

    # Hours in Kueue for quota, for a node, for Google's answer.
    machines = submit_all(cast)
    story.minutes(200)
    assert not story.list_firings(), "a job that waits for what it asked for pages no one"
    flex_machines = cast.add_flex(cast.flex, ends_s=story.clock() + 330 * 60)
    cast.flex.wait("Running", 2)
    provision(cast.world, cast.queued)
    story.minutes(55)
    assert not list_time_limited(api), "in the queues of Spot and of flex-start"
    same_wait_everywhere(cast, tmp_path)
    same_share_everywhere(cast, tmp_path)

    # Eviction, and an hour and a half without a node.
    evicted_min = story.now_min
    cast.take(cast.gang, machines)
    story.minutes(90)
    cast.add_spot()
    cast.gang.wait("Running", 4)
    back_min = story.now_min
    story.minutes(30)

    # One index hangs: it computes and saves nothing, on a node whose end is known.
    hung_min = story.now_min
    story.trainers.hung.add(cast.flex.name.rsplit("-", 1)[0] + "-0")
    story.minutes(55)
    story.trainers.hung.clear()
    story.minutes(40)
    cast.queued.cancel()
    story.minutes(50)

    # The planned end, and another node.
    cast.take(cast.flex, flex_machines)
    story.minutes(30)
    cast.add_flex(cast.flex)
    cast.flex.wait("Running", 2)
    story.minutes(30)

    # A bug: the gang crashes three times without a save.
    for _ in range(3):
        cast.crash(cast.gang)
        crashed_min = story.now_min
        story.minutes(3)
    story.minutes(17)
    rows = list_rows(cast, tmp_path)
    assert rows[cast.gang.name].evicted.number == 1
    assert rows[cast.gang.name].crashed.number == 3

    # The end of it all, and two hours after.
    cast.finish(cast.flex)
    cast.finish(cast.gang)
    cast.sweep.wait("Running", 2)
    admitted_min = story.now_min
    story.minutes(60)
    cast.finish(cast.sweep)
    story.minutes(120)

    receipts_hold(cast, tmp_path)
    fired = story.list_firings()
    expected = [
        (
            "HoldfastQueueWaitTooLong",
            "queue=spot",
            0,
            LIMITS["queue_wait_s"] // 60 + 5,
            admitted_min,
        ),
        (
            "HoldfastSpotPendingTooLong",
            A100,
            evicted_min,
            LIMITS["spot_pending_s"] // 60 + 5,
            back_min,
        ),
        # The last save may be ten minutes old when it begins to hang.
        ("HoldfastNoRecentCommit", flex_index, hung_min, 20 + 2, hung_min + 65),
        ("HoldfastFlexNodeEndsUnsaved", flex_index, hung_min, 30 + 5, hung_min + 65),
        (
            "HoldfastRestartsWithoutProgress",
            f"job={cast.gang.name}",
            crashed_min,
            1,
            crashed_min + 20,
        ),
    ]
    require_fired(fired, expected)
    indices: set[str] = set()
    for firing in fired:
        if firing.label("job") == cast.flex.name:
            indices.add(firing.label("index"))
    assert indices == {"0"}
    severe = set()
    for alert in alerts(LIMITS):
        if alert.severity is Severity.PAGE:
            severe.add(alert.name)
    pages = {
        "HoldfastNoRecentCommit",
        "HoldfastFlexNodeEndsUnsaved",
        "HoldfastRestartsWithoutProgress",
    }
    assert {firing.alert for firing in fired} & severe == pages


def require_fired(
    fired: list[Firing], expected: list[tuple[str, str, float, float, float]]
) -> None:
    """Requires a firing for each of `expected`: alert, label, minute of the trouble, minutes within
    which it fires, minute at which the trouble is over.
    """
    assert len(fired) == len(expected), fired
    for firing, (name, label, trouble_min, promise_min, over_min) in zip(
        fired, expected, strict=True
    ):
        assert firing.alert == name, fired
        key, _, value = label.partition("=")
        assert firing.label(key) == value, firing
        assert trouble_min < firing.first_min <= trouble_min + promise_min + DELAY_MIN, (
            name,
            firing,
        )
        assert firing.last_min <= over_min + DELAY_MIN + 5, (name, firing)


def submit_all(cast: Cast) -> list[str]:
    """Submits all jobs, and returns the gang's nodes. The gang takes all that its queue lends;
    every other job waits for something else.
    """
    cast.world.add_nodes(SYSTEM, 1, labels={})

    def migration_has_its_node() -> bool:
        pods = cast.world.api.items(BATCH_PODS)
        return bool(pods) and all(pod["spec"].get("nodeName") for pod in pods)

    # The migration that came with the platform has waited since then, and the story's hours pass in
    # seconds.
    until("the migration has its node", migration_has_its_node)
    machines = cast.add_spot()
    budget = rendered.find_object("example", "PodDisruptionBudget", "train-gang")
    cast.world.api.apply(cast.world.api.path_of(budget), budget)
    cast.gang.submit()
    cast.gang.wait("Running", 4)
    for job in (cast.sweep, cast.flex, cast.queued):
        job.submit()
        until(f"Kueue knows {job.name}", job.workload)
    cast.flex.wait("Pending", 2)
    return machines


def list_rows(cast: Cast, events: Path) -> dict[str, Row]:
    rows = explain.rows(
        StoryApi(cast.world.api, cast.story.clock), ENVIRONMENT, prices.load(), events, "training"
    )
    return {row.name: row for row in rows}


def same_wait_everywhere(cast: Cast, events: Path) -> None:
    """The exporter's metric, `list` and `explain` show one wait of the job that Kueue holds."""
    waits = {}
    for name, value in cast.story.seen.items():
        if name.startswith("queue_wait_seconds"):
            waits[name] = value
    assert len(waits) == 1, waits
    (wait,) = waits.values()
    row = list_rows(cast, events)[cast.sweep.name]
    assert row.waited_s == pytest.approx(wait, abs=90)
    explained = explain.explain(
        StoryApi(cast.world.api, cast.story.clock), cast.sweep.name, "", events
    )
    assert "insufficient unused quota for nvidia.com/gpu" in explained.cause.blocker
    assert row.why == explained.cause.reason


def same_share_everywhere(cast: Cast, events: Path) -> None:
    """The exporter's metric and `list` show one share of a job that is one run. `list` combines the
    runs of a job that has one for each index.
    """
    rows = list_rows(cast, events)

    def read_goodput(labels: str) -> float:
        return cast.story.seen[f"goodput_ratio {labels} namespace={NAMESPACE_TRAINING}"]

    for job in (cast.gang, cast.queued):
        assert rows[job.name].useful_ratio == read_goodput(f"job={job.name}")
    shares = []
    for index in (0, 1):
        shares.append(read_goodput(f"index={index} job={cast.flex.name}"))
    assert rows[cast.flex.name].useful_ratio == pytest.approx(sum(shares) / 2, abs=1e-6)


def receipts_hold(cast: Cast, events: Path) -> None:
    """Every job that ended has a receipt. A wait costs nothing, and the evictions are those that
    `list` and the report show.
    """
    gang = cast.gang.receipt()
    flex = cast.flex.receipt()
    sweep = cast.sweep.receipt()
    assert gang.evictions == 1
    assert flex.evictions == 2
    assert sweep.evictions == 0
    assert gang.waited_hours == pytest.approx(1.5, abs=0.1)
    assert gang.machine_hours == pytest.approx(255 / 60 + 264 / 60, abs=0.2)
    assert flex.waited_hours == pytest.approx(2 * 0.5, abs=0.1)
    assert sweep.waited_hours == 0
    assert 0 < gang.wasted_usd < 0.1 * gang.paid_usd < gang.on_demand_usd
    rows = list_rows(cast, events)
    assert len(rows) == 3
    assert rows[cast.gang.name].evicted.number == 1
    assert rows[cast.flex.name].evicted.number == 2
    assert rows[cast.sweep.name].evicted.number == 0
