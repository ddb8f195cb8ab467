"""Tests that every job has a node in the plan of its environment, and every GPU pool a job."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.cost import prices
from holdfast.jobs.file.job_file import JobSpec
from holdfast.jobs.plan import offers, placement
from holdfast.jobs.render import manifests
from holdfast.manifests.render_context import RenderContext, templates
from holdfast.support.values import quantity
from holdfast.vocabulary.capacity import QUEUES, Capacity
from holdfast.vocabulary.kubernetes import LABEL_QUEUE
from holdfast.vocabulary.machines import MACHINE_TYPES
from holdfast.vocabulary.pools import GPU_RESOURCE, LABEL_ACCELERATOR, LABEL_ROLE, Role
from infra.environments import load
from infra.rules.fit import node_labels, node_taints
from infra.rules.model import PlannedResource, read_specs
from tests import platforms
from tests.workloads.manifests.rendered import Body, jobs

IMAGE = f"us-docker.pkg.dev/p/r/train@sha256:{'a' * 64}"
FLEX = (QUEUES[Capacity.FLEX_START], QUEUES[Capacity.QUEUED])


def gpu_pools(env: str) -> list[PlannedResource]:
    """Returns the pools that jobs queue for."""
    pools = read_specs(load(env)).pools("gpu")
    return [pool for pool in pools if node_labels(pool)[LABEL_ROLE] in (Role.TRAINING, Role.BATCH)]


def find_queue(pool: PlannedResource) -> str:
    if pool.get("queued_provisioning.enabled"):
        return QUEUES[Capacity.QUEUED]
    if pool.get("node_config.flex_start"):
        return QUEUES[Capacity.FLEX_START]
    return QUEUES[Capacity.SPOT if pool.get("node_config.spot") else Capacity.ON_DEMAND]


def fits(pool: PlannedResource, queue: str, pod: Body) -> bool:
    machine = MACHINE_TYPES[str(pool.get("node_config.machine_type"))]
    tolerations: set[tuple[str, str]] = set()
    for toleration in pod.get("tolerations", ()):
        tolerations.add((toleration["key"], toleration.get("value", "")))
    is_allowed = (
        find_queue(pool) == queue
        and pod["nodeSelector"].items() <= node_labels(pool).items()
        and node_taints(pool) <= tolerations
    )
    resources = pod["containers"][0]["resources"]
    requests = resources["requests"]
    return (
        is_allowed
        and int(resources["limits"][GPU_RESOURCE]) <= machine.gpus
        and (quantity(requests["cpu"]) or 0) < machine.vcpus
        and (quantity(requests["memory"]) or 0) < machine.memory_gib * 2**30
    )


def samples(env: str) -> Iterator[tuple[str, Body]]:
    """Yields queue and pod of each rendered job with GPUs."""
    for body, spec in jobs(env):
        pod = spec["template"]["spec"]
        if GPU_RESOURCE in pod["containers"][0]["resources"]["limits"]:
            yield body["metadata"]["labels"][LABEL_QUEUE], pod


def own_jobs(env: str) -> Iterator[tuple[str, Body]]:
    """Yields queue and pod of jobs for each machine that the environment offers.

    A job fills the machine or has a single GPU, each alone and as a gang.
    """
    platform = platforms.load(env)
    context = RenderContext(platform)
    run = platform.runs[0].name if platform.runs else "mine"
    for offer, whole, nodes in itertools.product(
        offers.list_offers(platform), (True, False), (1, 2)
    ):
        gpus = offer.machine.gpus if whole else 1
        flex = {Capacity.QUEUED: nodes == 1, Capacity.FLEX_START: nodes > 1}
        if flex.get(offer.capacity) or gpus * nodes > offer.lent_gpus:
            continue
        job = JobSpec(
            name=run,
            environment=env,
            image=IMAGE,
            command=("true",),
            gpus=f"{gpus}x{offer.accelerator}",
            nodes=nodes,
            capacity=offer.capacity.value,
        )
        placed = placement.place(job, platform, prices.load())
        body = manifests.bodies(job, context, placed)[-1]
        (template,) = templates(body["spec"])
        yield body["metadata"]["labels"][LABEL_QUEUE], template["spec"]


@pytest.mark.parametrize("source", [samples, own_jobs])
def test_every_job_has_a_node_and_every_pool_a_job(env: str, source: Any) -> None:
    """Compares both ways, since a pool's GPUs count for what its queue lends.

    There need not be a sample for each kind of GPU, but people's own jobs must reach each pool.
    """
    pools = gpu_pools(env)
    caps = platforms.load(env).auto_provisioning
    queued_pods = list(source(env))
    assert queued_pods
    demands: set[tuple[str, str | None]] = set()
    for queue, pod in queued_pods:
        accelerator = pod["nodeSelector"].get(LABEL_ACCELERATOR)
        demands.add((queue, accelerator))
        is_provisioned = queue in FLEX and accelerator in caps
        has_pool = any(fits(pool, queue, pod) for pool in pools)
        assert is_provisioned or has_pool, (queue, pod["nodeSelector"])
    for pool in pools:
        offer = (find_queue(pool), node_labels(pool)[LABEL_ACCELERATOR])
        if source is own_jobs or offer in demands:
            assert any(fits(pool, queue, pod) for queue, pod in queued_pods), pool.address
