"""How a training takes up its state: from the memory of nodes or from the store, and behind a fence
of its own.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from holdfast.checkpoint.errors import StorageError
from holdfast.checkpoint.failpoints import failpoint
from holdfast.checkpoint.format import fence
from holdfast.checkpoint.format.commit import committed_steps, read_commit, survey
from holdfast.checkpoint.peers.places import PeerPlaces
from holdfast.checkpoint.peers.storage import Offer, PeerStorage, whole_offers
from holdfast.checkpoint.ranks import Ranks, agreed, outcome
from holdfast.checkpoint.restore import Restored, restore
from holdfast.checkpoint.settings import Tuning
from holdfast.checkpoint.stores.storage import Storage
from holdfast.runtime import logs
from holdfast.support.errors import InputError, Later

# Names that are looked at to say which runs there are: a bucket may hold millions.
LISTED = 2000
# They are passed on the command line of the uploader.
MOST_STALE = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    restored: Restored
    epoch: int
    """0 where the store took no fence."""
    stale: tuple[str, ...] = ()
    """Attempts that can get no commit any more: they have no commit, and every trainer before this
    one is fenced.
    """


def start(
    storage: Storage,
    url: str,
    run: str,
    state: dict[str, Any],
    ranks: Ranks,
    tuning: Tuning,
    stop_asked: Callable[[], bool],
) -> Start:
    # The fence comes after the restore: a start that is refused, by another model's shapes or a
    # mistyped name, must not take the right to commit from a trainer that runs well.
    places = PeerPlaces.of_environment()
    if places and places.run != run:
        if ranks.coordinator:
            logs.warning(
                "copy",
                f"run {run} gets no copies in memory: the launcher keeps them for --run"
                f" {places.run}",
            )
        places = None

    take_up = partial(
        restore,
        run=run,
        state=state,
        ranks=ranks,
        tuning=tuning,
        stop_asked=stop_asked,
    )
    found = from_memory(storage, run, ranks, places, take_up) if places else None
    found = found or take_up(storage)
    epoch, newest, stale = agreed(ranks, outcome(partial(_on_coordinator, storage, run, ranks)))[
        "value"
    ]
    if newest > max([found.step, *(step for step, _ in found.skipped)]):
        found = take_up(storage)
    if ranks.coordinator:
        log_found(found, url, run, storage)
    return Start(
        restored=found,
        epoch=epoch,
        stale=tuple(stale),
    )


def from_memory(
    storage: Storage,
    run: str,
    ranks: Ranks,
    places: PeerPlaces,
    take_up: Callable[..., Restored],
) -> Restored | None:
    """None where no version is whole, the store has a newer one, or what memory holds does not
    verify. Raises Later where it does not and the store has nothing.
    """
    bodies, committed = agreed(ranks, outcome(partial(_offers, storage, run, ranks, places)))[
        "value"
    ]
    if not bodies:
        return None
    offers = [Offer(**body) for body in bodies]
    # What does not verify on all ranks is read again from the copies, then the version before is
    # taken.
    staged, copied = (
        PeerStorage(places, offers, ranks.rank, copies_first=first) for first in (False, True)
    )
    failpoint("peer.restore")
    try:
        found = take_up(staged, again=copied)
    except InputError as error:  # on every rank
        # tensors are filled in part, so step 0 of the store would not be where the run began
        if not committed:
            raise Later(
                f"the memory of nodes is damaged, and run {run} has no checkpoint in the store yet",
                got=error.got,
                allowed="a copy that verifies",
                fix="start all nodes again: they begin at step 0",
            ) from error
        if ranks.coordinator:
            why = f"{error.what} ({error.got})"[:300]
            logs.warning("restore", f"the memory of nodes cannot be used, reading the store: {why}")
        return None
    for step, reason in found.skipped if ranks.coordinator else []:
        logs.warning("restore", f"skipped step {step} in the memory of nodes: {reason}")
    # What is damaged there is none of the store's.
    return replace(
        found,
        skipped=[],
        damaged={},
        durable_step=max(committed, default=0),
        commit_count=len(committed),
    )


def _offers(
    storage: Storage,
    run: str,
    ranks: Ranks,
    places: PeerPlaces,
) -> tuple[list[dict[str, Any]], list[int]]:
    committed = committed_steps(storage, run) if ranks.coordinator else []
    newest = read_commit(storage, run, committed[0]) if committed else None
    # Not next to the work of another trainer, which took the run and has committed since.
    above, start = (newest.step, newest.epoch) if newest else (max(committed, default=0), 0)
    if ranks.coordinator:
        offers = whole_offers(
            places,
            ranks.world_size,
            above=above,
            start=start,
        )
    else:
        offers = []
    return [asdict(offer) for offer in offers], committed


def _on_coordinator(storage: Storage, run: str, ranks: Ranks) -> tuple[int, int, list[str]]:
    if not ranks.coordinator:
        return 0, 0, []
    try:
        epoch = fence.take(storage, run)
    except StorageError as error:
        # A full disk may have room again before the first save; training must not end for it.
        logs.warning("restore", f"two trainers under the name {run} would not be noticed: {error}")
        epoch = 0
    committed, stale = behind_fence(storage, run)
    return epoch, max(committed, default=0), stale if epoch else []


def behind_fence(storage: Storage, run: str) -> tuple[list[int], list[str]]:
    """The steps that are committed; and the attempts that are not, which can get no commit once a
    fence is taken.
    """
    steps = survey(storage, run).values()
    committed = [entry.step for entry in steps if entry.commit]
    stale = [attempt for entry in steps if entry.commit is None for attempt in entry.attempts]
    return committed, stale[:MOST_STALE]


def log_found(found: Restored, url: str, run: str, storage: Storage) -> None:
    """What was taken up, what was passed over, and what is there instead of nothing."""
    for step, reason in found.skipped:
        logs.warning("restore", f"skipped step {step}: {reason}")
    logs.info("restore", _first_line(found, url, run, storage))
    if found.missing:
        gone = (
            f"commits that were kept together with step {found.step} and are gone: {found.missing}"
        )
        logs.warning("restore", f"{gone}, maybe newer ones too")


def _first_line(found: Restored, url: str, run: str, storage: Storage) -> str:
    if found.durable_step is not None:
        size = f"{found.bytes / 1e6:.1f} MB; {url} has step {found.durable_step}"
        return (
            f"restored step {found.step} of run {run} from the memory of nodes in"
            f" {found.seconds:.1f} s ({size})"
        )
    if found.step:
        age = f"{found.bytes / 1e6:.1f} MB, committed {found.age_s / 60:.0f} min ago"
        return f"restored step {found.step} of {url} run {run} in {found.seconds:.1f} s ({age})"
    others: list[str] = []
    with suppress(StorageError):
        listed = islice(storage.list(""), LISTED)
        others = sorted({stat.name.split("/")[0] for stat in listed} - {run})
    if others:
        found_there = f"it holds other runs: {', '.join(others[:8])}"
    else:
        found_there = "nothing else is there"
    return f"no checkpoint to restore in {url} run {run} ({found_there}): beginning at step 0"
