"""Implements `holdfast checkpoints import`, `export`, `branch` and `back`."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from holdfast.checkpoint.errors import Damaged, NotFound
from holdfast.checkpoint.format import Commit, fence
from holdfast.checkpoint.format.commit import committed_steps, select_steps
from holdfast.checkpoint.format.decoding import MAX_COMMIT_BYTES
from holdfast.checkpoint.inspection import verify
from holdfast.checkpoint.interchange.adapters import name_adapter, read_config, write_adapter
from holdfast.checkpoint.interchange.copying import copy_checkpoint
from holdfast.checkpoint.interchange.foreign_storage import RUN, ForeignStorage, detect_source
from holdfast.checkpoint.interchange.renamed_run import RenamedRun
from holdfast.checkpoint.interchange.verified_reader import VerifiedReader
from holdfast.checkpoint.interchange.writers import (
    write_dcp,
    write_hugging_face,
    write_safetensors,
)
from holdfast.checkpoint.restore.reader import Opened, open_step
from holdfast.checkpoint.restore.tensor_loading import is_selected, no_such_keys, only_run
from holdfast.checkpoint.stores.storage import Storage, read_object
from holdfast.support import object_names
from holdfast.support.errors import InputError

Write = Callable[[Path, VerifiedReader, Opened, Mapping[str, str]], int]
WRITERS: dict[str, Write] = {
    "file": write_safetensors,
    "hf": write_hugging_face,
    "dcp": write_dcp,
}
"""Functions that write a checkpoint, by the name of the format."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    step: int
    tensors: int
    bytes: int


def import_checkpoint(
    path: Path,
    target: Storage,
    run: str,
    *,
    entry: str,
    step: int,
) -> Commit:
    """Write a checkpoint of another format as the first one of a run. Raises InputError."""
    source = ForeignStorage(detect_source(path, entry), step)
    try:
        return copy_checkpoint(source, open_step(source, RUN, step), target, run, step)
    except Damaged as error:
        raise InputError(
            f"{path} changed while it was read",
            got=str(error),
            allowed="a checkpoint that nothing writes to",
            fix="run the command again when its writer has ended",
        ) from error


def export_checkpoint(
    storage: Storage,
    run: str | None,
    step: int | None,
    keys: str,
    out: Path,
    form: str,
    *,
    adapter: str | None = None,
    adapter_config: Path | None = None,
) -> Exported:
    """Write `step`, by default the newest checkpoint that verifies, in another format.

    With `adapter_config` only the tensors of `adapter` are written, as PEFT does. Raises
    InputError if none verifies, a key is unknown, or `out` exists.
    """
    if form not in WRITERS:
        raise InputError(
            "format of an export is unknown",
            got=form,
            allowed=", ".join(WRITERS),
            fix="--to hf",
        )
    config = read_config(adapter_config) if adapter_config else None
    run = run or only_run(storage)
    reasons: list[str] = []
    for candidate in select_steps(step, committed_steps(storage, run), run):
        try:
            opened = open_step(storage, run, candidate)
            selected = [key for key in opened.sources if is_selected(key, keys.split(","))]
            if not selected:
                raise no_such_keys(keys, storage, run, candidate)
            reader = VerifiedReader(storage, opened)
            if config:
                names = name_adapter(selected, adapter, config)
                size = write_adapter(out, reader, opened, names, config)
            else:
                names = _name_tensors(selected)
                size = WRITERS[form](out, reader, opened, names)
            return Exported(
                step=candidate,
                tensors=len(names),
                bytes=size,
            )
        except Damaged as error:
            reasons.append(f"step {candidate}: {error}")
    raise InputError(
        f"run {run} has no checkpoint that verifies",
        got="; ".join(reasons)[:400] or "no commit",
        allowed="a run with a committed checkpoint",
        fix="look with: holdfast checkpoints list URL",
    )


def _name_tensors(keys: list[str]) -> dict[str, str]:
    """Return the names to write by key: without the entry, which from_pretrained() expects.

    Raises InputError if two entries have a tensor of the same name.
    """
    names: dict[str, str] = {}
    for key in keys:
        _, _, name = key.partition("/")
        names[key] = name or key
    if len(set(names.values())) < len(names):
        raise InputError(
            "two entries hold tensors of one name",
            got=f"{len(names)} tensors, {len(set(names.values()))} names",
            allowed="one entry",
            fix="choose it by --keys model/",
        )
    return names


def branch(
    storage: Storage,
    run: str,
    step: int | None,
    target: Storage,
    new_run: str,
) -> Commit:
    """Copy a step of a run to be the first checkpoint of another run.

    A folder that was copied by hand under another name is read as the run that wrote it. Raises
    InputError.
    """
    steps = select_steps(step, committed_steps(storage, run), run)
    if not steps:
        raise InputError(
            f"run {run} has no checkpoint",
            got="no commit",
            allowed="a run with a committed checkpoint",
            fix="look with: holdfast checkpoints list URL",
        )
    written_as = _find_writer(storage, run, steps[0])
    source: Storage = storage if written_as == run else RenamedRun(storage, written_as, run)
    try:
        opened = open_step(source, written_as, steps[0])
        return copy_checkpoint(source, opened, target, new_run, steps[0])
    except Damaged as error:
        raise InputError(
            f"step {steps[0]} of run {run} does not verify",
            got=str(error),
            allowed="a step that verifies",
            fix="choose an older one with --step",
        ) from error


def _find_writer(
    storage: Storage,
    run: str,
    step: int,
) -> str:
    """Return the run that a commit says it is of; `run` if it cannot be read."""
    with suppress(NotFound, EOFError, ValueError, LookupError, TypeError):
        name = object_names.commit_object(run, step)
        body = json.loads(read_object(storage, name, limit=MAX_COMMIT_BYTES))["body"]
        return object_names.checked_run(body["run"])
    return run


def go_back(
    storage: Storage,
    run: str,
    step: int,
    *,
    confirmed: bool,
) -> list[int]:
    """Make `step` the newest checkpoint of a run, and return the steps whose commits are deleted.

    Raises InputError if it is not confirmed, or the step does not verify.
    """
    steps = committed_steps(storage, run)
    select_steps(step, steps, run)
    newer = [other for other in steps if other > step]
    try:
        verify(storage, open_step(storage, run, step))
    except Damaged as error:
        raise InputError(
            f"step {step} of run {run} does not verify",
            got=str(error),
            allowed="a step that verifies",
            fix="choose another: holdfast checkpoints list URL",
        ) from error
    if newer and not confirmed:
        raise InputError(
            f"going back to step {step} deletes newer checkpoints of run {run}",
            got=f"steps {', '.join(map(str, newer))}",
            allowed="a run whose job is stopped",
            fix=(
                "add --yes; or keep them: holdfast checkpoints branch URL --run RUN"
                " --step N --to NEW"
            ),
        )
    # First: a trainer that still runs could commit a newer step in between.
    fence.take(storage, run)
    for other in newer:
        storage.delete(object_names.commit_object(run, other))
    return newer
