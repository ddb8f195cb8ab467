"""Tells what the points of a running sweep have cost, and what all of them will cost.

There is no interval: points differ in their work and share their interruptions.
"""

# Why it is so: infra/decisions/0147.

from collections import defaultdict
from collections.abc import Sequence

from holdfast.jobs.diagnose.job_snapshot import JobSnapshot, find_limit, get_place
from holdfast.vocabulary.environment import ENV_POINT

NO_INTERVAL = "no 80 % interval, as points differ in their work"


def is_sweep(job: JobSnapshot) -> bool:
    """Return whether each pod of the job is a point of a sweep."""
    for container in job.pod_spec.get("containers", ()):
        for variable in container.get("env") or ():
            if variable["name"] == ENV_POINT:
                return True
    return False


def describe_sweep_price(
    job: JobSnapshot,
    pod_costs: Sequence[float],
    stated_usd: float | None,
) -> str:
    """Return `at least $4.00 so far, 2 of 12 points done; about $24.00 for all ...`.

    pod_costs: dollars of each pod of the job until now.
    stated_usd: dollars of one point by the `hours` of its file; None without them.
    """
    point_count = int(job.body["spec"].get("completions") or job.size)
    done_points = {get_place(pod) for pod in job.phase("Succeeded")}
    succeeded = int(job.status.get("succeeded") or 0)
    done_count = max(len(done_points), succeeded)
    failed = parse_indexes(job.status.get("failedIndexes") or "")
    cost_by_point: dict[int, float] = defaultdict(float)
    for pod, usd in zip(job.pods, pod_costs, strict=True):
        cost_by_point[get_place(pod)] += usd
    spent_usd = sum(cost_by_point.values())
    limit = find_limit(job)
    if limit is not None:
        spent_usd = max(spent_usd, limit.spent_usd)
    counts = f"{done_count} of {point_count} points done"
    if failed:
        counts += f", {len(failed)} failed"
    # Pods whose node is gone may be gone too.
    so_far = f"at least ${spent_usd:,.2f} so far, {counts}"
    if done_points:
        point_usd = sum(cost_by_point[point] for point in done_points) / len(done_points)
        basis = f"by the mean of {len(done_points)} done"
    elif stated_usd is not None:
        point_usd = stated_usd
        basis = "by the hours of its file, without interruptions"
    else:
        return f"{so_far}; no price of all before a point is done, as its file states no hours"
    rest_usd = point_usd * (point_count - done_count - len(failed))
    for point, usd in cost_by_point.items():
        if point not in done_points and point not in failed:
            rest_usd -= min(usd, point_usd)
    if limit is None:
        # Points that are done and whose pods are gone.
        rest_usd += point_usd * (done_count - len(done_points))
    total_usd = spent_usd + max(0.0, rest_usd)
    return f"{so_far}; about ${total_usd:,.2f} for all, {basis}; {NO_INTERVAL}"


def parse_indexes(text: str) -> set[int]:
    """Return the indexes of a status such as `1,3-5`."""
    indexes: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        last = last or first
        indexes.update(range(int(first), int(last) + 1))
    return indexes
