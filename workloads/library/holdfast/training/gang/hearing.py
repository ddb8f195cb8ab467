"""How long a member may be silent, judged by what it and this process could have done.

A process that is starved of processor time answers late, and is not lost. So there are two limits:
a short one for a machine that takes no connection, or where no process listens, and a longer one
for a process whose machine still takes connections. And only time counts in which this process
could have heard an answer: one that was starved, stopped or waited for a name server itself does
not blame others.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.training.gang.peer_client import SURVEY_S, Peers

SILENT_S = 3.0
"""When a member whose machine cannot be reached counts as lost, unless a gang says otherwise."""
PATIENCE = 5.0
"""How many times as long as that a process may be silent whose machine can be reached."""
FAILURES = 2
LOOK_S = 0.25
"""Between two surveys."""
_MOST_S = LOOK_S + SURVEY_S + LOOK_S
"""That count between the ends of two surveys: a process that runs needs no more for a pause and a
survey.
"""


class Hearing:
    def __init__(
        self,
        peers: Peers,
        places: Sequence[int],
        *,
        silent_s: float,
        already_s: float = 0.0,
        before: "Hearing | None" = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`already_s`: for how long nothing was heard before, in which an answer was due; `before`:
        what heard them until now.
        """
        self._peers = peers
        self._places = places
        self._silent_s = silent_s
        self._now = now
        self._at = now()
        self._silence_s = dict.fromkeys(places, min(already_s, _MOST_S))
        if before:
            self._silence_s |= {place: before._silence_s.get(place, 0.0) for place in places}
        self._failures = dict.fromkeys(places, 0)
        """Connections that failed, one after the other."""
        self.unanswered: frozenset[int] = frozenset()
        """Places that may still answer the question of the newest survey, and do not count as lost.
        """
        self.silent: dict[int, str] = {}
        """Places that count as lost, and why."""

    def survey(self) -> dict[int, dict[str, Any]]:
        """Ask all places. Returns the status of those that answer."""
        found = self._peers.survey(self._places)
        elapsed_s = min(self._now() - self._at, _MOST_S)
        self._at = self._now()
        waited_for = found.unanswered | found.unknown
        self.silent = {}
        for place in self._places:
            silence_s = self._silence_s[place] + elapsed_s
            self._silence_s[place] = 0.0 if place in found.answers else silence_s
            if place in found.answers or place in found.unanswered:
                self._failures[place] = 0
            elif place not in found.unknown:
                self._failures[place] += 1
            # Two: one may fail by chance, at the end of a long silence of a process that is
            # starved.
            if self._failures[place] >= FAILURES and silence_s >= self._silent_s:
                self.silent[place] = f"has not answered for {self._silent_s:g} s"
            elif place in waited_for and silence_s >= PATIENCE * self._silent_s:
                self.silent[place] = (
                    f"has not answered for {PATIENCE * self._silent_s:g} s, although its machine"
                    " does,"
                )
        self.unanswered = waited_for - self.silent.keys()
        return found.answers
