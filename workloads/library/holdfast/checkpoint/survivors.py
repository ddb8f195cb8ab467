"""The last step of ranks that each hold the whole state, committed without the ranks that are gone.

Where a rank dies before all have agreed on a stop, no joint save is possible: its part would be
missing. With replicated state (DDP) every other rank has all of it, so one of them writes the step
as a checkpoint of one rank, and the others wait for it. The store's counter picks that rank; a
second one could do no harm, since a commit is created once.

State that is sharded over ranks (FSDP, HSDP, tensor parallel) or marked PerRank is on no survivor
whole, and is left alone. Random streams are not written: those of the lost rank are gone, so a
resume treats them as one on another number of ranks.
"""

# Why it is so: infra/decisions/0030.

import json
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from holdfast.checkpoint.errors import Damaged, Fenced, StorageError
from holdfast.checkpoint.format.commit import CommitState, commit
from holdfast.checkpoint.ranks import Ranks
from holdfast.checkpoint.save.decision import is_flat, manifest_of
from holdfast.checkpoint.save.staging import upload_now
from holdfast.checkpoint.save.writer import CheckpointWriter
from holdfast.checkpoint.state import (
    Captured,
    PerRank,
    Stateful,
    capture,
    encode_value,
    targets,
    without_streams,
)
from holdfast.checkpoint.state.tensors import as_dtensor, pieces_of
from holdfast.checkpoint.stores.opening import reliable_storage
from holdfast.checkpoint.stores.storage import random_hex
from holdfast.runtime import logs
from holdfast.support.errors import InputError

_POLL_S = 0.05
_ANSWER_S = 3.0
_LARGE = 10_000
"""Numbers of a tensor that would take longer to compare at each tick than a tick may."""
T = TypeVar("T")
_SHARDED = "the state is sharded, and no rank has all of it"


