"""Weights for fine-tuning and serving, as tensors by name.

Reads only: nothing is saved here, no run is taken, and no process is started.
"""

import os
from collections.abc import Collection

import torch

from holdfast.checkpoint.errors import Damaged
from holdfast.checkpoint.format.commit import committed_steps, runs, steps_of
from holdfast.checkpoint.restore.reading import Opened, Transfer, empty_like_saved, open_step, plan
from holdfast.checkpoint.settings import Tuning, checked_url
from holdfast.checkpoint.stores.opening import reliable_storage
from holdfast.checkpoint.stores.storage import Storage
from holdfast.contract.errors import InputError

# A person waits for the answer: no five minutes, as a trainer has for its store.
FOR_PEOPLE = Tuning(retry_s=60.0)


def load_tensors(
    url: str | os.PathLike[str],
    run: str | None = None,
    keys: Collection[str] | None = None,
    *,
    step: int | None = None,
) -> tuple[int, dict[str, torch.Tensor]]:
    """The newest checkpoint that verifies, as whole tensors by key, without a process group.

    `run` None means the only run there is. `keys` picks tensors; one that ends in '/' picks all below it.
    Raises InputError where nothing verifies, StorageError where the store refuses.
    """
    url = checked_url(url)
    storage = reliable_storage(url, FOR_PEOPLE)
    run = run or only_run(storage)
    reasons: list[str] = []
    # One process alone, so damage is its own to pass over: no other rank could be left at another step.
    for found in steps_of(step, committed_steps(storage, run), run):
        try:
            return found, read_whole(storage, open_step(storage, run, found), keys)
        except Damaged as error:
            reasons.append(f"step {found}: {error}")
    raise InputError(
        f"run {run} has no checkpoint that verifies",
        got="; ".join(reasons)[:400] or "no commit",
        allowed="a run with a committed checkpoint",
        fix=f"look with: python -m holdfast checkpoints list {url}",
    )


def read_whole(storage: Storage, opened: Opened, keys: Collection[str] | None) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for key, sources in opened.sources.items():
        if keys is None or key in keys or any(k.endswith("/") and key.startswith(k) for k in keys):
            found[key] = empty_like_saved(sources[0].part)
    Transfer(storage, opened, parallel=4).run(plan(opened, found, rank=0))
    return found


def only_run(storage: Storage) -> str:
    """Raises InputError where there is none or more than one."""
    found = [run for run in runs(storage) if committed_steps(storage, run)]
    if len(found) == 1:
        return found[0]
    raise InputError(
        "it is unclear which run's checkpoint to read",
        got=", ".join(found) or "no run with a committed checkpoint",
        allowed="one run, or its name",
        fix="name the run",
    )


def no_such_keys(keys: str, storage: Storage, run: str | None, step: int) -> InputError:
    opened = open_step(storage, run or only_run(storage), step)
    # Random streams are no weights, and a tensor that is an entry has no tensors below it.
    keys_of = [key.split("/")[0] + "/" * ("/" in key) for key in opened.sources if not key.startswith("__")]
    entries = sorted({*keys_of})
    return InputError(
        "no tensor has such a key", got=f"--keys {keys}", allowed=", ".join(entries) or "none: it has no tensors",
        fix=f"--keys {next(iter(entries), 'KEY')}",
    )  # fmt: skip
