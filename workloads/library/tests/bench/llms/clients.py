"""Clients that hold many streams open, and judge each token of them."""

import asyncio
import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.drill.serving.text_streams import StreamResult, read_stream


@dataclass
class Tally:
    """Sums up the streams of a run."""

    results: list[StreamResult] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        return sum(result.tokens for result in self.results)

    def count(self) -> dict[str, int]:
        cut = 0
        refused = 0
        missing = 0
        doubled = 0
        different = 0
        for result in self.results:
            cut += result.is_cut
            refused += not result.tokens
            missing += result.missing
            doubled += result.doubled
            different += result.is_different
        return {
            "streams": len(self.results),
            "cut": cut,
            "cut_before_a_token": refused,
            "tokens": self.tokens,
            "tokens_lost": missing,
            "tokens_doubled": doubled,
            "streams_different": different,
        }

    def longest_gaps(self, count: int) -> list[float]:
        """Returns the longest gaps of the `count` streams that have the longest ones, sorted.

        With the number of streams that moved it judges all of them, or gaps that are longer.
        """
        gaps = sorted(result.longest_gap_s for result in self.results)
        return gaps[-count:] if count else gaps[:0]


async def run_streams(
    ports: list[int],
    *,
    streams: int,
    streams_open: int,
    draw_tokens: Callable[[random.Random], int],
    on_end: Callable[[int], None] = lambda count: None,
) -> Tally:
    """Holds `streams_open` streams open until `streams` have ended; ports take turns."""
    generator = random.Random(56)
    jobs = iter([(number, draw_tokens(generator)) for number in range(streams)])
    targets = itertools.cycle(ports)
    tally = Tally()
    start = time.monotonic()

    async def work() -> None:
        for number, count in jobs:
            tally.results.append(await read_stream(next(targets), f"stream {number}", count))
            on_end(len(tally.results))

    await asyncio.gather(*(work() for _ in range(min(streams_open, streams))))
    tally.seconds = time.monotonic() - start
    return tally
