"""Saves and resumes a state in this process, without an uploader: as exactly, in milliseconds."""

from pathlib import Path
from typing import Any

from holdfast.checkpoint.format.commit import CommitState, commit
from holdfast.checkpoint.restore import Restored, list_loaders, restore
from holdfast.checkpoint.save.agreement import check_state, make_manifest
from holdfast.checkpoint.save.staging import upload_now
from holdfast.checkpoint.state import capture, checked_state
from holdfast.checkpoint.state.tensors import make_pieces
from holdfast.checkpoint.stores.local import LocalStorage
from holdfast.checkpoint.stores.storage import random_hex
from workloads.library.tests.checkpoint.jobs import TUNING
from workloads.library.tests.checkpoint.made import alone

State = dict[str, Any]
RUN = "r"


def start(state: State) -> None:
    """Checks a state as a start does. Raises InputError."""
    check_state(checked_state(state), alone(), leave_out=list_loaders(state))


def save(
    folder: Path,
    state: State,
    step: int = 1,
) -> None:
    storage = LocalStorage.open(str(folder))
    captured = capture(state)
    pieces = make_pieces(captured, 0, 1)
    manifest = make_manifest(RUN, alone(), step, random_hex(6), captured, pieces, None)
    manifest = upload_now(storage, pieces, manifest, TUNING)
    commit(
        storage,
        manifest,
        state=CommitState(),
        timeout_s=1.0,
        abandoned=lambda _: False,
    )


def resume(folder: Path, state: State) -> Restored:
    """Restores a state as a start does. Raises InputError."""
    start(state)
    return restore(LocalStorage.open(str(folder)), RUN, state, alone(), TUNING)
