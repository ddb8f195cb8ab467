"""The memory of requests that ended or hung the model, by a digest of their items. Pure.

A request that was computed when the predicting process ended is suspected until a process of its
own has computed it. If it ends that process too, it is rejected for minutes, here and, through the
proxies' watchers, on the other servers of the same model.
"""

# Decision: infra/decisions/0156.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256

REJECTED_S = 600.0
"""The time for which a request is rejected without being computed."""
_SUSPECTED_ELSEWHERE_S = 5.0
"""The time for which a report about suspects of other servers holds; the next one replaces it."""
_MOST_REJECTED = 4096
_MOST_ANSWERED = 4096
_DIGEST_CHARS = 64


class Verdict(StrEnum):
    SUSPECTED = "suspected"
    REJECTED = "rejected"


def digest_items(bodies: Sequence[bytes]) -> str:
    """Returns a digest of the items of a request, whatever else the request says."""
    total = sha256()
    for body in bodies:
        total.update(len(body).to_bytes(8, "big"))
        total.update(body)
    return total.hexdigest()


@dataclass
class Rejections:
    _rejected: dict[str, float] = field(default_factory=dict[str, float])
    """The times until which requests are rejected, by digest, oldest first."""
    _suspected: set[str] = field(default_factory=set[str])
    _suspected_elsewhere: frozenset[str] = frozenset()
    _elsewhere_until_s: float = 0.0
    _answered: dict[str, None] = field(default_factory=dict[str, None])
    """Requests that this server answered, oldest first.

    Many clients may send the same request. One that was answered is not suspected at once, since
    the kernel, or a person, may have ended the process.
    """

    def find(self, digest: str, now: float) -> Verdict | None:
        if self._rejected.get(digest, 0.0) > now:
            return Verdict.REJECTED
        if digest in self._suspected:
            return Verdict.SUSPECTED
        if now >= self._elsewhere_until_s or digest in self._answered:
            return None
        if digest in self._suspected_elsewhere:
            return Verdict.SUSPECTED
        return None

    def is_answered(self, digest: str) -> bool:
        return digest in self._answered

    def forget_answer(self, digest: str) -> None:
        self._answered.pop(digest, None)

    def suspect(self, digest: str) -> None:
        self._suspected.add(digest)

    def clear(self, digest: str) -> None:
        """Ends the suspicion of a request that was not the cause, or was not examined."""
        self._suspected.discard(digest)

    def note_answer(self, digest: str) -> None:
        self.clear(digest)
        self.forget_answer(digest)
        self._answered[digest] = None
        if len(self._answered) > _MOST_ANSWERED:
            oldest = next(iter(self._answered))
            del self._answered[oldest]

    def reject(self, digest: str, now: float, seconds: float = REJECTED_S) -> None:
        self.clear(digest)
        self.forget_answer(digest)
        self._rejected.pop(digest, None)
        self._rejected[digest] = now + seconds
        if len(self._rejected) > _MOST_REJECTED:
            oldest = next(iter(self._rejected))
            del self._rejected[oldest]

    def report(self, now: float) -> dict[str, object]:
        """Makes the report for the other servers: rejected requests, and suspects of this one."""
        rejected: dict[str, int] = {}
        for digest, until_s in list(self._rejected.items()):
            if until_s <= now:
                del self._rejected[digest]
                continue
            rejected[digest] = int(until_s - now)
        return {
            "rejected": rejected,
            "suspected": sorted(self._suspected),
        }

    def learn(self, report: Mapping[str, object], now: float) -> None:
        """Learns what other servers report. Raises ValueError if it is no report."""
        rejected = report.get("rejected")
        suspected = report.get("suspected")
        if not isinstance(rejected, Mapping) or not isinstance(suspected, list):
            raise ValueError("a report has the fields rejected and suspected")
        for digest, seconds in rejected.items():
            until_s = self._rejected.get(_require_digest(digest), 0.0)
            if not isinstance(seconds, int) or not 0 <= seconds <= REJECTED_S:
                raise ValueError(f"the seconds of a rejected request are 0 to {REJECTED_S:g}")
            if seconds and until_s <= now:
                self.reject(digest, now, seconds)
        self._suspected_elsewhere = frozenset(_require_digest(digest) for digest in suspected)
        self._elsewhere_until_s = now + _SUSPECTED_ELSEWHERE_S


def _require_digest(digest: object) -> str:
    if not isinstance(digest, str) or len(digest) != _DIGEST_CHARS:
        raise ValueError(f"a digest has {_DIGEST_CHARS} characters")
    return digest
