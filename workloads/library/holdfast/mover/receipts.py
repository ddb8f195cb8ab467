"""Makes the receipt of every job that ends: a line in the log, JSON on standard output, an
annotation on its object.

A thread of its own, since reading all that a job wrote takes time. Guarantee: no receipt rather
than a guessed one; why there is none is logged.
"""

# Why it is so: infra/decisions/0106.

import json
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from holdfast.controllers.controller_log import logger
from holdfast.cost.money import Prices, prices_of
from holdfast.cost.receipt import Receipt, receipt
from holdfast.ledger.events import Reading
from holdfast.ledger.job_ledger import JobLedger, job_ledgers
from holdfast.mover.cluster_view import Ended
from holdfast.mover.node_usage import NodeUsage
from holdfast.support.errors import InputError, Unjudged
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.roles import DEFAULT_TEAM
from holdfast.vocabulary.telemetry import KIND_TRAINING

LOG = logger("receipt")
TRIES = 5
AGAIN_S = 60.0
Read = Callable[[str, float, str], Reading]
"""Job, beginning, namespace -> all that it wrote. Raises Unjudged where that cannot be had whole.
"""
Leave = Callable[[Receipt, str], str]


class Receipts(threading.Thread):
    def __init__(
        self,
        read: Read,
        leave_it: Leave,
        teams: Mapping[str, str] | None = None,
        *,
        again_s: float = AGAIN_S,
    ) -> None:
        """`teams`: namespace -> team."""
        super().__init__(name="receipts", daemon=True)
        self._teams = teams or {}
        self._read = read
        self._leave = leave_it
        self._again_s = again_s
        self._orders: queue.SimpleQueue[Ended | None] = queue.SimpleQueue()
        self._closing = threading.Event()

    def order(self, ended: Ended) -> None:
        self._orders.put(ended)

    def run(self) -> None:
        while (ended := self._orders.get()) and not self._closing.is_set():
            for _ in range(TRIES):
                if self._made(ended) or self._closing.wait(self._again_s):
                    break

    def finish(self) -> None:
        """Ends after what is ordered."""
        self._orders.put(None)

    def close(self) -> None:
        """Ends after the one in hand: the others are still without a receipt when the next mover
        looks.
        """
        self._closing.set()
        self.finish()

    def _made(self, ended: Ended) -> bool:
        """Whether it is settled; False: worth another try."""
        name = ended.name
        try:
            made = make(ended, self._read(name, ended.began_s, ended.namespace))
            made = replace(made, team=self._teams.get(ended.namespace, DEFAULT_TEAM))
            where = self._leave(made, ended.namespace)
        except Unjudged as error:
            LOG.warning("no receipt of %s yet: %s", name, error)
            return False
        except InputError as error:
            LOG.warning("no receipt of %s: %s: %s", name, error.what, error.got)
            return True
        LOG.info("%s; left on %s", made.line(), where)
        print(json.dumps(made.as_json()), flush=True)
        return True


def make(ended: Ended, reading: Reading) -> Receipt:
    if reading.problems:
        LOG.warning("receipt of %s: unused lines: %s", ended.name, dict(reading.problems))
    found = job_ledgers(reading.events)
    if not found:
        raise Unjudged("it wrote no readable event line")
    if not ended.node_usage or not ended.node_usage.node_s:
        raise InputError(
            "its machines were not observed",
            got="none of its pods was on a node",
            allowed="a job watched while it ran",
            fix="price it with `holdfast report --machine --region`",
        )
    return receipt(found, *lane_prices(found, ended.node_usage))


def lane_prices(runs: Sequence[JobLedger], node_usage: NodeUsage) -> tuple[float, float, float]:
    """Dollars an hour of one lane of the ledger, as paid and on demand, and the hours of its lanes
    on machines.
    """
    paid = node_usage.own_usd_s
    demand = 0.0
    for (machine, region, capacity), seconds in node_usage.node_s.items():
        prices = prices_of(machine, region)
        paid += seconds * _paid(prices, capacity)
        demand += seconds * prices.on_demand
    # A rigid gang is one lane whatever its size, an elastic one has one for each place; a batch has
    # one for each worker, and runs by index have one each.
    gang = runs[0].kind == KIND_TRAINING and runs[0].index is None and runs[0].lanes == 1
    lane_s = node_usage.on_s if gang else node_usage.pod_s
    return paid / lane_s, demand / lane_s, lane_s / 3600


def _paid(prices: Prices, capacity: str) -> float:
    if capacity == Capacity.RESERVED.value:
        return 0.0  # by its own price, which is added already
    if capacity == Capacity.SPOT.value:
        return prices.spot
    if capacity == Capacity.FLEX_START.value:
        return prices.flex_start or prices.on_demand
    return prices.on_demand
