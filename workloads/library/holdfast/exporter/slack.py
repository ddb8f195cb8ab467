"""How much slack the jobs have that may be moved. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.contract.capacity import ANNOTATION_PLAN, LABEL_MOVES
from holdfast.contract.errors import InputError
from holdfast.contract.values import unix_s
from holdfast.exporter.objects import ended_s
from holdfast.exporter.sample import Sample, sample
from holdfast.ledger.events import Event
from holdfast.ledger.progress import done_h
from holdfast.place import plan
from holdfast.place.plan import REACTION_S, Plan


@dataclass(frozen=True, slots=True)
class Planned:
    namespace: str
    name: str
    plan: Plan
    created_s: float

    def slack_s(self, events: Iterable[Event], now_s: float) -> float:
        """As the mover judges: a move that is decided now takes so long to happen."""
        return self.plan.slack_h((now_s - self.created_s + REACTION_S) / 3_600, done_h(events)) * 3_600


def take(held: dict[str, Planned], change: str, found: Mapping[str, Any]) -> None:
    """`held`: by uid of the Job or JobSet."""
    meta = found["metadata"]
    held.pop(meta["uid"], None)
    moves = (meta.get("labels") or {}).get(LABEL_MOVES) == "true"
    if change == "DELETED" or meta.get("deletionTimestamp") or not moves or ended_s(found):
        return
    try:
        read = plan.read((meta.get("annotations") or {}).get(ANNOTATION_PLAN, ""))
    except InputError:
        return  # the mover's log says why
    held[meta["uid"]] = Planned(meta["namespace"], meta["name"], read, unix_s(meta.get("creationTimestamp")))


def samples(
    planned: Iterable[Planned], events: Callable[[str, str], Iterable[Event]], now_s: float
) -> Iterable[Sample]:
    for each in planned:
        slack_s = each.slack_s(events(each.namespace, each.name), now_s)
        yield sample("placement_slack_seconds", slack_s, namespace=each.namespace, job=each.name)
