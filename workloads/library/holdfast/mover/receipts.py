"""Makes the receipt of every job that ends: a log line, JSON, and an annotation on its object.

The JSON goes to standard output. Runs in its own thread, because reading all lines of a job takes
time. Guarantee: no receipt is guessed; if there is none, the log says why.
"""

# Why it is so: infra/decisions/0106.

import json
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from holdfast.controllers.controller_log import get_logger
from holdfast.cost.money import find_prices
from holdfast.cost.receipt import Receipt, receipt
from holdfast.ledger.events import Reading
from holdfast.ledger.job_ledger import JobLedger, job_ledgers
from holdfast.mover.cluster_view import EndedJob
from holdfast.mover.node_usage import NodeUsage
from holdfast.support.errors import InputError, Unjudged
from holdfast.vocabulary.roles import DEFAULT_TEAM
from holdfast.vocabulary.telemetry import KIND_TRAINING

LOG = get_logger("receipt")
TRIES = 5
AGAIN_S = 60.0
Read = Callable[[str, float, str], Reading]
"""Job, start, namespace -> all lines of the job. Raises Unjudged if they are incomplete."""
Leave = Callable[[Receipt, str], str]
"""Receipt, namespace -> path of the object that now carries the receipt."""


class Receipts(threading.Thread):
    def __init__(
        self,
        read: Read,
        leave: Leave,
        teams: Mapping[str, str] | None = None,
        *,
        again_s: float = AGAIN_S,
    ) -> None:
        """`teams` maps a namespace to its team."""
        super().__init__(name="receipts", daemon=True)
        self._teams = teams or {}
        self._read = read
        self._leave = leave
        self._again_s = again_s
        self._orders: queue.SimpleQueue[EndedJob | None] = queue.SimpleQueue()
        self._closing = threading.Event()

    def order(self, job: EndedJob) -> None:
        self._orders.put(job)

    def run(self) -> None:
        while not self._closing.is_set():
            job = self._orders.get()
            if job is None or self._closing.is_set():
                return
            for _ in range(TRIES):
                if self._settle(job) or self._closing.wait(self._again_s):
                    break

    def finish(self) -> None:
        """Ends the thread after all orders."""
        self._orders.put(None)

    def close(self) -> None:
        """Ends the thread after the current order.

        The other jobs still have no receipt when the next mover looks, so nothing is lost.
        """
        self._closing.set()
        self.finish()

    def _settle(self, job: EndedJob) -> bool:
        """Makes and leaves a receipt. Returns False if another try may help."""
        try:
            reading = self._read(job.name, job.start_s, job.namespace)
            team = self._teams.get(job.namespace, DEFAULT_TEAM)
            bill = replace(make(job, reading), team=team, source=job.source)
            path = self._leave(bill, job.namespace)
        except Unjudged as error:
            LOG.warning("no receipt of %s yet: %s", job.name, error)
            return False
        except InputError as error:
            LOG.warning("no receipt of %s: %s: %s", job.name, error.what, error.got)
            return True
        LOG.info("%s; left on %s", bill.line(), path)
        print(json.dumps(bill.as_json()), flush=True)
        return True


def make(job: EndedJob, reading: Reading) -> Receipt:
    """Raises Unjudged without readable lines, InputError if no machine was observed."""
    if reading.problems:
        LOG.warning("receipt of %s: unused lines: %s", job.name, dict(reading.problems))
    runs = job_ledgers(reading.events)
    if not runs:
        raise Unjudged("it wrote no readable event line")
    usage = job.node_usage
    if usage is None or not usage.node_s:
        raise InputError(
            "its machines were not observed",
            got="none of its pods was on a node",
            allowed="a job watched while it ran",
            fix="price it with `holdfast report --machine --region`",
        )
    usd_per_hour, on_demand_usd_per_hour, watched_h = lane_prices(runs, usage)
    return receipt(runs, usd_per_hour, on_demand_usd_per_hour, watched_h)


def lane_prices(runs: Sequence[JobLedger], usage: NodeUsage) -> tuple[float, float, float]:
    """Returns the prices of one lane of the ledger, and the hours of all lanes on machines.

    Prices are in dollars an hour: the one paid, and the one on demand.
    """
    paid_usd_s = usage.own_usd_s
    on_demand_usd_s = 0.0
    for (machine, region, capacity), seconds in usage.node_s.items():
        prices = find_prices(machine, region)
        paid_usd_s += seconds * prices.find_rate(capacity)
        on_demand_usd_s += seconds * prices.on_demand
    # A rigid gang is one lane whatever its size. An elastic gang has one for each place, a batch
    # has one for each worker, and runs by index have one each.
    run = runs[0]
    is_rigid_gang = run.kind == KIND_TRAINING and run.index is None and run.lanes == 1
    lane_s = usage.on_s if is_rigid_gang else usage.pod_s
    return paid_usd_s / lane_s, on_demand_usd_s / lane_s, lane_s / 3600
