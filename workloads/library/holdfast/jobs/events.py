"""What the cluster recorded about an object: its Kubernetes events, newest last. Pure."""

from collections.abc import Container, Iterable

from holdfast.clients.api import Object


def about(events: Iterable[Object], uids: Container[str], *reasons: str) -> list[Object]:
    """Oldest first; no reasons means all of them."""
    found = [e for e in events if e.get("involvedObject", {}).get("uid") in uids]
    return sorted((e for e in found if not reasons or e.get("reason") in reasons), key=time_of)


def newest(events: Iterable[Object], uids: Container[str], *reasons: str) -> Object | None:
    return next(reversed(about(events, uids, *reasons)), None)


def time_of(event: Object) -> str:
    """Kubernetes' time, which sorts as text. Schedulers write the newer kind of event, others the older."""
    again = (event.get("series") or {}).get("lastObservedTime")
    return again or event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]


def times(event: Object) -> int:
    return int((event.get("series") or {}).get("count") or event.get("count") or 1)


def message(event: Object) -> str:
    return str(event.get("message") or "")
