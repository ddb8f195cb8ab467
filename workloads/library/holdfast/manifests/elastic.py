"""Builds an elastic or a sharded gang: an Indexed Job that replaces a lost index by itself.

Meanwhile the other pods continue, or wait for it. The pending pod is the request for capacity and
costs nothing. One pod that has seen the last commit completes the Job, so that an index that got no
new node does not keep it open.
"""

# Why it is so: infra/decisions/0035, and 0115 of sharded gangs.

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kubernetes import client

from holdfast.manifests import data
from holdfast.manifests.policies import RENDEZVOUS_PORT, budget, peers
from holdfast.manifests.render_context import (
    Body,
    RenderContext,
    add_version,
    manifest,
    meta,
    plain,
)
from holdfast.manifests.training import SAMPLE_S, Task, make_indexed_job, spot_work
from holdfast.vocabulary.capacity import (
    ANNOTATION_RULE,
    ANNOTATION_WAIT,
    LABEL_LEAST_NODES,
    Capacity,
    PlacementRule,
)
from holdfast.vocabulary.environment import (
    ENV_GANG_ADDRESS,
    ENV_GANG_MIN_NODES,
    ENV_GANG_NODES,
    ENV_GANG_PORT,
    ENV_JOB,
    ENV_RUN,
    PLACE,
)
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED, EXIT_RETRY
from holdfast.vocabulary.kubernetes import ANNOTATION_ELASTIC, EXPENDABLE, LABEL_GANG, LABEL_NAME
from holdfast.vocabulary.pools import Pool, Role

ZONE = "topology.kubernetes.io/zone"
NODES = 4
SHARDED_NODES = 2
SHARDED_WAIT_S = 300
ELASTIC_WAIT_S = 60
"""`hold_s` of an elastic gang, whose program may set another one."""


def samples(context: RenderContext) -> Iterator[Body]:
    """Builds an elastic and a sharded gang."""
    yield from _sample_elastic(context)
    yield from _sample_sharded(context)


def _sample_sharded(context: RenderContext) -> Iterator[Body]:
    """Builds a gang over machines of several GPUs, whose state is sharded over all of them."""
    name = "train-sharded"
    pool = _find_sharded_pool(context)
    if pool is None or not context.trains(name):
        return
    words = ["python", "-m", "holdfast", "train", "ranks"]
    words += ["--processes", str(pool.gpus_per_node), "--sharded", "--copies", "1"]
    words += ["--wait", str(SHARDED_WAIT_S), "--", "python", "-m"]
    words += ["holdfast.training.examples.sharded_fsdp2", context.checkpoints]
    sizes = {"NNODES": str(SHARDED_NODES), "NPROC_PER_NODE": str(pool.gpus_per_node)}
    work = spot_work(context, name, pool, PlacementRule.SHARDED)
    # The program makes its own data.
    annotations = {ANNOTATION_RULE: PlacementRule.SHARDED.value} | EXPENDABLE
    work = replace(
        work,
        command=words,
        env={ENV_RUN: name} | sizes,
        volumes=[],
        annotations=annotations,
    )
    task = Task(
        work=work,
        pods=SHARDED_NODES,
        least=SHARDED_NODES,
        sharded=True,
        wait_s=SHARDED_WAIT_S,
        queue="spot",
        deadline_s=SAMPLE_S,
    )
    yield from elastic(context, task)


def _find_sharded_pool(context: RenderContext) -> Pool | None:
    """Returns a Spot pool of machines with several GPUs; None in a cluster of small samples."""
    if context.small:
        return None
    for pool in context.platform.pools:
        is_spot = (pool.role, pool.capacity) == (Role.TRAINING, Capacity.SPOT)
        if is_spot and pool.gpus_per_node > 1 and pool.max_nodes >= SHARDED_NODES:
            return pool
    return None


def _sample_elastic(context: RenderContext) -> Iterator[Body]:
    """Builds a gang of one process a node, for a Spot pool of machines with one GPU."""
    pool = context.training
    name = "train-elastic"
    if pool.gpus_per_node != 1 or pool.max_nodes < NODES or not context.trains(name):
        return
    words = [
        "python",
        "-m",
        "holdfast",
        "train",
        "elastic",
        "--checkpoints",
        context.checkpoints,
        "--run",
        name,
    ]
    words += ["--steps", "100000", "--device", "cuda", "--data", data.PATH]
    work = replace(spot_work(context, name, pool, PlacementRule.ELASTIC), command=words)
    task = Task(
        work=work,
        pods=NODES,
        least=NODES // 2,
        queue="spot",
        deadline_s=SAMPLE_S,
    )
    yield from elastic(context, task)


def elastic(context: RenderContext, task: Task) -> Iterator[Body]:
    """Builds the Job of a gang, with the Service, policy and budget of its pods.

    The command of the work finds the gang in its environment; see
    `holdfast.training.gang.member_addresses`.
    """
    work = task.work
    name = work.name
    labels = work.labels | {LABEL_GANG: name}
    work = replace(work, env=_gang_env(task) | work.env, labels=labels)
    task = _add_wait(replace(task, work=work))
    job = make_indexed_job(context, task, EXIT_PREEMPTED, EXIT_RETRY)
    assert job.spec and job.spec.template.spec
    success_rule = client.V1SuccessPolicyRule(succeeded_count=1)
    job.spec.success_policy = client.V1SuccessPolicy(rules=[success_rule])
    job.spec.template.spec.subdomain = name
    job.spec.template.spec.affinity = _one_zone(name)
    yield _service(name, task.namespace)
    yield peers(name, task.namespace)
    yield _budget(task)
    yield add_version(plain(job))


def _add_wait(task: Task) -> Task:
    """Tells the mover below how many nodes the gang waits, and for how long, and Kueue that its
    number of pods may change.

    Without a queue nothing could start the gang again after its nodes were given back.
    """
    if not task.queue:
        return task
    annotations = {ANNOTATION_WAIT: str(task.wait_s or ELASTIC_WAIT_S)}
    if task.least < task.pods:
        annotations[ANNOTATION_ELASTIC] = "true"
    return replace(
        task,
        labels=task.labels | {LABEL_LEAST_NODES: str(task.least)},
        annotations=task.annotations | annotations,
    )


def _budget(task: Task) -> Body:
    if task.sharded and task.least == task.pods:
        reason = (
            "All wait for each that goes: drains take one node at a time. Spot preemption does not"
            " ask."
        )
        min_available = task.pods - 1
    else:
        reason = "The gang goes on above this number. Spot preemption does not ask."
        min_available = task.least
    name = task.work.name
    return budget(name, task.namespace, name, reason, keep=min_available)


def _gang_env(task: Task) -> dict[str, str]:
    # Kubernetes expands the variable, which holds the final name of the Job; pods are named after
    # it.
    host = f"$({ENV_JOB})-{PLACE}.{task.work.name}"
    return {
        ENV_GANG_NODES: str(task.pods),
        ENV_GANG_MIN_NODES: str(task.least),
        ENV_GANG_ADDRESS: host,
        ENV_GANG_PORT: str(RENDEZVOUS_PORT),
    }


def _service(name: str, namespace: str) -> Body:
    """Builds a Service that gives pods names before they are ready: members then ask each other."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {LABEL_NAME: name},
    }
    return manifest("v1", "Service", meta(name, namespace), spec=spec)


def _one_zone(name: str) -> Any:
    """Keeps a gang in one zone: gradients between zones are slower and billed."""
    term = {
        "labelSelector": {"matchLabels": {LABEL_NAME: name}},
        "topologyKey": ZONE,
    }
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
