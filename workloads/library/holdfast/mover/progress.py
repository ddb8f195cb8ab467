"""Keeps the newest events of each job, as written by its own pods.

Any pod may print a line about any job and have any label. So a line counts for the Job or JobSet
that controls the pod that wrote it, by uid; the job that the line names does not count. Guarantee:
the events kept of one job, and of all, are bounded, whatever another job writes, and are dropped
with the job.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from holdfast.controllers.event_source import EventSource, Lines
from holdfast.controllers.fair_share import find_share
from holdfast.ledger.events import Event, parse
from holdfast.ledger.progress import SHOWING
from holdfast.mover.movable_jobs import Movable

KEPT_LINES = 2_000
"""Lines kept of one job."""
# An event takes a kilobyte, and the mover's pod has 512 MiB.
MOST_EVENTS = 150_000
MISCOMPUTED = "miscomputed"
# The watch of pods may be this long behind the log.
PATIENCE_S = 120.0
MOST_WAITING = 1_000


@dataclass(slots=True)
class Progress:
    source: EventSource
    find_owner: Callable[[str, str], str]
    """Namespace and name of a pod -> uid of what controls it; empty for an unknown pod."""
    events_by_job: dict[str, deque[Event]] = field(default_factory=dict)
    """Events by uid of the Job or JobSet."""
    wrong_pods: set[tuple[str, str]] = field(default_factory=set)
    """Namespace and name of pods that said of themselves that they computed wrong."""
    _waiting: list[tuple[float, Lines]] = field(default_factory=list)
    """Lines of pods that the watch does not know yet, and when they came."""

    def read(self, now_s: float) -> None:
        """Reads new lines, and tries again those of pods that were unknown."""
        batches = self._waiting
        self._waiting = []
        for lines in self.source.news():
            if lines.lines:
                batches.append((now_s, lines))
        for since_s, lines in batches:
            uid = self.find_owner(lines.namespace, lines.pod)
            if uid:
                self._add(uid, lines, now_s)
            elif now_s - since_s < PATIENCE_S and len(self._waiting) < MOST_WAITING:
                self._waiting.append((since_s, lines))
        self._bound_events()

    def _bound_events(self) -> None:
        """Drops the oldest events of the jobs that have more than their share."""
        counts = [len(events) for events in self.events_by_job.values()]
        share = find_share(counts, MOST_EVENTS)
        for events in self.events_by_job.values():
            while len(events) > share:
                events.popleft()

    def _add(self, uid: str, lines: Lines, now_s: float) -> None:
        reading = parse(lines.lines, now_s=now_s)
        is_wrong = any(event.type == MISCOMPUTED for event in reading.events)
        if is_wrong and len(self.wrong_pods) < MOST_WAITING:
            self.wrong_pods.add((lines.namespace, lines.pod))
        events = [event for event in reading.events if event.type in SHOWING]
        if not events:
            return
        if uid not in self.events_by_job:
            self.events_by_job[uid] = deque(maxlen=KEPT_LINES)
        self.events_by_job[uid].extend(events)

    def events(self, job: Movable) -> Iterable[Event]:
        """Returns the newest events that show how far a job is."""
        return self.events_by_job.get(job.uid, ())

    def take_wrong_pods(self) -> set[tuple[str, str]]:
        """Returns the pods that said since the last call that they computed wrong."""
        pods = self.wrong_pods
        self.wrong_pods = set()
        return pods

    def forget_all_but(self, uids: Collection[str]) -> None:
        """Drops all jobs but these, which exist."""
        for uid in list(self.events_by_job):
            if uid not in uids:
                del self.events_by_job[uid]
