"""An elastic or a sharded gang: an Indexed Job whose lost index is made again while the others go
on, or wait for it.

The pending pod is the request for capacity and costs nothing. One pod that has seen the last commit
completes the Job, so that a place for which no node ever came back does not keep it open.
"""

# Why it is so: infra/decisions/0035, and 0115 of sharded gangs.

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kubernetes import client

from holdfast.manifests import data
from holdfast.manifests.policies import RENDEZVOUS_PORT, budget, peers
from holdfast.manifests.render_context import Body, RenderContext, manifest, meta, plain, versioned
from holdfast.manifests.training import DAY_S, Task, indexed, spot_work
from holdfast.vocabulary.capacity import PlacementRule
from holdfast.vocabulary.environment import (
    ENV_GANG_ADDRESS,
    ENV_GANG_MIN_NODES,
    ENV_GANG_NODES,
    ENV_GANG_PORT,
    ENV_JOB,
    PLACE,
)
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED, EXIT_RETRY
from holdfast.vocabulary.kubernetes import LABEL_GANG, LABEL_NAME

ZONE = "topology.kubernetes.io/zone"
NODES = 4


def samples(context: RenderContext) -> Iterator[Body]:
    """Where a Spot pool has machines of one GPU: a place of the gang is one process."""
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
    given = Task(
        work=work,
        pods=NODES,
        least=NODES // 2,
        queue="spot",
        deadline_s=7 * DAY_S,
    )
    yield from elastic(context, given)


def elastic(context: RenderContext, given: Task) -> Iterator[Body]:
    """The command of the work finds the gang in its environment; see
    `holdfast.training.gang.member_addresses`.
    """
    name = given.work.name
    work = replace(
        given.work, env=_gang(given) | given.work.env, labels=given.work.labels | {LABEL_GANG: name}
    )
    job = indexed(context, replace(given, work=work), EXIT_PREEMPTED, EXIT_RETRY)
    assert job.spec and job.spec.template.spec
    job.spec.success_policy = client.V1SuccessPolicy(
        rules=[client.V1SuccessPolicyRule(succeeded_count=1)]
    )
    job.spec.template.spec.subdomain = name
    job.spec.template.spec.affinity = _one_zone(name)
    yield _service(name, given.namespace)
    yield peers(name, given.namespace)
    reason = "The gang goes on above this number. Spot preemption does not ask."
    if given.sharded:
        reason = (
            "All wait for each that goes: drains take one node at a time. Spot preemption does not"
            " ask."
        )
    yield budget(
        name, given.namespace, name, reason, keep=given.pods - 1 if given.sharded else given.least
    )
    yield versioned(plain(job))


def _gang(given: Task) -> dict[str, str]:
    # Kubernetes expands the variable, which holds the name that the Job has in the end; pods are
    # called after it.
    host = f"$({ENV_JOB})-{PLACE}.{given.work.name}"
    return {
        ENV_GANG_NODES: str(given.pods),
        ENV_GANG_MIN_NODES: str(given.least),
        ENV_GANG_ADDRESS: host,
        ENV_GANG_PORT: str(RENDEZVOUS_PORT),
    }


def _service(name: str, namespace: str) -> Body:
    """Names for pods, from the moment they exist: members ask each other before any of them is
    ready.
    """
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {LABEL_NAME: name},
    }
    return manifest("v1", "Service", meta(name, namespace), spec=spec)


def _one_zone(name: str) -> Any:
    """Gradients cross between all nodes in every step; between zones that is slower and billed."""
    term = {
        "labelSelector": {"matchLabels": {LABEL_NAME: name}},
        "topologyKey": ZONE,
    }
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
