"""Batches that are overdue: a request may hang the model.

A batch is overdue after five times its expected time; after half a try of the proxy, or a second,
at the earliest. A slow batch is no hang, and waiting requests can still go to another server in
time.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from holdfast.inference.server.requests import Request
from holdfast.vocabulary.serving import TRIES

LEAST_OVERDUE_S = 1.0
LOOK_S = 0.1
"""The time between two looks at the clock while a batch is computed."""
_TIMES_EXPECTED = 5.0


def find_overdue_s(expected_s: float, request_s: float) -> float:
    """Returns the seconds after which a batch is overdue, for the time that clients may wait."""
    half_try_s = request_s / TRIES / 2
    return max(LEAST_OVERDUE_S, half_try_s, _TIMES_EXPECTED * expected_s)


def release_in_turn(batch: Sequence[Request]) -> list[asyncio.TimerHandle]:
    """Schedules when the requests of an overdue batch go to other servers: the last one at its
    deadline, the others before it.

    Those that leave together may meet in a batch again, next to the one that hangs the model. A
    request that hung on two servers is not tried on a third.
    """
    loop = asyncio.get_running_loop()
    now = loop.time()
    requests = [request for request in batch if request.tries == 1]
    timers: list[asyncio.TimerHandle] = []
    for position, request in enumerate(requests, start=1):
        rest_s = max(0.0, request.deadline_s - now)
        at_s = now + rest_s * position / len(requests)
        error = request.make_late(computing=True)
        timers.append(loop.call_at(at_s, request.fail, error))
    return timers


async def wait_running(
    seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Waits until this process has run for that many seconds.

    A pause of the machine does not count: it delays the model too, which does not hang.
    """
    remaining_s = seconds
    while remaining_s > 0:
        start_s = clock()
        await sleep(min(LOOK_S, remaining_s))
        remaining_s -= min(clock() - start_s, 2 * LOOK_S)
