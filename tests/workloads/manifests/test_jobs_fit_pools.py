"""Jobs of the platform against the nodes that each environment plans: every job has a node, every
GPU pool a job.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.cost import prices
from holdfast.jobs.file.job_file import OwnJob
from holdfast.jobs.plan import placement
from holdfast.jobs.render import manifests
from holdfast.manifests.render_context import RenderContext
from holdfast.support.values import quantity
from holdfast.vocabulary.capacity import QUEUES, Capacity
from holdfast.vocabulary.kubernetes import LABEL_QUEUE
from holdfast.vocabulary.machines import MACHINE_TYPES
from holdfast.vocabulary.pools import GPU_RESOURCE, LABEL_ACCELERATOR, LABEL_ROLE, Role
from infra.environments import load
from infra.rules.fit import node_labels, node_taints
from infra.rules.model import PlannedResource, facts_of_specs
from tests import platforms
from tests.workloads.manifests.rendered import Body, jobs

IMAGE = f"us-docker.pkg.dev/p/r/train@sha256:{'a' * 64}"
FLEX = (QUEUES[Capacity.FLEX_START], QUEUES[Capacity.QUEUED])


def gpu_pools(env: str) -> list[PlannedResource]:
    """Those that jobs queue for."""
    pools = facts_of_specs(load(env)).pools("gpu")
    return [pool for pool in pools if node_labels(pool)[LABEL_ROLE] in (Role.TRAINING, Role.BATCH)]


def queue_of(pool: PlannedResource) -> str:
    if pool.get("queued_provisioning.enabled"):
        return QUEUES[Capacity.QUEUED]
    interruptible = Capacity.SPOT if pool.get("node_config.spot") else Capacity.ON_DEMAND
    return QUEUES[Capacity.FLEX_START if pool.get("node_config.flex_start") else interruptible]


def takes(pool: PlannedResource, queue: str, pod: Body) -> bool:
    machine = MACHINE_TYPES[str(pool.get("node_config.machine_type"))]
    asked = pod["containers"][0]["resources"]["requests"]
    tolerated = {(each["key"], each.get("value", "")) for each in pod.get("tolerations", ())}
    return (
        queue_of(pool) == queue
        and pod["nodeSelector"].items() <= node_labels(pool).items()
        and node_taints(pool) <= tolerated
        and int(pod["containers"][0]["resources"]["limits"][GPU_RESOURCE]) <= machine.gpus
        and (quantity(asked["cpu"]) or 0) < machine.vcpus
        and (quantity(asked["memory"]) or 0) < machine.memory_gib * 2**30
    )


def samples(env: str) -> Iterator[tuple[str, Body]]:
    """Queue and pod of each rendered job with GPUs."""
    for body, spec in jobs(env):
        pod = spec["template"]["spec"]
        if GPU_RESOURCE in pod["containers"][0]["resources"]["limits"]:
            yield body["metadata"]["labels"][LABEL_QUEUE], pod


def own_jobs(env: str) -> Iterator[tuple[str, Body]]:
    """Of each machine that the environment offers, a job that fills it and one with a single GPU,
    alone and as a gang.
    """
    platform = platforms.load(env)
    context = RenderContext(platform)
    run = next((each.name for each in platform.runs), "mine")
    for offer, whole, nodes in itertools.product(placement.offers(platform), (True, False), (1, 2)):
        gpus = offer.machine.gpus if whole else 1
        flex = {Capacity.QUEUED: nodes == 1, Capacity.FLEX_START: nodes > 1}
        if flex.get(offer.capacity) or gpus * nodes > offer.lent_gpus:
            continue
        job = OwnJob(
            name=run,
            environment=env,
            image=IMAGE,
            command=("true",),
            gpus=f"{gpus}x{offer.accelerator}",
            nodes=nodes,
            capacity=offer.capacity.value,
        )
        body = manifests.bodies(job, context, placement.place(job, platform, prices.load()))[-1]
        spec: Any = body["spec"]
        holder = spec["replicatedJobs"][0]["template"]["spec"] if body["kind"] == "JobSet" else spec
        yield body["metadata"]["labels"][LABEL_QUEUE], holder["template"]["spec"]


@pytest.mark.parametrize("written", [samples, own_jobs])
def test_every_job_has_a_node_and_every_pool_a_job(env: str, written: Any) -> None:
    """A pool's GPUs are counted into what a queue lends. A sample need not exist for each kind, a
    job of one's own must.
    """
    pools = gpu_pools(env)
    caps = platforms.load(env).auto_provisioning
    found = list(written(env))
    assert found
    for queue, pod in found:
        made = queue in FLEX and pod["nodeSelector"][LABEL_ACCELERATOR] in caps
        assert made or any(takes(pool, queue, pod) for pool in pools), (queue, pod["nodeSelector"])
    of_samples = {(queue, pod["nodeSelector"].get(LABEL_ACCELERATOR)) for queue, pod in found}
    for pool in pools:
        if (
            written is own_jobs
            or (queue_of(pool), node_labels(pool)[LABEL_ACCELERATOR]) in of_samples
        ):
            assert any(takes(pool, queue, pod) for queue, pod in found), pool.address
