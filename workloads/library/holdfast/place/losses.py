"""Computes how often a job loses machines on Spot, and what its checkpoints and losses cost."""

import math

from holdfast.place.job import Job
from holdfast.vocabulary.checkpoint_interval import find_best_interval
from holdfast.vocabulary.lifecycle import FLEX_MAX_RUN_S

# The cluster autoscaler removes nodes that nothing runs on after ten minutes, its default.
KEEP_H = 10 / 60
MICRO_BATCH_H = 10 / 3600
# Copies to a neighbor's memory hold a sharded gang for at most this share of its time: every 50 s
# if one takes 1 s.
COPYING = 0.02
COPIED_EVERY_H = 50 / 3600
# Share of the Spot preemptions that count as without a notice. Google sends one on a best effort
# and publishes no figure: this is an assumption (infra/decisions/0207).
UNNOTICED = 0.1
FLEX_MAX_RUN_H = FLEX_MAX_RUN_S / 3600


def count_groups(job: Job) -> int:
    """Return the number of equal groups of nodes that are each lost as one.

    It is the smallest divisor of the nodes that is not below their square root. Reclaims take
    several nodes of a zone at once. In the record 4, 8 and 16 nodes were lost 1.5, 2.2 and 2.9
    times as often as one. Nodes that work from a queue do not stop each other.
    """
    nodes = 1 if job.batch else job.nodes
    count = math.isqrt(nodes - 1) + 1
    while nodes % count:
        count += 1
    return count


def job_churn(job: Job, node_churn: float) -> float:
    """Return the evictions of the job an hour."""
    return node_churn * count_groups(job)


def find_interval(job: Job, churn: float) -> float:
    """Return the work between checkpoints that costs least at this churn of the whole job."""
    if job.batch:
        return MICRO_BATCH_H
    return find_best_interval(job.checkpoint_h, 1 / churn) if job.resumable else math.inf


def find_save_interval(job: Job, churn: float) -> tuple[float, float]:
    """Return the hours of work between saved states, and the hours for which saving one blocks it.

    A sharded gang goes back to copies in memory, or to the bucket if the lost nodes include two
    neighbors: then the mean is returned.
    """
    upload_h = find_interval(job, churn)
    block_h = job.checkpoint_h if job.resumable and not job.batch else 0.0
    if not job.sharded or upload_h <= COPIED_EVERY_H:
        return upload_h, block_h
    share = neighbors_lost(job)
    mean_h = (1 - share) * COPIED_EVERY_H + share * upload_h
    return mean_h, mean_h * (COPYING + block_h / upload_h)


def neighbors_lost(job: Job) -> float:
    """Return the share of losses of a sharded gang that take a shard together with its copy.

    The bucket is read after such a loss.
    """
    nodes = job.sharded
    group = job.sharded // count_groups(job)
    if group < 2:
        return 0.0
    # Subtracts the share of choices of nodes on the ring that have no two next to each other.
    survivors = nodes - group
    return 1 - nodes / survivors * math.comb(survivors, group) / math.comb(nodes, group)


def find_billed_wait(job: Job) -> float:
    """Return how long the other nodes of a gang are billed in each wait for a lost one."""
    # A gang that works with fewer nodes gives them back when it has too few.
    return math.inf if job.sharded and not job.elastic else KEEP_H
