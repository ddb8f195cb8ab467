"""Start a run: restore from the memory of nodes or from the store, then take the fence."""

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
from holdfast.checkpoint.peers.keeper_client import PeerPlaces
from holdfast.checkpoint.peers.protocol import Address
from holdfast.checkpoint.peers.storage import Offer, PeerStorage, list_offers
from holdfast.checkpoint.ranks import Ranks, agree_or_raise, outcome
from holdfast.checkpoint.restore import Restored, list_loaders, restore
from holdfast.checkpoint.settings import Tuning
from holdfast.checkpoint.state import State
from holdfast.checkpoint.stores.storage import Storage
from holdfast.runtime import logs
from holdfast.support.errors import InputError, Later

# Objects that are listed to name the other runs: a bucket may hold millions.
LISTED = 2000
# They are passed on the command line of the uploader.
MOST_STALE = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """The restored checkpoint and the fence of a start."""

    restored: Restored
    epoch: int
    """Number of this start; 0 if the store took no fence."""
    stale: tuple[str, ...] = ()
    """Attempts without a commit. They can get none, because every earlier trainer is fenced."""


def start(
    storage: Storage,
    url: str,
    run: str,
    state: State,
    ranks: Ranks,
    tuning: Tuning,
    stop_asked: Callable[[], bool],
    check_new: Callable[[], None] = lambda: None,
    begin_from: Callable[[Callable[..., Restored]], Restored] | None = None,
) -> Start:
    """Fill `state` and take the fence. Raises as `restore` does.

    `begin_from` fills it from elsewhere if the run has no checkpoint. `check_new` is called if
    nothing was restored, and raises if the state cannot be saved.
    """
    # The fence comes after the restore: a start that is refused, by another model's shapes or a
    # mistyped name, must not take the right to commit from a trainer that runs well.
    places = _find_places(run, ranks)
    restore_from = partial(
        restore,
        run=run,
        state=state,
        ranks=ranks,
        tuning=tuning,
        stop_asked=stop_asked,
    )
    restored = None
    if places:
        restored = restore_from_memory(
            storage,
            run,
            ranks,
            places,
            restore_from,
        )
    if restored is None:
        restored = restore_from(storage)
    if begin_from and not restored.attempt:
        restored = begin_from(restore_from)
    elif not restored.step:
        check_new()
    fenced = agree_or_raise(
        ranks,
        outcome(
            partial(
                _take_fence,
                storage,
                run,
                ranks,
            )
        ),
    )
    epoch, newest_step, stale = fenced["value"]
    # A trainer that is fenced by now may have committed after the restore.
    newest_tried = 0 if restored.origin else restored.step
    for step, _ in restored.skipped:
        newest_tried = max(newest_tried, step)
    if newest_step > newest_tried:
        _forbid_second_load(state)
        restored = restore_from(storage)
    if ranks.coordinator:
        log_restore(
            restored,
            url,
            run,
            storage,
        )
    return Start(
        restored=restored,
        epoch=epoch,
        stale=tuple(stale),
    )


def _forbid_second_load(state: State) -> None:
    """Raise Later on every rank if an entry would ignore a second load."""
    loaders = list_loaders(state)
    if loaders:
        raise Later(
            "another trainer of this run committed a checkpoint during this start",
            got=f"entry {loaders[0]}, which takes its position only once",
            allowed="one trainer for each run name",
            fix="start again: the start after it finds the newest checkpoint",
        )


def _find_places(run: str, ranks: Ranks) -> PeerPlaces | None:
    """Return the memory of nodes that the launcher keeps for this run, if it does."""
    places = PeerPlaces.of_environment()
    if places is None or places.run == run:
        return places
    if ranks.coordinator:
        logs.warning(
            "copy",
            f"run {run} gets no copies in memory: the launcher keeps them for --run {places.run}",
        )
    return None


