"""Keeps one writer's flood of event lines from delaying or displacing the lines of all others.

A project has few reads a minute, and one pod can write more lines than they return. A pod or a job
that writes faster than its share, while lines wait to be read, is set apart: the common query
excludes it, and its own newest lines are read in turn with others set apart. Pure.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

POD_LINES_PER_S = 20.0
JOB_LINES_PER_S = 60.0
# A filter has at most 20,000 characters.
MOST_FLOODS = 30
MOST_PODS_OF_A_JOB = 3
# Lines of one moment make no rate.
SHORTEST_S = 5.0
SHORTEST_SPAN_S = 0.05
_VALUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")


@dataclass(frozen=True, slots=True, order=True)
class Flood:
    """A pod, or all pods of a job, that writes faster than its share."""

    namespace: str
    field: str
    """The field of a log entry that names it."""
    name: str
    job: str

    @property
    def condition(self) -> str:
        """The condition in a filter that its lines meet."""
        return f'(resource.labels.namespace_name="{self.namespace}" AND {self.field}="{self.name}")'

    @property
    def is_job(self) -> bool:
        return self.field.startswith("labels.")

    @property
    def lines_per_s(self) -> float:
        return JOB_LINES_PER_S if self.is_job else POD_LINES_PER_S


@dataclass(slots=True)
class Tally:
    """Counts the lines of one turn by pod and by job."""

    counts: Counter[Flood] = field(default_factory=Counter)
    total: int = 0
    first_s: float = 0.0
    last_s: float = 0.0

    def add(self, writers: Iterable[Flood], t: float) -> None:
        self.counts.update(writers)
        self.total += 1
        self.first_s = min(self.first_s or t, t)
        self.last_s = max(self.last_s, t)

    @property
    def span_s(self) -> float:
        return max(self.last_s - self.first_s, SHORTEST_S)

    @property
    def lines_per_s(self) -> float:
        return self.total / max(self.last_s - self.first_s, SHORTEST_SPAN_S)

    def estimate_lines(self, seconds: float) -> int:
        """Returns about how many lines were written in a time that was not read; at least one."""
        return max(1, round(self.lines_per_s * seconds))

    def find_floods(self) -> list[Flood]:
        """Returns the pods over their share, and the jobs whose other pods are over theirs.

        A job of many such pods is returned as a whole.
        """
        pods_by_job: dict[tuple[str, str], list[Flood]] = defaultdict(list)
        for writer in self.counts:
            if not writer.is_job and self._is_over(writer, self.counts[writer]):
                pods_by_job[writer.namespace, writer.job].append(writer)
        floods: list[Flood] = []
        for writer, count in self.counts.items():
            if not writer.is_job:
                continue
            pods = pods_by_job.get((writer.namespace, writer.job), [])
            rest = count - sum(self.counts[pod] for pod in pods)
            if len(pods) > MOST_PODS_OF_A_JOB or self._is_over(writer, rest):
                floods.append(writer)
                pods.clear()
        for pods in pods_by_job.values():
            floods += pods
        return floods

    def _is_over(self, writer: Flood, count: int) -> bool:
        # A name that no filter can hold belongs to no pod and no job.
        for name in (writer.namespace, writer.name):
            if not _VALUE.fullmatch(name):
                return False
        return count > writer.lines_per_s * self.span_s


@dataclass(frozen=True, slots=True)
class Apart:
    """The progress of reading the lines of a writer that is set apart."""

    read_until_s: float
    """Time up to which its lines were read or given up."""
    over_s: float
    """Time at which it was last over its share."""


@dataclass(slots=True)
class Floods:
    """Holds the writers that are set apart, the one that waits longest for its turn first."""

    apart: dict[Flood, Apart] = field(default_factory=dict)

    def set_apart(self, floods: Iterable[Flood], since_s: float, now_s: float) -> list[Flood]:
        """Adds writers whose lines are read up to `since_s`. Returns those that are new."""
        added: list[Flood] = []
        for flood in floods:
            is_new = flood not in self.apart and not self._covers(flood)
            if is_new and len(self.apart) < MOST_FLOODS:
                self.apart[flood] = Apart(since_s, now_s)
                added.append(flood)
        return added

    def _covers(self, flood: Flood) -> bool:
        """Returns whether the whole job of a pod is set apart."""
        for other in self.apart:
            is_same_job = other.namespace == flood.namespace and other.job == flood.job
            if other.is_job and is_same_job:
                return True
        return False

    @property
    def conditions(self) -> list[str]:
        """The conditions that exclude all of them."""
        return [f"NOT {flood.condition}" for flood in self.apart]

    def take_next(self) -> tuple[Flood, Apart] | None:
        """Removes and returns the writer whose turn it is."""
        if not self.apart:
            return None
        flood = next(iter(self.apart))
        return flood, self.apart.pop(flood)


def find_share(counts: Sequence[int], total: int) -> int:
    """Returns the largest count that each writer may keep, so that all keep `total` at most.

    Those that have less than an equal share leave the rest to the others.
    """
    rest = total
    for number, count in enumerate(sorted(counts)):
        share = rest // (len(counts) - number)
        if count > share:
            return share
        rest -= count
    return total
