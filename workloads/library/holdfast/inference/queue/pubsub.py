"""The queue on Pub/Sub, by unary pull and leases of our own.

Not the streaming client: it has no bounded drain, and holds more than a micro-batch. The clients
are given, so the same code runs on Google's service, its emulator and the fake broker.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from google.api_core import exceptions

from holdfast.inference.errors import MalformedMessage, QueueUnavailable
from holdfast.inference.items import Item, decode, encode
from holdfast.inference.queue.protocol import Lease

# A request may have 512 KiB; an ack id about 200 bytes.
_ACK_IDS = 1000
# What an earlier job left on the subscription, or one of another database: each deferral counts as
# a delivery, so rarely.
_OTHER_JOB_S = 600
_MAX_DEADLINE_S = 600
# The broker has messages but holds them back a moment: a pull shorter than this finds nothing.
_MIN_WAIT_S = 0.5
_TRANSIENT = (
    exceptions.ServiceUnavailable,
    exceptions.InternalServerError,
    exceptions.TooManyRequests,
    exceptions.Aborted,
    exceptions.Cancelled,
    exceptions.GatewayTimeout,
    exceptions.RetryError,
)
_T = TypeVar("_T")


class PubSubQueue:
    def __init__(
        self,
        publisher: Any,
        subscriber: Any,
        *,
        job: str,
        topic: str,
        subscription: str,
        lease_s: float,
    ) -> None:
        self._publisher = publisher
        self._subscriber = subscriber
        self._job = job
        self._topic = topic
        self._subscription = subscription
        self._lease_s = lease_s

    def publish(self, items: Sequence[Item]) -> None:
        """Returns when the service has taken all of them. Each carries its job, for the
        subscription's filter.
        """
        sent = [self._publisher.publish(self._topic, encode(item), job=item.job) for item in items]
        for future in sent:
            _call(lambda future=future: future.result(timeout=60.0))

    def pull(self, limit: int, wait_s: float) -> list[Lease]:
        leases = self._pull_of_any_job(limit, wait_s)
        mine = [lease for lease in leases if lease.item is None or lease.item.job == self._job]
        if mine:
            self.extend(mine, self._lease_s)
        others = [lease for lease in leases if lease not in mine]
        if others:
            self.extend(others, _OTHER_JOB_S)
        return mine

    def _pull_of_any_job(self, limit: int, wait_s: float) -> list[Lease]:
        """With the subscription's own deadline."""
        request = {
            "subscription": self._subscription,
            "max_messages": min(limit, _ACK_IDS),
        }
        try:
            pulled = self._subscriber.pull(
                request=request,
                timeout=max(wait_s, _MIN_WAIT_S),
                retry=None,
            )
        except exceptions.DeadlineExceeded:
            return []
        except _TRANSIENT as error:
            raise QueueUnavailable(type(error).__name__) from error
        return [_lease(m.ack_id, m.message.data) for m in pulled.received_messages]

    def extend(self, leases: Sequence[Lease], seconds: float) -> None:
        # Whole seconds only, and 0 means now.
        whole = min(_MAX_DEADLINE_S, round(seconds) or (1 if seconds > 0 else 0))
        self._change(self._subscriber.modify_ack_deadline, leases, ack_deadline_seconds=whole)

    def ack(self, leases: Sequence[Lease]) -> None:
        self._change(self._subscriber.acknowledge, leases)

    def release(self, leases: Sequence[Lease], delay_s: float = 0.0) -> None:
        self.extend(leases, delay_s)

    def _change(
        self, change: Callable[..., object], leases: Sequence[Lease], **values: int
    ) -> None:
        for first in range(0, len(leases), _ACK_IDS):
            ack_ids = [lease.ack_id for lease in leases[first : first + _ACK_IDS]]
            request = {
                "subscription": self._subscription,
                "ack_ids": ack_ids,
                **values,
            }
            _call(lambda request=request: change(request=request, timeout=10.0))


def _call(call: Callable[[], _T]) -> _T:
    try:
        return call()
    except (*_TRANSIENT, exceptions.DeadlineExceeded, TimeoutError) as error:
        raise QueueUnavailable(type(error).__name__) from error


def _lease(ack_id: str, data: bytes) -> Lease:
    try:
        return Lease(ack_id=ack_id, item=decode(data))
    except MalformedMessage as fault:
        digest = hashlib.sha256(data).hexdigest()
        return Lease(
            ack_id=ack_id,
            item=None,
            fault=str(fault),
            digest=digest,
        )
