"""The kinds of jobs that the cluster benchmark compares, and how each counts its own completion and failures."""

from dataclasses import dataclass

from holdfast.clients.api import Object
from holdfast.contract.pools import Pool
from tests.cluster.sim.jobsets import GROUP, jobset
from tests.cluster.sim.world import World

JOBS = "/apis/batch/v1"


@dataclass(frozen=True, kw_only=True)
class Kind:
    name: str
    needs_jobset: bool = False
    per_index: bool = True

    def create(self, world: World, pool: Pool, name: str, size: int) -> None:
        spec = self._spec(world, pool, size)
        if self.needs_jobset:
            world.api.create(world.path("jobsets", GROUP), jobset(name, spec))
        else:
            world.create_job(name, spec)

    def complete(self, world: World) -> int:
        group, plural, word = (GROUP, "jobsets", "Completed") if self.needs_jobset else (JOBS, "jobs", "Complete")
        return sum(_has(each, word) for each in world.api.items(world.path(plural, group)))

    def charged(self, world: World) -> int:
        """What a job's own limit has been charged with."""
        if self.needs_jobset:
            sets = world.api.items(world.path("jobsets", GROUP))
            return sum(each["status"].get("restartsCountTowardsMax", 0) for each in sets)
        jobs = [each["status"] for each in world.api.items(world.path("jobs", JOBS))]
        return sum(bool(status.get("failedIndexes")) + int(status.get("failed") or 0) for status in jobs)

    def release(self, world: World, jobs: int, writers: int) -> bool:
        """Let every pod that runs now end; whether all jobs are complete."""
        world.release(writers)
        return self.complete(world) == jobs

    def _spec(self, world: World, pool: Pool, size: int) -> Object:
        """Five pods fit a node by their CPU request; no GPU, or one pod would fill it."""
        spec = world.job_spec(pool, size)
        spec["template"]["metadata"] = {}
        spec["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
        if not self.per_index:
            del spec["backoffLimitPerIndex"]
            spec["backoffLimit"] = 0
        return spec


KINDS = (
    Kind(name="plain", per_index=False),
    Kind(name="per-index"),
    Kind(name="jobset", needs_jobset=True),
)


def _has(each: Object, word: str) -> bool:
    return any(c["type"] == word and c["status"] == "True" for c in each.get("status", {}).get("conditions") or ())
