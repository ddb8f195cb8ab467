"""From loading to gone, as a state machine: what the server answers probes, and when it may stop
listening. Pure.

LOADING, READY, ACCEPTING (not ready, and still serving: endpoints are moving away), FINISHING (no
new connection, what has begun is answered), GONE. The clock is the caller's.
"""

from dataclasses import dataclass
from enum import StrEnum

from holdfast.vocabulary.serving import QUIET_S, DrainBudget


class Phase(StrEnum):
    LOADING = "loading"
    READY = "ready"
    ACCEPTING = "accepting"
    FINISHING = "finishing"
    GONE = "gone"


@dataclass
class Drain:
    budget: DrainBudget
    longest_request_s: float
    """At most the budget's: what this server lets a request take."""
    phase: Phase = Phase.LOADING
    in_flight: int = 0
    """Requests whose first byte has come and whose last has not gone."""
    noticed_s: float = 0.0
    _last_request_s: float = float("-inf")

    @property
    def serving(self) -> bool:
        return self.phase in (Phase.READY, Phase.ACCEPTING)

    @property
    def leaving(self) -> bool:
        """Answers say `Connection: close`."""
        return self.phase not in (Phase.LOADING, Phase.READY)

    def loaded(self) -> None:
        if self.phase is Phase.LOADING:
            self.phase = Phase.READY

    def began(self) -> None:
        """The first byte of any request."""
        self.in_flight += 1

    def predicting(self, now: float) -> None:
        """A request is for a prediction: probes and scrapes never stop, and must not keep a server
        from being quiet.
        """
        self._last_request_s = now

    def ended(self) -> None:
        self.in_flight -= 1

    def notice(self, now: float) -> None:
        """SIGTERM. A server that was never ready is in no endpoint list: it has nothing to wait
        for.
        """
        if self.phase is Phase.LOADING:
            self.phase = Phase.GONE if not self.in_flight else Phase.FINISHING
        elif self.phase is Phase.READY:
            self.phase = Phase.ACCEPTING
            self.noticed_s = now

    def advance(self, now: float) -> Phase:
        """Time has passed, or a request has ended."""
        if self.phase is Phase.ACCEPTING and self._may_stop_accepting(now):
            self.phase = Phase.FINISHING
        if self.phase is Phase.FINISHING and not self.in_flight:
            self.phase = Phase.GONE
        return self.phase

    def _may_stop_accepting(self, now: float) -> bool:
        since = now - self.noticed_s
        if since < self.budget.accept_s:
            return False
        quiet = now - self._last_request_s >= QUIET_S
        return quiet or since >= self.budget.latest_accept_s(self.longest_request_s)
