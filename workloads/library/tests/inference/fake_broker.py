"""A fake broker with the semantics of Pub/Sub that matter to a worker, its own clock, and faults.

It has the interface of Google's clients, so PubSubQueue runs on it unchanged. It models: a new ack
id for each delivery; acks and extensions with an old id, which silently do nothing; leases that
end; delivery attempts that grow with each end and each release; the broker's own dead-letter limit;
duplicates; outages.
"""

import itertools
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
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
    """A broker in which every topic has one subscription.

    Its path is the topic's, or projects/P/subscriptions/NAME for projects/P/topics/NAME.
    """

    clock: Callable[[], float] = time.monotonic
    ack_deadline_s: float = 10.0
    max_attempts: int = 0
    """The number of deliveries after which a message moves to `dead`; 0 for no limit."""
    duplicate_share: float = 0.0
    """The share of deliveries after which the message is wrongly visible at once."""
    unavailable: bool = False
    """True makes every call fail."""
    refusals: int = 0
    """The number of calls that failed because of `unavailable`."""
    dead: list[bytes] = field(default_factory=list[bytes])
    _messages: dict[str, dict[str, _Message]] = field(default_factory=lambda: defaultdict(dict))
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _random: random.Random = field(default_factory=lambda: random.Random(5))

    def publish(self, topic: str, data: bytes, **attributes: str) -> "Future[str]":
        self._require_available()
        future: Future[str] = Future()
        with self._changed:
            name = f"m{next(self._numbers)}"
            self._messages[topic][name] = _Message(
                id=name,
                data=data,
                visible_at=self.clock(),
            )
            self._changed.notify_all()
        future.set_result(name)
        return future

    def pull(self, *, request: Any, timeout: float, retry: None = None) -> types.PullResponse:
        self._require_available()
        pull = types.PullRequest(request)
        topic = _find_topic(pull.subscription)
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                messages = self._take(topic, pull.max_messages)
                if messages:
                    return types.PullResponse(received_messages=messages)
                # The clock may be a test's, so look again every 50 ms.
                rest_s = max(0.0, deadline - time.monotonic())
                is_changed = self._changed.wait(min(0.05, rest_s))
                if not is_changed and time.monotonic() >= deadline:
                    raise exceptions.DeadlineExceeded("nothing to deliver")
                self._require_available()

    def acknowledge(self, *, request: Any, timeout: float = 0.0) -> None:
        self._require_available()
        acknowledge = types.AcknowledgeRequest(request)
        topic = _find_topic(acknowledge.subscription)
        with self._changed:
            for message in self._find_leased(topic, acknowledge.ack_ids):
                del self._messages[topic][message.id]

    def modify_ack_deadline(self, *, request: Any, timeout: float = 0.0) -> None:
        self._require_available()
        change = types.ModifyAckDeadlineRequest(request)
        topic = _find_topic(change.subscription)
        with self._changed:
            for message in self._find_leased(topic, change.ack_ids):
                message.visible_at = self.clock() + change.ack_deadline_seconds
                if not change.ack_deadline_seconds:
                    message.ack_id = ""
            self._changed.notify_all()

    def count_unacked(self, topic: str) -> int:
        with self._changed:
            return len(self._messages[topic])

    def _take(self, topic: str, limit: int) -> list[types.ReceivedMessage]:
        now = self.clock()
        messages = self._messages[topic]
        visible = [message for message in messages.values() if message.visible_at <= now]
        deliveries: list[types.ReceivedMessage] = []
        for message in visible[:limit]:
            if self.max_attempts and message.attempts >= self.max_attempts:
                self.dead.append(messages.pop(message.id).data)
            else:
                deliveries.append(self._deliver(message, now))
        return deliveries

    def _deliver(self, message: _Message, now: float) -> types.ReceivedMessage:
        message.attempts += 1
        message.ack_id = f"{message.id}:{next(self._numbers)}"
        is_duplicated = self._random.random() < self.duplicate_share
        message.visible_at = now if is_duplicated else now + self.ack_deadline_s
        body = types.PubsubMessage(data=message.data, message_id=message.id)
        return types.ReceivedMessage(
            ack_id=message.ack_id, message=body, delivery_attempt=message.attempts
        )

    def _find_leased(self, topic: str, ack_ids: Iterable[str]) -> list[_Message]:
        """Finds messages whose newest delivery has one of these ids and an open lease."""
        now = self.clock()
        leased: list[_Message] = []
        for ack_id in ack_ids:
            message = self._messages[topic].get(ack_id.partition(":")[0])
            if message is not None and message.ack_id == ack_id and message.visible_at > now:
                leased.append(message)
        return leased

    def _require_available(self) -> None:
        if self.unavailable:
            self.refusals += 1
            raise exceptions.ServiceUnavailable("the broker is unavailable")


def _find_topic(subscription: str) -> str:
    return subscription.replace("/subscriptions/", "/topics/")
