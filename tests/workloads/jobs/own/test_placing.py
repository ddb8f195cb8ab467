"""A job of one's own with hours and a deadline: what the planner prices is what its objects carry out."""

from dataclasses import replace
from typing import Any

import pytest

from holdfast.contract.errors import InputError
from holdfast.contract.values import rfc3339
from infra.contract.kubernetes import LABEL_CLUSTER_QUEUE
from infra.contract.pools import Role
from infra.environments import Environment, load
from infra.environments.capacity import NodeGroup
from infra.placement import plan, prices
from monitoring.exporter.cluster import Cluster
from tests.workloads.jobs.own.test_job_file import own
from workloads.jobs.own import placing, rendered
from workloads.manifests.builders import queueing
from workloads.manifests.builders.render_context import RenderContext

PRICES = prices.load()


def test_with_hours_the_planner_places_the_job_and_says_why() -> None:
    job = own(gpus="1xl4", hours=10.0)
    placed = placing.place(job, load("example"), PRICES)
    assert placed.offer is not None and "%" in placed.reason, placed.reason


def with_on_demand() -> Environment:
    """The example with on-demand machines for jobs beside its Spot ones."""
    group = NodeGroup(
        name="demand-l4", role=Role.TRAINING, machine_types=("g2-standard-8",), accelerator="nvidia-l4",
        gpus_per_node=1, max_nodes=4,
    )  # fmt: skip
    example = load("example")
    return replace(example, groups=(*example.groups, group))


def test_a_job_with_a_deadline_carries_its_policy_and_names_no_capacity_of_its_own() -> None:
    job, env = own(gpus="1xl4", hours=40.0, deadline_hours=60.0), with_on_demand()
    placed = placing.place(job, env, PRICES)
    assert placed.plan is not None, placed.reason
    body = rendered.bodies(job, RenderContext(env), placed)[-1]
    rendered.judge("job.yaml", rendered.text(job, [body]))
    meta = body["metadata"]
    assert meta["labels"]["holdfast.dev/moves"] == "true"
    assert plan.read(meta["annotations"]["holdfast.dev/placement-plan"]).text() == placed.plan.text()
    assert (placed.plan.work_h, placed.plan.deadline_h) == (40.0, 60.0)
    pod = body["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-l4"}
    # Each queue that it may stand in has a flavor for it, which holds what the pod leaves open.
    queues = {placed.plan.spot_queue: ("spot-l4", "spot"), placed.plan.on_demand_queue: ("demand-l4", "on-demand")}
    found = {each["metadata"]["name"]: each for each in queueing.objects(RenderContext(env))}
    for queue, (group, capacity) in queues.items():
        labels = found[f"{queue}-{group}"]["spec"]["nodeLabels"]
        assert labels.items() >= (pod["nodeSelector"] | {"holdfast.dev/pool-class": group}).items()
        assert waits_for(body, labels, queue) == {("nvidia-l4", capacity)}


def waits_for(body: Any, flavor: dict[str, str], queue: str) -> set[tuple[str, ...]]:
    """The GPU and the capacity that the exporter sees a pod of the job wait for, made from it as Kueue makes it."""
    template = body["spec"]["template"]
    spec = template["spec"] | {"nodeSelector": template["spec"]["nodeSelector"] | flavor}
    meta = {
        "uid": "u",
        "namespace": "training",
        "labels": template["metadata"]["labels"] | {LABEL_CLUSTER_QUEUE: queue},
    }
    waits = {"type": "PodScheduled", "status": "False", "lastTransitionTime": rfc3339(1_000.0)}
    cluster = Cluster()
    cluster.pod("ADDED", {"metadata": meta, "spec": spec, "status": {"phase": "Pending", "conditions": [waits]}})
    pending = [each for each in cluster.samples(2_000.0) if each.metric == "pending_seconds" and each.value == 1_000.0]
    return {tuple(value for _, value in each.labels) for each in pending}


def test_a_deadline_that_the_environment_cannot_keep_is_refused() -> None:
    tight = own(gpus="1xl4", hours=40.0, deadline_hours=40.5, nodes=9)
    with pytest.raises(InputError, match="keeps the deadline") as refused:
        placing.place(tight, load("example"), PRICES)
    assert "ON_DEMAND" in refused.value.fix
    with pytest.raises(InputError, match="deadline_hours"):
        own(gpus="1xl4", deadline_hours=40.5)
