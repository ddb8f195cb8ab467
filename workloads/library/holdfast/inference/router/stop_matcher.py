"""Stop sequences of a text that arrives in pieces from more than one server."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Match:
    text: str
    """The text before the stop sequence; with it if the client wants to see it."""
    stop: str


class StopMatcher:
    """Finds stop sequences, and holds back text that may be the beginning of one.

    It runs in the router: a server that continues a stream has not written the text before the
    seam, so it cannot see a sequence that begins there. A server that looks for sequences also
    holds text back, so that it is unknown which text belongs to its last token.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        self._stops = tuple(stops)
        self._include_stop = include_stop
        self._pending = ""
        """Text that is a proper beginning of a stop sequence."""

    def find(self, text: str) -> Match | None:
        """Returns the match that ends in `text`; the first sequence in their order wins."""
        pending_size = len(self._pending)
        text = self._pending + text
        for stop in self._stops:
            # A sequence that lies wholly in the pending text came before `min_tokens`.
            position = text.find(stop, max(0, pending_size - len(stop) + 1))
            if position >= 0:
                end = position + len(stop) if self._include_stop else position
                return Match(text[:end], stop)
        return None

    def add(self, text: str) -> str:
        """Adds text without a match; returns the text that may be sent."""
        if not self._stops:
            return text
        text = self._pending + text
        size = self._count_pending(text)
        self._pending = text[len(text) - size :]
        return text[: len(text) - size]

    def flush(self) -> str:
        """Returns the text that was held back, at the end of the stream."""
        text = self._pending
        self._pending = ""
        return text

    def _count_pending(self, text: str) -> int:
        """Returns the length of the longest end of `text` that a stop sequence begins with."""
        longest = max(len(stop) for stop in self._stops) - 1
        for size in range(min(longest, len(text)), 0, -1):
            end = text[len(text) - size :]
            if any(stop.startswith(end) for stop in self._stops):
                return size
        return 0
