"""Provides event lines in memory, as a source of the exporter and the mover."""

from dataclasses import dataclass, field

from holdfast.controllers.event_source import Lines
from holdfast.exporter.jobs import Jobs
from workloads.library.tests.sample import Line, encoded


@dataclass
class FakeSource:
    """Holds the lines that pods wrote since the last call."""

    fresh: list[Lines] = field(default_factory=list)

    def add(self, *rows: Line, job: str = "", namespace: str = "", pod: str = "") -> None:
        """Adds lines of one pod."""
        self.fresh.append(Lines(encoded(rows), job, namespace, pod))

    def news(self) -> list[Lines]:
        fresh = self.fresh
        self.fresh = []
        return fresh


def read_jobs(*rows: Line, since_s: float = 0.0) -> Jobs:
    """Returns the jobs of these lines, which one writer wrote."""
    source = FakeSource()
    source.add(*rows)
    jobs = Jobs(source, since_s)
    jobs.read()
    return jobs
