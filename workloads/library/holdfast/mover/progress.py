"""How far each job is, by the lines of its own pods.

Any pod may print a line about any job and have any label. So a line counts for the Job or JobSet
that controls the pod that wrote it, by uid; the job that the line names does not count. Guarantee:
what is held of one job is bounded, whatever another writes, and goes when the job does.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import chain

from holdfast.controllers.event_source import EventSource, Lines
from holdfast.ledger.events import Event, parse
from holdfast.ledger.progress import SHOWING
from holdfast.mover.movable_jobs import Movable

KEPT_LINES = 2_000
"""Of a job."""
# So long the watch of pods may be behind the log.
PATIENCE_S = 120.0
MOST_WAITING = 1_000


@dataclass(slots=True)
class Progress:
    source: EventSource
    owner_of: Callable[[str, str], str]
    """Namespace and name of a pod -> uid of what controls it; empty: no such pod was seen."""
    held: dict[str, deque[Event]] = field(default_factory=dict[str, deque[Event]])
    """By uid."""
    _waiting: list[tuple[float, Lines]] = field(default_factory=list[tuple[float, Lines]])

    def read(self, now_s: float) -> None:
        waiting = self._waiting
        self._waiting = []
        for since_s, written in chain(waiting, ((now_s, lines) for lines in self.source.news())):
            uid = self.owner_of(written.namespace, written.pod)
            if uid:
                shown = [e for e in parse(written.lines, now_s=now_s).events if e.type in SHOWING]
                if shown:
                    self.held.setdefault(uid, deque(maxlen=KEPT_LINES)).extend(shown)
            elif now_s - since_s < PATIENCE_S and len(self._waiting) < MOST_WAITING:
                self._waiting.append((since_s, written))

    def events(self, job: Movable) -> Iterable[Event]:
        """The newest ones that show how far a job is."""
        return self.held.get(job.uid, ())

    def forget_all_but(self, uids: Collection[str]) -> None:
        """`uids`: of the jobs that exist."""
        for key in [key for key in self.held if key not in uids]:
            del self.held[key]
