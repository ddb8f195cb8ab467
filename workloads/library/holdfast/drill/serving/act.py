"""Online serving while Spot goes: a base that stays, an overflow that is taken away, and every request counted."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Any

from holdfast.drill.serving.fleet import HOST, Fleet, holdfast_server
from holdfast.drill.serving.load import INFER_BODY, INFER_PATH, Load

BASE, OVERFLOW = 2, 2
REQUESTS_PER_S = 50.0
_REFUSED = "429"


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    servers: int
    evictions: int
    requests: int
    failed: int
    """Neither answered nor refused for load."""
    shed: int
    """Refused for load, with 429."""
    retries: int
    """Of the proxy: what clients never saw."""
    counts_differ: int
    """Between clients, proxy and servers, of answers with 200."""
    p99_ms: int
    """Of answers with 200; rounded up."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def serve(
    folder: Path, *, owner: str, rounds: int, log: Callable[[str], object], progress: Callable[[int], object]
) -> Served:
    """In each round all of the overflow gets its notice at once. `progress`: evictions so far."""
    fleet = Fleet(folder=folder, owner=owner, command=holdfast_server("entropy"))
    with fleet.running(BASE + OVERFLOW):
        load, base = Load(HOST, fleet.port, INFER_PATH, INFER_BODY), fleet.ready()[:BASE]
        with load.asking(REQUESTS_PER_S):
            fleet.until(lambda: load.codes["200"] > REQUESTS_PER_S, "a second of answers")
            for number in range(1, rounds + 1):
                victims = [replica for replica in fleet.ready() if replica not in base]
                log(f"notice to all {len(victims)} servers on Spot, under {REQUESTS_PER_S:g} requests a second")
                for victim in victims:
                    fleet.evict(victim)
                fleet.until(lambda gone=number * OVERFLOW: len(fleet.exits) == gone, "the servers on Spot to leave")
                fleet.settle()
                progress(len(fleet.exits))
        return _served(fleet, load)


def _served(fleet: Fleet, load: Load) -> Served:
    answered = (load.codes["200"], fleet.stat("upstream_rq_2xx"), fleet.answered())
    return Served(
        servers=BASE + OVERFLOW,
        evictions=len(fleet.exits),
        requests=load.asked,
        failed=load.failed - load.codes[_REFUSED],
        shed=load.codes[_REFUSED],
        retries=fleet.stat("upstream_rq_retry"),
        counts_differ=max(answered) - min(answered),
        p99_ms=ceil(1000 * sorted(load.seconds)[int(0.99 * len(load.seconds))]),
    )
