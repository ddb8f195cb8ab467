"""The queue on Pub/Sub, with unary pulls and leases of its own.

It does not use the streaming client, which has no bounded drain and takes more than a micro-batch.
The caller passes the clients, so the same code runs on Google's service, its emulator and the fake
broker.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from google.api_core import exceptions

from holdfast.inference.errors import MalformedMessage, QueueUnavailable
from holdfast.inference.items import Item, decode, encode
from holdfast.inference.queue.protocol import Lease
from holdfast.support.errors import InputError

# A request may have 512 KiB, and an ack id has about 200 bytes.
_ACK_IDS = 1000
# The delay of messages of an earlier job, or of another database. It is long, as each deferral
# counts as a delivery.
_OTHER_JOB_S = 600
_MAX_DEADLINE_S = 600
# The broker may delay its messages for a moment: a shorter pull returns nothing.
_MIN_WAIT_S = 0.5
_TRANSIENT = (
    exceptions.ServiceUnavailable,
    exceptions.InternalServerError,
    exceptions.TooManyRequests,
    exceptions.Aborted,
    exceptions.Cancelled,
    exceptions.GatewayTimeout,
    exceptions.RetryError,
    exceptions.Unknown,  # Google's own clients repeat it
)
# They do not end by themselves: a wrong name, or a missing right.
_PERMANENT = (
    exceptions.NotFound,
    exceptions.Forbidden,
    exceptions.Unauthorized,
    exceptions.InvalidArgument,
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
        """Returns when the service has accepted all of them.

        Each message has its job as an attribute, for the subscription's filter.
        """
        futures: list[Any] = []
        for item in items:
            future = self._publisher.publish(self._topic, encode(item), job=item.job)
            futures.append(future)
        for future in futures:
            _call(lambda future=future: future.result(timeout=60.0))

    def pull(self, limit: int, wait_s: float) -> list[Lease]:
        leases = self._pull_any_job(limit, wait_s)
        job_leases: list[Lease] = []
        other_leases: list[Lease] = []
        for lease in leases:
            if lease.item is None or lease.item.job == self._job:
                job_leases.append(lease)
            else:
                other_leases.append(lease)
        if job_leases:
            self.extend(job_leases, self._lease_s)
        if other_leases:
            self.extend(other_leases, _OTHER_JOB_S)
        return job_leases

    def _pull_any_job(self, limit: int, wait_s: float) -> list[Lease]:
        """Pulls messages of any job, with the subscription's own lease."""
        request = {
            "subscription": self._subscription,
            "max_messages": min(limit, _ACK_IDS),
        }
        try:
            response = self._subscriber.pull(
                request=request,
                timeout=max(wait_s, _MIN_WAIT_S),
                retry=None,
            )
        except exceptions.DeadlineExceeded:
            return []
        except _TRANSIENT as error:
            raise QueueUnavailable(type(error).__name__) from error
        except _PERMANENT as error:
            raise _make_refusal(error) from error
        return [_parse_lease(m.ack_id, m.message.data) for m in response.received_messages]

    def extend(self, leases: Sequence[Lease], seconds: float) -> None:
        # Pub/Sub takes whole seconds, and 0 means now.
        whole_seconds = round(seconds)
        if seconds > 0:
            whole_seconds = max(1, whole_seconds)
        self._change(
            self._subscriber.modify_ack_deadline,
            leases,
            ack_deadline_seconds=min(_MAX_DEADLINE_S, whole_seconds),
        )

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
    except _PERMANENT as error:
        raise _make_refusal(error) from error


def _make_refusal(error: Exception) -> InputError:
    return InputError(
        "Pub/Sub rejects the topic or the subscription",
        got=str(error)[:300],
        allowed="a topic and its subscription that exist, which this identity may use",
        fix="check --topic, --subscription and the rights",
    )


def _parse_lease(ack_id: str, data: bytes) -> Lease:
    try:
        return Lease(ack_id=ack_id, item=decode(data))
    except MalformedMessage as error:
        return Lease(
            ack_id=ack_id,
            item=None,
            fault=str(error),
            digest=hashlib.sha256(data).hexdigest(),
        )