class Survivors:
    def __init__(
        self,
        url: str,
        run: str,
        state: dict[str, Any],
        ranks: Ranks,
        writer: CheckpointWriter,
        epoch: int,
    ) -> None:
        """`epoch`: of this start, by which its commits are fenced."""
        self._url = url
        self._run = run
        self._state = state
        self._ranks = ranks
        self._writer = writer
        self._epoch = epoch
        self._inside = self._used = False
        self._at_tick: list[object] | None = None
        """What tells whether the state has changed since; None: not known."""

    @contextmanager
    def computing(self) -> Generator[None]:
        """Around forward and backward, before the optimizer's step: a rank that loses a peer there
        still holds the step before, unless a buffer or a position in the data has changed since the
        tick, which is compared.
        """
        self._inside = self._used = True
        yield
        self._inside = False  # an error leaves it: the state is as it was

    @property
    def at_last_step(self) -> bool:
        """Whether the state is that of the last tick, after an error of the loop."""
        return self._inside and self._at_tick is not None and self._at_tick == self._signs()

    def ticked(self) -> None:
        """The state is that of a step. Costs nothing where the loop does not use `computing`."""
        if self._used:
            self._at_tick = self._signs()

    def commit(
        self,
        step: int,
        notes: dict[str, Any],
        peer: str,
        left_s: float,
    ) -> str:
        """Empty once `step` is committed, by this rank or another survivor; else `peer`, why a rank
        is gone, and why not. Call it where the state is that of `step`.
        """
        if step <= max(self._writer.last_step, self._writer.durable_step):
            return peer  # handed over by all
        why = self._not_whole() or self._too_long(left_s) or self._stored(step, notes, left_s)
        if why:
            return f"{peer}; {why}"
        self._writer.durable_step = step
        self._writer.durable_since = time.monotonic()
        return ""

    def _stored(self, step: int, notes: dict[str, Any], left_s: float) -> str:
        ends = time.monotonic() + left_s
        try:
            captured = without_streams(capture(self._state))
            if any(as_dtensor(tensor) is not None for tensor in captured.tensors.values()):
                return _SHARDED
            if _answer(lambda: self._ranks.store.add(f"survivor/{step}", 1)) > 1:
                return self._wait_for_other(step, ends)
            self._write(step, captured, notes, left_s)
            _answer(lambda: self._ranks.store.set(f"survivor/{step}/done", "1"))
        except TimeoutError:
            return "the rank that keeps the store does not answer"
        except dist.DistError as error:
            return (
                f"the rank that keeps the store is gone: {str(error).partition(chr(10))[0][:160]}"
            )
        except (StorageError, Damaged, Fenced, InputError) as error:
            return f"this rank alone could not store it: {str(error)[:160]}"
        logs.warning(
            "save", f"step {step} committed by rank {self._ranks.rank} alone: another rank is gone"
        )
        return ""

    def _write(
        self,
        step: int,
        captured: Captured,
        notes: dict[str, Any],
        left_s: float,
    ) -> None:
        storage = reliable_storage(self._url, self._writer.tuning)
        pieces = pieces_of(captured, 0, 1)
        alone = Ranks(self._ranks.store, 0, 1)
        manifest = manifest_of(self._run, alone, step, random_hex(6), captured, pieces, notes)
        written = upload_now(storage, pieces, manifest, self._writer.tuning)
        # Of one rank: there is no other manifest to wait for.
        commit(
            storage,
            written,
            state=CommitState(epoch=self._epoch),
            timeout_s=left_s,
            abandoned=lambda _: False,
        )

    def _wait_for_other(self, step: int, ends: float) -> str:
        """A launcher ends the rank that writes with the first that goes."""
        while not _answer(lambda: self._ranks.store.check([f"survivor/{step}/done"])):
            if time.monotonic() > ends:
                return "the rank that stores it has not finished"
            time.sleep(_POLL_S)
        return ""

    def _not_whole(self) -> str:
        """Before the state is captured, which is a collective where a module gathers its shards."""
        if self._ranks.world_size == 1:
            return "no other rank"
        if any(isinstance(entry, PerRank) for entry in self._state.values()):
            return "each rank has state of its own"
        sharded = any(
            as_dtensor(p.data) is not None or is_flat(p) for p in _parameters(self._state)
        )
        return _SHARDED if sharded else ""

    def _too_long(self, left_s: float) -> str:
        # One rank uploads what all of them did; 0 as long as nothing is known: to try costs
        # nothing.
        needs_s = self._writer.save_cost.persist_s * self._ranks.world_size
        if needs_s < left_s:
            return ""
        return f"one rank needs {needs_s:.0f} s to store it, and {max(0.0, left_s):.0f} s are left"

    def _signs(self) -> list[object] | None:
        """Versions of buffers, and all values of what is neither module nor optimizer: between the
        optimizer's steps those two keep the rest. None where that would take long.
        """
        large: list[str] = []
        found: list[object] = []

        def put(key: str, tensor: torch.Tensor) -> None:
            if tensor.numel() > _LARGE:
                large.append(key)
            else:
                found.append((key, tensor.tolist()))

        for name, entry in targets(self._state):
            if isinstance(entry, torch.nn.Module):
                found += [buffer._version for buffer in entry.buffers()]
            elif not isinstance(entry, torch.optim.Optimizer):
                value = entry.state_dict() if isinstance(entry, Stateful) else entry
                found.append(json.dumps(encode_value(value, name, put)))
        return None if large else found


def _answer(ask: Callable[[], T]) -> T:
    """Of the store. A client of torch's waits without limit for one whose machine is frozen. Raises
    TimeoutError.
    """
    answer: Future[T] = Future()

    def asking() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:  # noqa: BLE001  # raised in the thread that waits
            answer.set_exception(error)

    threading.Thread(
        target=asking,
        name="ask-store",
        daemon=True,
    ).start()
    return answer.result(_ANSWER_S)


def _parameters(state: dict[str, Any]) -> Iterator[torch.Tensor]:
    for _, entry in targets(state):
        if isinstance(entry, torch.nn.Module):
            yield from entry.parameters()
        elif isinstance(entry, torch.optim.Optimizer):
            yield from (parameter for group in entry.param_groups for parameter in group["params"])
        elif isinstance(entry, torch.Tensor):
            yield entry
