"""An elastic gang: an Indexed Job whose lost index is made again while the others go on.

The pending pod is the request for capacity and costs nothing. One pod that has seen the last commit completes the
Job, so that a place for which no node ever came back does not keep it open.
"""

# Why it is so: infra/decisions/0035.

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kubernetes import client

from holdfast.contract.capacity import PlacementRule
from holdfast.contract.environment import (
    ENV_GANG_ADDRESS,
    ENV_GANG_MIN_NODES,
    ENV_GANG_NODES,
    ENV_GANG_PORT,
    ENV_JOB,
    PLACE,
)
from holdfast.contract.exit_codes import EXIT_PREEMPTED, EXIT_RETRY
from holdfast.contract.kubernetes import JOB_API, LABEL_NAME
from holdfast.contract.roles import NAMESPACE_TRAINING
from holdfast.manifests import data
from holdfast.manifests.pods import Work, template
from holdfast.manifests.policies import RENDEZVOUS_PORT, budget, peers
from holdfast.manifests.render_context import Body, RenderContext, meta, plain, versioned
from holdfast.manifests.training import ADDED_UP, DAY_S, FAILURES, ignoring, queued_by, spot_work

ZONE = "topology.kubernetes.io/zone"


NODES = 4


def samples(context: RenderContext) -> Iterator[Body]:
    """Where a Spot pool has machines of one GPU: a place of the gang is one process."""
    pool = context.training
    name = "train-elastic"
    if pool.gpus_per_node != 1 or pool.max_nodes < NODES or not context.trains(name):
        return
    words = ["python", "-m", "holdfast", "train", "elastic", "--checkpoints", context.checkpoints, "--run", name]
    words += ["--steps", "100000", "--device", "cuda", "--data", data.PATH]
    work = replace(spot_work(context, name, pool, PlacementRule.ELASTIC), command=words)
    given = ElasticGang(work=work, nodes=NODES, min_nodes=NODES // 2, queue="spot", deadline_s=7 * DAY_S)
    yield from elastic(context, given)


@dataclass(frozen=True, kw_only=True)
class ElasticGang:
    """`work.command` finds the gang in its environment; see `holdfast.training.elastic.places`."""

    work: Work
    nodes: int
    min_nodes: int
    queue: str
    """Kueue's, which starts it; empty: it starts at once."""
    deadline_s: int
    restarts: int = 3
    """Crashes of a place; evictions are not counted."""


def elastic(context: RenderContext, given: ElasticGang) -> Iterator[Body]:
    name, work = given.work.name, given.work
    pod = template(context, replace(work, from_pod=work.from_pod | FAILURES, env=_gang(given) | work.env | ADDED_UP))
    assert pod.spec
    pod.spec.subdomain = name
    pod.spec.affinity = _one_zone(name)
    body = client.V1Job(
        api_version=JOB_API,
        kind="Job",
        metadata=meta(name, NAMESPACE_TRAINING, labels=queued_by(given.queue)),
        spec=client.V1JobSpec(
            suspend=True if given.queue else None,
            completion_mode="Indexed",
            completions=given.nodes,
            parallelism=given.nodes,
            backoff_limit_per_index=given.restarts,
            active_deadline_seconds=given.deadline_s,
            ttl_seconds_after_finished=DAY_S,
            pod_failure_policy=ignoring(EXIT_PREEMPTED, EXIT_RETRY),
            success_policy=client.V1SuccessPolicy(rules=[client.V1SuccessPolicyRule(succeeded_count=1)]),
            template=pod,
        ),
    )
    yield _service(name)
    yield peers(name)
    reason = "The gang goes on above this number. Spot preemption does not ask."
    yield budget(name, NAMESPACE_TRAINING, name, reason, keep=given.min_nodes)
    yield versioned(plain(body))


def _gang(given: ElasticGang) -> dict[str, str]:
    # Kubernetes expands the variable, which holds the name that the Job has in the end; pods are called after it.
    host = f"$({ENV_JOB})-{PLACE}.{given.work.name}"
    return {
        ENV_GANG_NODES: str(given.nodes),
        ENV_GANG_MIN_NODES: str(given.min_nodes),
        ENV_GANG_ADDRESS: host,
        ENV_GANG_PORT: str(RENDEZVOUS_PORT),
    }


def _service(name: str) -> Body:
    """Names for pods, from the moment they exist: members ask each other before any of them is ready."""
    return plain(
        client.V1Service(
            api_version="v1",
            kind="Service",
            metadata=meta(name, NAMESPACE_TRAINING),
            spec=client.V1ServiceSpec(cluster_ip="None", publish_not_ready_addresses=True, selector={LABEL_NAME: name}),
        )
    )


def _one_zone(name: str) -> client.V1Affinity:
    """Gradients cross between all nodes in every step; between zones that is slower and billed."""
    term = client.V1PodAffinityTerm(
        topology_key=ZONE, label_selector=client.V1LabelSelector(match_labels={LABEL_NAME: name})
    )
    return client.V1Affinity(
        pod_affinity=client.V1PodAffinity(required_during_scheduling_ignored_during_execution=[term])
    )
