"""A user's job with hours and a deadline: what the planner prices is what its objects carry
out.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.controllers.cluster import Cluster
from holdfast.cost import prices
from holdfast.jobs.file.job_file import JobSpec
from holdfast.jobs.plan import offers, placement
from holdfast.jobs.plan.offers import Offer
from holdfast.jobs.plan.placement import Beliefs
from holdfast.jobs.render import manifests
from holdfast.manifests.render_context import RenderContext
from holdfast.place import plan
from holdfast.place.plan import Plan
from holdfast.platform import Platform
from holdfast.support.errors import InputError
from holdfast.support.values import rfc3339
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.kubernetes import LABEL_CLUSTER_QUEUE
from holdfast.vocabulary.machines import MACHINE_TYPES
from holdfast.vocabulary.pools import LABEL_RESERVED_UNTIL
from infra import describe, environments
from tests.platforms import load
from workloads.library.tests.jobs.test_job_file import own
from workloads.manifests import queueing

PRICES = prices.load()


EXAMPLE = load("example")


def without_on_demand() -> Platform:
    """The example without on-demand machines for jobs."""
    example = environments.load("example")
    groups = []
    for group in example.groups:
        if not group.name.startswith("demand-"):
            groups.append(group)
    return describe.platform(replace(example, groups=tuple(groups)))


def place_and_render(job: JobSpec, env: Platform, churn: str = "") -> tuple[Plan, Any]:
    """Returns the plan of the job, and the linted object that carries it."""
    placed = placement.place(job, env, PRICES, Beliefs(churn=churn))
    assert placed.plan is not None, placed.reason
    body = manifests.bodies(job, RenderContext(env), placed)[-1]
    manifests.judge("job.yaml", manifests.text(env.name, [body]), env)
    return placed.plan, body


def test_a_sweeps_points_all_end_within_a_reservation() -> None:
    pool = EXAMPLE.pool("spot-l4-g2-standard-8")
    last_day = datetime.now(UTC).date() + timedelta(days=2)
    reserved = replace(pool, extra_labels=((LABEL_RESERVED_UNTIL, last_day.isoformat()),))
    offer = Offer(
        capacity=Capacity.RESERVED,
        accelerator=pool.accelerator,
        machine=MACHINE_TYPES[pool.machine_type],
        lent_gpus=8,
        pool=reserved,
        pools=(reserved,),
    )
    sweep = own(hours=24.0, sweep={"SEED": [1, 2, 3, 4]}, parallel=4)
    assert offers.refuse(sweep, offer) == ""
    refusal = offers.refuse(replace(sweep, parallel=1), offer)
    assert refusal.endswith("before 96 h of work are done")


def flavors(env: Platform) -> dict[str, Any]:
    objects = queueing.objects(RenderContext(env))
    labels_by_flavor: dict[str, Any] = {}
    for flavor in objects:
        if flavor["kind"] == "ResourceFlavor":
            labels_by_flavor[flavor["metadata"]["name"]] = flavor["spec"].get("nodeLabels")
    return labels_by_flavor


def test_job_with_deadline_carries_its_policy_and_names_no_capacity() -> None:
    env = EXAMPLE
    priced, body = place_and_render(own(gpus="1xl4", hours=40.0, deadline_hours=60.0), env)
    meta = body["metadata"]
    assert meta["labels"]["holdfast.dev/moves"] == "true"
    assert (
        plan.parse_plan(meta["annotations"]["holdfast.dev/placement-plan"]).text() == priced.text()
    )
    assert priced.work_h == 40.0
    assert priced.deadline_h == 60.0
    pod = body["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-l4"}
    # Each queue that it may be in has a flavor for it, which holds what the pod leaves open.
    queues = {
        priced.spot_queue: ("spot-l4", "spot"),
        priced.on_demand_queue: ("demand-l4", "on-demand"),
    }
    for queue, (group, capacity) in queues.items():
        labels = flavors(env)[f"{queue}-{group}"]
        assert labels.items() >= (pod["nodeSelector"] | {"holdfast.dev/pool-class": group}).items()
        assert waits_for(body, labels, queue) == {("nvidia-l4", capacity)}


def test_flex_start_job_is_moved_to_on_demand_in_time() -> None:
    env = EXAMPLE
    job = own(gpus="1xa100", hours=48.0, deadline_hours=60.0)
    priced, body = place_and_render(job, env, "0.5")
    assert priced.policy == "queue"
    assert priced.spot_queue == "flex"
    assert priced.on_demand_queue == "on-demand"
    assert body["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "flex"
    pod = body["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-tesla-a100"}
    queued = flavors(env)["flex-nvidia-tesla-a100"]
    assert queued["cloud.google.com/gke-gpu-driver-version"] == "latest", (
        "as any other pod on such a node asks"
    )
    assert waits_for(body, queued, "flex") == {("nvidia-tesla-a100", "flex-start")}


def test_what_is_not_moved_in_time_is_not_promised() -> None:
    placed = placement.place(own(gpus="1xl4", hours=10.0), EXAMPLE, PRICES)
    assert placed.offer is not None, "hours without a deadline"
    assert "%" in placed.reason, "hours without a deadline"
    fields: dict[str, Any] = {
        "gpus": "1xa100",
        "command": ("sleep", "9"),
        "hours": 48.0,
        "deadline_hours": 60.0,
    }
    alone = own(nodes=1, **fields)
    gang = own(nodes=2, **fields)
    with pytest.raises(InputError, match="keeps the deadline"):
        placement.place(alone, without_on_demand(), PRICES)
    priced, _ = place_and_render(gang, EXAMPLE)
    assert priced.spot_queue == "spot", "a ProvisioningRequest binds a gang to its nodes"


def waits_for(body: Any, flavor: dict[str, str], queue: str) -> set[tuple[str, ...]]:
    """Returns the GPU and the capacity that the exporter sees a pod of the job wait for.

    The pod is made from the job as Kueue makes it.
    """
    template = body["spec"]["template"]
    spec = template["spec"] | {"nodeSelector": template["spec"]["nodeSelector"] | flavor}
    labels = template["metadata"]["labels"] | {LABEL_CLUSTER_QUEUE: queue}
    meta = {
        "uid": "u",
        "namespace": "training",
        "labels": labels,
    }
    waits = {
        "type": "PodScheduled",
        "status": "False",
        "lastTransitionTime": rfc3339(1_000.0),
    }
    cluster = Cluster()
    cluster.pod(
        "ADDED",
        {
            "metadata": meta,
            "spec": spec,
            "status": {
                "phase": "Pending",
                "conditions": [waits],
            },
        },
    )
    waits_of_pods = set()
    for entry in cluster.samples(2_000.0):
        if entry.metric == "pending_seconds" and entry.value == 1_000.0:
            waits_of_pods.add(tuple(value for _, value in entry.labels))
    return waits_of_pods


def test_a_deadline_that_the_environment_cannot_keep_is_refused() -> None:
    tight = own(
        gpus="1xl4",
        hours=40.0,
        deadline_hours=40.5,
        nodes=9,
    )
    with pytest.raises(InputError, match="keeps the deadline") as refused:
        placement.place(tight, EXAMPLE, PRICES)
    assert "ON_DEMAND" in refused.value.fix
    with pytest.raises(InputError, match="deadline_hours"):
        own(gpus="1xl4", deadline_hours=40.5)


def test_copies_on_disk_need_local_ssds_for_a_large_state() -> None:
    """30 GiB a node: a boot disk of 100 GiB has no room for four of them, a local SSD has."""
    job = own(
        gpus="1xa100",
        nodes=2,
        sharded=True,
        state="60Gi",
        copies_in="disk",
    )
    assert job.pod_disk_gib > 120
    pool = EXAMPLE.pool("spot-a100")
    assert pool.free_disk_gib < 120 < replace(pool, local_ssds=1).free_disk_gib
    assert replace(pool, local_ssds=8).free_disk_gib == int(0.9 * 3000 - 100)


def test_scratch_beyond_every_known_disk_is_warned_of() -> None:
    env = EXAMPLE
    job = own()
    assert offers.describe_unknown_disk(replace(job, scratch="47Gi"), env) == ""
    warning = offers.describe_unknown_disk(replace(job, scratch="500Gi"), env)
    assert "502 GiB" in warning
    assert "49 GiB" in warning
