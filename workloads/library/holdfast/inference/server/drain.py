"""The life of a server as a state machine, from loading to gone. Pure; the caller has the clock.

The phases decide the response to probes and the time to stop listening: LOADING, READY, ACCEPTING
(not ready, still serving while endpoints are removed), FINISHING (no new connections, started
requests are answered), GONE.
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
    """The maximum time of a request on this server, at most that of the budget."""
    phase: Phase = Phase.LOADING
    in_flight: int = 0
    """The number of requests that have started and are not answered."""
    noticed_s: float = 0.0
    _last_request_s: float = float("-inf")

    @property
    def serving(self) -> bool:
        return self.phase in (Phase.READY, Phase.ACCEPTING)

    @property
    def leaving(self) -> bool:
        """True if responses have the header `Connection: close`."""
        return self.phase not in (Phase.LOADING, Phase.READY)

    def finish_loading(self) -> None:
        if self.phase is Phase.LOADING:
            self.phase = Phase.READY

    def begin_request(self) -> None:
        """Counts a request, at its first byte."""
        self.in_flight += 1

    def record_prediction(self, now: float) -> None:
        """Records a request for a prediction, as probes and scrapes never stop."""
        self._last_request_s = now

    def end_request(self) -> None:
        self.in_flight -= 1

    def notice(self, now: float) -> None:
        """Handles SIGTERM. A server that was never ready has no endpoints and need not wait."""
        if self.phase is Phase.LOADING:
            self.phase = Phase.GONE if not self.in_flight else Phase.FINISHING
        elif self.phase is Phase.READY:
            self.phase = Phase.ACCEPTING
            self.noticed_s = now

    def advance(self, now: float) -> Phase:
        """Returns the phase at time `now`, after the requests that have ended."""
        if self.phase is Phase.ACCEPTING and self._may_stop_accepting(now):
            self.phase = Phase.FINISHING
        if self.phase is Phase.FINISHING and not self.in_flight:
            self.phase = Phase.GONE
        return self.phase

    def _may_stop_accepting(self, now: float) -> bool:
        accepting_s = now - self.noticed_s
        if accepting_s < self.budget.accept_s:
            return False
        if now - self._last_request_s >= QUIET_S:
            return True
        return accepting_s >= self.budget.latest_accept_s(self.longest_request_s)
