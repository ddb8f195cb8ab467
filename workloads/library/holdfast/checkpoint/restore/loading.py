"""Weights for fine-tuning and serving: what an entry needs of a checkpoint, in the dtype that it has.

Reads only: nothing is saved here, no run is taken, and no process is started.
"""

import os
from collections.abc import Collection
from typing import Any

import torch

from holdfast.checkpoint.errors import Damaged
from holdfast.checkpoint.format.commit import committed_steps, runs, steps_of
from holdfast.checkpoint.ranks import Ranks, on_every_rank
from holdfast.checkpoint.restore import Restored, restore
from holdfast.checkpoint.restore.reading import Opened, Transfer, Wanted, empty_like_saved, open_step, plan
from holdfast.checkpoint.restore.target import Fit
from holdfast.checkpoint.settings import Tuning, checked_url
from holdfast.checkpoint.state import checked_state
from holdfast.checkpoint.stores.opening import reliable_storage
from holdfast.checkpoint.stores.storage import Storage
from holdfast.contract.errors import InputError
from holdfast.runtime import logs

# A person waits for the answer: no five minutes, as a trainer has for its store.
FOR_PEOPLE = Tuning(retry_s=60.0)


def load(
    url: str | os.PathLike[str],
    state: dict[str, Any],
    *,
    run: str | None = None,
    step: int | None = None,
    cast: bool = False,
    partial: bool = False,
    tuning: Tuning | None = None,
) -> Restored:
    """Fills the entries of `state`, and only these, from the newest checkpoint that verifies, or from `step`.

    `run` None means the only run there is. `cast`: tensors keep their own dtype, and saved values are converted; a cast
    that drops an imaginary part or a fraction, or wraps an integer, is refused. `partial`: tensors of a module that the
    checkpoint does not have, or has in another shape, stay as they are, and Restored.unfilled names them; at least one
    must fit. Random streams are left alone. Every rank calls it. Raises InputError where
    nothing verifies or the state is another one than these options allow.
    """
    settings, url = tuning or Tuning(), checked_url(url)
    ranks = Ranks.of_job(timeout_s=settings.agree_timeout_s)

    def opened() -> tuple[Storage, str]:
        storage = reliable_storage(url, settings)
        return storage, run or only_run(storage)

    # Opened on every rank before one reads: a rank that cannot reach the store must not leave the others waiting.
    storage, name = on_every_rank(ranks, opened)
    fit = Fit(some=True, cast=cast, partial=partial, step=step)
    found = restore(storage, name, checked_state(state), ranks, settings, resume="must", fit=fit)
    if ranks.coordinator:
        rest = f"; not in it, and left as they were: {', '.join(found.unfilled[:8])}" if found.unfilled else ""
        logs.info("restore", f"loaded {', '.join(state)} from step {found.step} of {url} run {name}{rest}")
    return found


def load_tensors(
    url: str | os.PathLike[str],
    run: str | None = None,
    keys: Collection[str] | None = None,
    *,
    step: int | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[int, dict[str, torch.Tensor]]:
    """The newest checkpoint that verifies, as whole tensors by key, without a process group.

    `run` None means the only run there is. `keys` picks tensors; one that ends in '/' picks all below it. `dtype`:
    of floating tensors, else as saved.
    Raises InputError where nothing verifies, StorageError where the store refuses.
    """
    url = checked_url(url)
    storage = reliable_storage(url, FOR_PEOPLE)
    run = run or only_run(storage)
    reasons: list[str] = []
    # One process alone, so damage is its own to pass over: no other rank could be left at another step.
    for found in steps_of(step, committed_steps(storage, run), run):
        try:
            return found, read_whole(storage, open_step(storage, run, found), keys, dtype=dtype)
        except Damaged as error:
            reasons.append(f"step {found}: {error}")
    raise InputError(
        f"run {run} has no checkpoint that verifies",
        got="; ".join(reasons)[:400] or "no commit",
        allowed="a run with a committed checkpoint",
        fix=f"look with: python -m holdfast checkpoints list {url}",
    )


def read_whole(
    storage: Storage, opened: Opened, keys: Collection[str] | None, *, dtype: torch.dtype | None = None
) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for key, sources in opened.sources.items():
        if keys is None or key in keys or any(k.endswith("/") and key.startswith(k) for k in keys):
            found[key] = empty_like_saved(sources[0].part, floats=dtype)
    wanted = [Wanted(key=key, offset=(0,) * into.ndim, into=into) for key, into in found.items()]
    Transfer(storage, opened, parallel=4).run(plan(opened, wanted, rank=0))
    return found


def only_run(storage: Storage) -> str:
    """Raises InputError where there is none or more than one."""
    found = [run for run in runs(storage) if committed_steps(storage, run)]
    if len(found) == 1:
        return found[0]
    raise InputError(
        "which run's checkpoint is meant is not clear",
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