def restore_from_memory(
    storage: Storage,
    run: str,
    ranks: Ranks,
    places: PeerPlaces,
    restore_from: Callable[..., Restored],
) -> Restored | None:
    """Restore from the memory of nodes.

    Returns None if no version there is complete or verifies, or the store has a newer one. Raises
    Later if none verifies and the store has no checkpoint.
    """
    survey_outcome = outcome(
        partial(
            _list_offers,
            storage,
            run,
            ranks,
            places,
        )
    )
    bodies, committed, leaving = agree_or_raise(ranks, survey_outcome)["value"]
    if not bodies:
        return None
    # Offers number the keepers as the coordinator sees them, and another launcher may have seen a
    # node leave a moment later.
    places = replace(places, leaving=[(host, port) for host, port in leaving])
    offers = [Offer(**body) for body in bodies]
    # A version that does not verify on all ranks is read again from the copies, then the version
    # before is tried.
    staged = PeerStorage(
        places,
        offers,
        ranks.rank,
        copies_first=False,
    )
    copied = PeerStorage(
        places,
        offers,
        ranks.rank,
        copies_first=True,
    )
    failpoint("peer.restore")
    try:
        restored = restore_from(staged, fallback=copied)
    # Raised on every rank.
    except InputError as error:
        # Tensors are filled in part, so a start at step 0 would not have the values of a new run.
        if not committed:
            raise Later(
                f"the memory of nodes is damaged, and run {run} has no checkpoint in the store yet",
                got=error.got,
                allowed="a copy that verifies",
                fix="restart all nodes: they start at step 0",
            ) from error
        if ranks.coordinator:
            reason = f"{error.what} ({error.got})"[:300]
            logs.warning(
                "restore", f"the memory of nodes cannot be used, reading the store: {reason}"
            )
        return None
    if ranks.coordinator:
        for step, reason in restored.skipped:
            logs.warning("restore", f"skipped step {step} in the memory of nodes: {reason}")
    # Damage in memory says nothing about the store.
    return replace(
        restored,
        skipped=[],
        damaged={},
        durable_step=max(committed, default=0),
        commit_count=len(committed),
    )


def _list_offers(
    storage: Storage,
    run: str,
    ranks: Ranks,
    places: PeerPlaces,
) -> tuple[list[dict[str, Any]], list[int], list[Address]]:
    """Return the versions in memory that may be restored, the committed steps, and the keepers of
    nodes that leave.
    """
    if not ranks.coordinator:
        return [], [], []
    committed = committed_steps(storage, run)
    newest = (
        read_commit(
            storage,
            run,
            committed[0],
        )
        if committed
        else None
    )
    # Versions of a trainer that has been fenced since are ignored.
    if newest:
        offers = list_offers(
            places,
            above=newest.step,
            start=newest.epoch,
        )
    else:
        above = max(committed, default=0)
        offers = list_offers(
            places,
            above=above,
            start=0,
        )
    return [asdict(offer) for offer in offers], committed, [*places.leaving]


def _take_fence(
    storage: Storage,
    run: str,
    ranks: Ranks,
) -> tuple[int, int, list[str]]:
    """Take the fence on the coordinator. Returns its number, the newest step, stale attempts."""
    if not ranks.coordinator:
        return 0, 0, []
    try:
        epoch = fence.take(storage, run)
    except StorageError as error:
        # A full disk may have room again before the first save; training must not end for it.
        logs.warning("restore", f"two trainers of run {run} would not be detected: {error}")
        epoch = 0
    committed, stale = behind_fence(storage, run)
    return epoch, max(committed, default=0), stale if epoch else []


def behind_fence(storage: Storage, run: str) -> tuple[list[int], list[str]]:
    """Return the committed steps, and the attempts without a commit.

    Those attempts can get no commit once a fence is taken.
    """
    committed: list[int] = []
    stale: list[str] = []
    for entry in survey(storage, run).values():
        if entry.commit:
            committed.append(entry.step)
        else:
            stale += entry.attempts
    return committed, stale[:MOST_STALE]


def log_restore(
    restored: Restored,
    url: str,
    run: str,
    storage: Storage,
) -> None:
    """Log the restored step, the skipped ones, and the other runs if there was nothing."""
    for step, reason in restored.skipped:
        logs.warning("restore", f"skipped step {step}: {reason}")
    logs.info(
        "restore",
        _describe_restore(
            restored,
            url,
            run,
            storage,
        ),
    )
    if restored.missing:
        logs.warning(
            "restore",
            f"commits that were kept together with step {restored.step} were deleted:"
            f" {restored.missing}, maybe newer ones too",
        )


def _describe_restore(
    restored: Restored,
    url: str,
    run: str,
    storage: Storage,
) -> str:
    size = f"{restored.bytes / 1e6:.1f} MB"
    if restored.durable_step is not None:
        return (
            f"restored step {restored.step} of run {run} from the memory of nodes in"
            f" {restored.seconds:.1f} s ({size}; {url} has step {restored.durable_step})"
        )
    if restored.origin:
        return (
            f"run {run} begins at step {restored.step} from {restored.origin} in"
            f" {restored.seconds:.1f} s ({size})"
        )
    if restored.step:
        return (
            f"restored step {restored.step} of {url} run {run} in {restored.seconds:.1f} s"
            f" ({size}, committed {restored.age_s / 60:.0f} min ago)"
        )
    other_runs = _list_other_runs(storage, run)
    if other_runs:
        contents = f"it holds other runs: {', '.join(other_runs[:8])}"
    else:
        contents = "nothing else is there"
    return f"no checkpoint to restore in {url} run {run} ({contents}): beginning at step 0"


def _list_other_runs(storage: Storage, run: str) -> list[str]:
    with suppress(StorageError):
        listing = islice(storage.list(""), LISTED)
        names = {stat.name.split("/")[0] for stat in listing}
        return sorted(names - {run})
    return []
