"""Load a checkpoint as tensors by name, for fine-tuning and serving.

This only reads checkpoints: it takes no fence and starts no process.
"""

import os
from collections.abc import Collection
from pathlib import Path

from holdfast.checkpoint.errors import Damaged
from holdfast.checkpoint.format.commit import committed_steps, list_runs, select_steps
from holdfast.checkpoint.restore.reader import Opened, Transfer, allocate_tensor, open_step, plan
from holdfast.checkpoint.settings import Tuning, check_url
from holdfast.checkpoint.state.tensors import Tensors
from holdfast.checkpoint.stores.factory import reliable_storage
from holdfast.checkpoint.stores.storage import Storage
from holdfast.support.errors import InputError

# A person waits for the answer, so retries end sooner than the five minutes of a trainer.
FOR_PEOPLE = Tuning(retry_s=60.0)

# The names that safetensors uses for the dtypes it supports.
DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


def load_tensors(
    url: str | os.PathLike[str],
    run: str | None = None,
    keys: Collection[str] | None = None,
    *,
    step: int | None = None,
) -> tuple[int, Tensors]:
    """Return the step and tensors of the newest checkpoint that verifies, without a process group.

    `run` may be None if the store holds only one. `keys` selects tensors; a key that ends in '/'
    selects all below it. Raises InputError if nothing verifies, StorageError if the store refuses.

        step, tensors = load_tensors("gs://bucket/runs", "run-7", keys=["model/"])
    """
    url = check_url(url)
    storage = reliable_storage(url, FOR_PEOPLE)
    run = run or only_run(storage)
    reasons: list[str] = []
    # One process may skip a damaged step alone: there is no other rank that could use another step.
    for candidate in select_steps(
        step,
        committed_steps(storage, run),
        run,
    ):
        try:
            return candidate, read_whole(
                storage,
                open_step(storage, run, candidate),
                keys,
            )
        except Damaged as error:
            reasons.append(f"step {candidate}: {error}")
    raise InputError(
        f"run {run} has no checkpoint that verifies",
        got="; ".join(reasons)[:400] or "no commit",
        allowed="a run with a committed checkpoint",
        fix=f"look with: holdfast checkpoints list {url}",
    )


def read_whole(
    storage: Storage,
    opened: Opened,
    keys: Collection[str] | None,
) -> Tensors:
    """Return the tensors of a checkpoint by key; `keys` selects some as in `load_tensors`."""
    tensors: Tensors = {}
    for key, sources in opened.sources.items():
        if keys is None or is_selected(key, keys):
            tensors[key] = allocate_tensor(sources[0].part)
    copies = plan(opened, tensors, rank=0)
    Transfer(storage, opened, parallel=4).run(copies)
    return tensors


def is_selected(key: str, keys: Collection[str]) -> bool:
    """Return whether `keys` has a key, or a prefix of it that ends in '/'."""
    if key in keys:
        return True
    prefixes = [prefix for prefix in keys if prefix.endswith("/")]
    return key.startswith(tuple(prefixes))


def only_run(storage: Storage) -> str:
    """Return the only run with a commit. Raises InputError if there are none or several."""
    names = [run for run in list_runs(storage) if committed_steps(storage, run)]
    if len(names) == 1:
        return names[0]
    raise InputError(
        "it is unclear which run's checkpoint to read",
        got=", ".join(names) or "no run with a committed checkpoint",
        allowed="one run, or its name",
        fix="name the run",
    )


def no_such_keys(
    keys: str,
    storage: Storage,
    run: str | None,
    step: int,
) -> InputError:
    opened = open_step(storage, run or only_run(storage), step)
    names: set[str] = set()
    for key in opened.sources:
        # Random streams are no weights. A tensor that is itself an entry has no tensors below it.
        entry, slash, _ = key.partition("/")
        if not key.startswith("__"):
            names.add(entry + slash)
    entries = sorted(names)
    return InputError(
        "no tensor has such a key",
        got=f"--keys {keys}",
        allowed=", ".join(entries) or "none: it has no tensors",
        fix=f"--keys {next(iter(entries), 'KEY')}",
    )


def refuse_existing(out: Path) -> None:
    """Raise InputError if `out` exists."""
    if out.exists():
        raise InputError(
            "output exists",
            got=str(out),
            allowed="a new name",
            fix="choose another --out",
        )


def translate_dtype(name: str, saved_name: str) -> str:
    """Return the name that safetensors has for the dtype of a tensor. Raises InputError."""
    dtype = DTYPES.get(saved_name)
    if dtype is None:
        raise InputError(
            f"tensor {name} has a dtype that safetensors does not have",
            got=saved_name,
            allowed=", ".join(DTYPES),
            fix="export other tensors with --keys",
        )
    return dtype
