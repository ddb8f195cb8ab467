"""A broker with the semantics of Pub/Sub that matter to a worker, a clock of its own, and faults on
order.

It has the shape of Google's clients, so PubSubQueue runs on it as it is. It models: a new ack id
for each delivery; ack and extension by an old id do nothing, silently; leases that end; delivery
attempts that rise with each end and each release; the broker's own dead-letter limit; duplicates;
outages.
"""

import itertools
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from google.api_core import exceptions
from google.pubsub_v1 import types


@dataclass(kw_only=True)
class _Message:
    id: str
    data: bytes
    visible_at: float
    ack_id: str = ""
    attempts: int = 0


@dataclass(kw_only=True)
class FakeBroker:
    """Every topic has one subscription: of the same path, or projects/P/subscriptions/NAME of
    projects/P/topics/NAME.
    """

    clock: Callable[[], float] = time.monotonic
    ack_deadline_s: float = 10.0
    max_attempts: int = 0
    """After these deliveries the broker itself moves a message to `dead`; 0: never."""
    duplicate_share: float = 0.0
    """Of deliveries after which the message is, wrongly, visible at once again."""
    unavailable: bool = False
    """Every call fails."""
    refused: int = 0
    """Calls that failed so."""
    dead: list[bytes] = field(default_factory=list[bytes])
    _messages: dict[str, dict[str, _Message]] = field(default_factory=lambda: defaultdict(dict))
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _random: random.Random = field(default_factory=lambda: random.Random(5))

    def publish(self, topic: str, data: bytes, **attributes: str) -> "Future[str]":
        self._require_available()
        sent: Future[str] = Future()
        with self._changed:
            name = f"m{next(self._numbers)}"
            self._messages[topic][name] = _Message(
                id=name,
                data=data,
                visible_at=self.clock(),
            )
            self._changed.notify_all()
        sent.set_result(name)
        return sent

    def pull(self, *, request: Any, timeout: float, retry: None = None) -> types.PullResponse:
        self._require_available()
        wanted = types.PullRequest(request)
        until = time.monotonic() + timeout
        with self._changed:
            while not (taken := self._take(_topic(wanted.subscription), wanted.max_messages)):
                # The clock may be a test's: look again now and then.
                if (
                    not self._changed.wait(min(0.05, max(0.0, until - time.monotonic())))
                    and time.monotonic() >= until
                ):
                    raise exceptions.DeadlineExceeded("nothing to deliver")
                self._require_available()
        return types.PullResponse(received_messages=taken)

    def acknowledge(self, *, request: Any, timeout: float = 0.0) -> None:
        self._require_available()
        wanted = types.AcknowledgeRequest(request)
        with self._changed:
            for message in self._held(wanted):
                del self._messages[_topic(wanted.subscription)][message.id]

    def modify_ack_deadline(self, *, request: Any, timeout: float = 0.0) -> None:
        self._require_available()
        wanted = types.ModifyAckDeadlineRequest(request)
        with self._changed:
            for message in self._held(wanted):
                message.visible_at = self.clock() + wanted.ack_deadline_seconds
                if not wanted.ack_deadline_seconds:
                    message.ack_id = ""
            self._changed.notify_all()

    def left(self, topic: str) -> int:
        """Messages not acked yet."""
        with self._changed:
            return len(self._messages[topic])

    def _take(self, topic: str, limit: int) -> list[types.ReceivedMessage]:
        now = self.clock()
        due = list(
            itertools.islice(
                (m for m in self._messages[topic].values() if m.visible_at <= now), limit
            )
        )
        for message in due:
            if self.max_attempts and message.attempts >= self.max_attempts:
                self.dead.append(self._messages[topic].pop(message.id).data)
        return [
            self._deliver(message, now) for message in due if message.id in self._messages[topic]
        ]

    def _deliver(self, message: _Message, now: float) -> types.ReceivedMessage:
        message.attempts += 1
        message.ack_id = f"{message.id}:{next(self._numbers)}"
        again = self._random.random() < self.duplicate_share
        message.visible_at = now if again else now + self.ack_deadline_s
        body = types.PubsubMessage(data=message.data, message_id=message.id)
        return types.ReceivedMessage(
            ack_id=message.ack_id,
            message=body,
            delivery_attempt=message.attempts,
        )

    def _held(
        self, wanted: types.AcknowledgeRequest | types.ModifyAckDeadlineRequest
    ) -> list[_Message]:
        """Messages whose newest delivery has one of these ids and whose lease has not ended."""
        now = self.clock()
        messages = self._messages[_topic(wanted.subscription)]
        named = ((ack_id, messages.get(ack_id.partition(":")[0])) for ack_id in wanted.ack_ids)
        return [
            m for ack_id, m in named if m is not None and m.ack_id == ack_id and m.visible_at > now
        ]

    def _require_available(self) -> None:
        if self.unavailable:
            self.refused += 1
            raise exceptions.ServiceUnavailable("the broker is away")


def _topic(subscription: str) -> str:
    return subscription.replace("/subscriptions/", "/topics/")
