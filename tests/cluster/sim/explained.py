"""Asks `explain` about a job of a test until it has come to a cause."""

from typing import Any

from holdfast.jobs.diagnose import explain
from holdfast.jobs.diagnose.explain import Explanation
from holdfast.vocabulary.pools import Pool
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World


def ask(world: World, job: str, reason: str) -> Explanation:
    """Waits until the explanation of the job has this reason, and returns it."""

    def match_explanation() -> Explanation | None:
        explanation = explain.explain(world.api, job, world.name)
        assert len(explanation.lines()) <= 6
        return explanation if explanation.cause.reason == reason else None

    return until(f"{job} is explained by {reason}", match_explanation)


def one_pod(
    world: World, pool: Pool, annotations: dict[str, str] | None = None, **spec: Any
) -> Any:
    """Returns the spec of a Job with one pod; `spec` replaces fields of the pod's spec."""
    return world.job_spec(pool, 1) | {"template": world.pod_template(pool, annotations, **spec)}
