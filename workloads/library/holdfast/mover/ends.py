"""Which jobs have ended and have no receipt yet. Pure.

The receipt's annotation is the memory of it: a mover that starts again makes no second one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.contract.values import unix_s
from holdfast.exporter.objects import ended_s
from holdfast.ledger.receipt import ANNOTATION

# So long after its end a job's last lines may still be on their way.
SETTLE_END_S = 90.0


@dataclass(frozen=True, slots=True)
class Ended:
    namespace: str
    name: str
    began_s: float
    ended_s: float


def take(held: dict[str, Ended], change: str, found: Mapping[str, Any]) -> None:
    """`held`: by uid of the Job or JobSet."""
    meta, over_s = found["metadata"], ended_s(found)
    receipted = ANNOTATION in (meta.get("annotations") or {})
    # A JobSet or a CronJob speaks for the Jobs that it made.
    owned = bool(meta.get("ownerReferences"))
    if change == "DELETED" or receipted or owned or not over_s:
        held.pop(meta["uid"], None)
    else:
        began_s = unix_s(meta.get("creationTimestamp"))
        held[meta["uid"]] = Ended(meta["namespace"], meta["name"], began_s, over_s)


def due(held: dict[str, Ended], now_s: float) -> list[Ended]:
    """Each once."""
    ripe = [uid for uid, ended in held.items() if now_s - ended.ended_s >= SETTLE_END_S]
    return [held.pop(uid) for uid in ripe]
