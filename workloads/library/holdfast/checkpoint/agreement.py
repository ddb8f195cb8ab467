"""One rank's error is every rank's: each reports its outcome, the worst counts, and all raise alike.

So no rank waits for one that has given up.
"""

# Why it is so: infra/decisions/0021.

from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.checkpoint.errors import Damaged, Preempted, StorageError
from holdfast.checkpoint.ranks import Json, Ranks
from holdfast.contract.errors import InputError

T = TypeVar("T")


def outcome(call: Callable[[], Json]) -> dict[str, Any]:
    """How `call` went, as JSON."""
    try:
        return {"value": call()}
    except (Damaged, EOFError) as error:
        return {"damaged": str(error)}
    except Preempted:
        return {"stopped": True}
    except InputError as error:
        return failure_of(error)
    except StorageError as error:
        return failure_of(_unreachable(error))


def failure_of(error: InputError) -> dict[str, Any]:
    return {"input": [error.what, error.got, error.allowed, error.fix]}


def _unreachable(error: StorageError) -> InputError:
    # Not damage: falling back would throw away good checkpoints because the store is away.
    return InputError(
        "checkpoint storage cannot be read",
        got=f"{type(error).__name__}: {error}",
        allowed="a reachable store with permission to list and read",
        fix="check the URL, the credentials and the network, then start again",
    )


def worst(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    for kind in ("input", "stopped", "damaged"):
        for rank, found in enumerate(outcomes):
            # A user's mistake outweighs damage: falling back to an older checkpoint would not mend it.
            if kind == "damaged" and kind in found:
                return {"damaged": f"rank {rank}: {found['damaged']}"}
            if kind in found:
                return found
    return outcomes[0]


def agreed(
    ranks: Ranks, mine: dict[str, Any], decide: Callable[[list[dict[str, Any]]], dict[str, Any]] = worst
) -> dict[str, Any]:
    """What rank 0 decides over all outcomes; an InputError or a Preempted of any rank is raised on all."""
    # Also after an error of this rank's own: a rank that raises without answering leaves the others waiting.
    decision: dict[str, Any] = ranks.agree(mine, decide)
    if "input" in decision:
        what, got, allowed, fix = decision["input"]
        raise InputError(what, got=got, allowed=allowed, fix=fix)
    if "stopped" in decision:
        raise Preempted(0)
    return decision


def on_every_rank(ranks: Ranks, make: Callable[[], T]) -> T:
    """What `make` gives here, once it has succeeded everywhere."""
    made: list[T] = []
    agreed(ranks, outcome(lambda: made.append(make())))
    return made[0]
