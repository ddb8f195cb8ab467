"""Failure detector: decides when a silent member counts as lost.

A process that is starved of processor time answers late, but is not lost. So there are two limits:
a short one for a machine that accepts no connection, or where no process listens, and a longer one
for a process whose machine still accepts connections. Only time in which this process could have
received an answer counts: if it was starved or stopped, or waited for a name server, it does not
blame others.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.training.gang.peer_client import SURVEY_S, Peers, Survey

SILENT_S = 3.0
"""Default seconds after which a member on an unreachable machine counts as lost."""
PATIENCE = 5.0
"""Factor by which a process on a reachable machine may be silent longer."""
FAILURES = 2
LOOK_S = 0.25
"""Seconds between two surveys."""
_MAX_INTERVAL_S = LOOK_S + SURVEY_S + LOOK_S
"""Seconds that count at most between the ends of two surveys: a running process needs no more for a
pause and a survey.
"""


class FailureDetector:
    def __init__(
        self,
        peers: Peers,
        places: Sequence[int],
        *,
        silent_s: float,
        initial_silence_s: float = 0.0,
        predecessor: "FailureDetector | None" = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`places` are the indices of the members. `initial_silence_s` is the time for which they
        have been silent already although an answer was due. `predecessor` is the detector that
        surveyed them until now.
        """
        self._peers = peers
        self._places = places
        self._silent_s = silent_s
        self._now = now
        self._last_survey = now()
        silence_s = min(initial_silence_s, _MAX_INTERVAL_S)
        self._silence_s: dict[int, float] = dict.fromkeys(places, silence_s)
        self._failures: dict[int, int] = dict.fromkeys(places, 0)
        """Number of consecutive connections that failed."""
        if predecessor:
            for place in places:
                self._silence_s[place] = predecessor._silence_s.get(place, 0.0)
                self._failures[place] = predecessor._failures.get(place, 0)
        self.unanswered: frozenset[int] = frozenset()
        """Members that may still answer the newest survey, and do not count as lost."""
        self.silent: dict[int, str] = {}
        """Members that count as lost, and the reason."""

    def survey(self) -> dict[int, dict[str, Any]]:
        """Asks all members. Returns the status of those that answer, by index."""
        survey = self._peers.survey(self._places)
        now = self._now()
        elapsed_s = min(now - self._last_survey, _MAX_INTERVAL_S)
        self._last_survey = now
        self.silent = {}
        for place in self._places:
            self._count_failures(place, survey)
            silence_s = self._silence_s[place] + elapsed_s
            self._silence_s[place] = silence_s
            if place in survey.answers:
                self._silence_s[place] = 0.0
            reason = self._judge(place, silence_s, survey)
            if reason:
                self.silent[place] = reason
        pending = survey.unanswered | survey.unknown
        self.unanswered = pending - self.silent.keys()
        return survey.answers

    def _count_failures(self, place: int, survey: Survey) -> None:
        if place in survey.answers or place in survey.unanswered:
            self._failures[place] = 0
        elif place not in survey.unknown:
            self._failures[place] += 1

    def _judge(
        self,
        place: int,
        silence_s: float,
        survey: Survey,
    ) -> str:
        """Returns why a member counts as lost, or an empty string."""
        # Two failures, as one may occur by chance at the end of a long silence of a starved
        # process.
        if self._failures[place] >= FAILURES and silence_s >= self._silent_s:
            return f"has not answered for {self._silent_s:g} s"
        limit_s = PATIENCE * self._silent_s
        is_pending = place in survey.unanswered or place in survey.unknown
        if is_pending and silence_s >= limit_s:
            return f"has not answered for {limit_s:g} s, although its machine does,"
        return ""
