"""Commits of the last step by ranks that each hold the whole state, without ranks that were lost.

If a rank dies before all have agreed on a stop, no joint save is possible: its part would be
missing. With replicated state (DDP) every other rank has all of it, so one of them writes the step
as a checkpoint of one rank, and the others wait for it. An object in the storage, created once,
picks that rank: torch's store ends with the rank that keeps it, which may be the one that was lost.
A second writer could do no harm, since a commit is created once too.

No survivor has the whole of a state that is sharded over ranks (FSDP, HSDP, tensor parallel) or
marked PerRank; such a state is not committed. Random streams are not written: those of the lost
rank are lost, so a resume treats the checkpoint as one of another number of ranks.
"""

# Why it is so: infra/decisions/0030, infra/decisions/0199.

import json
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress

import torch

from holdfast.checkpoint.commit_listeners import CommitListener, find_listeners
from holdfast.checkpoint.errors import AlreadyExists, Damaged, Fenced, NotFound, StorageError
from holdfast.checkpoint.format.commit import CommitState, commit, read_commit
from holdfast.checkpoint.ranks import Ranks
from holdfast.checkpoint.save.agreement import (
    Notes,
    State,
    is_flat,
    make_manifest,
)
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
from holdfast.checkpoint.state.parameter_names import list_parameters
from holdfast.checkpoint.state.tensors import (
    Piece,
    as_dtensor,
    make_pieces,
    stream_bytes,
)
from holdfast.checkpoint.stores.factory import reliable_storage
from holdfast.checkpoint.stores.storage import Storage, put_new, random_hex, read_object
from holdfast.runtime import logs
from holdfast.support import object_names
from holdfast.support.errors import InputError

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_MAX_CLAIM_BYTES = 1024
_LARGE = 10_000
"""Number of elements from which comparing a tensor takes longer than a tick may."""
_SHARDED = "the state is sharded, and no rank has all of it"


class SurvivorCommits:
    """Knows whether the state is that of the last step, and commits it alone if a rank is lost."""

    def __init__(
        self,
        url: str,
        run: str,
        state: State,
        ranks: Ranks,
        writer: CheckpointWriter,
        epoch: int,
    ) -> None:
        """`epoch`: number of this start, which fences its commits."""
        self._url = url
        self._run = run
        self._state = state
        self._ranks = ranks
        self._writer = writer
        self._epoch = epoch
        self._is_computing = False
        self._is_used = False
        self._fingerprint: list[object] | None = None
        """Fingerprint of the state at the last tick; None: unknown."""

    @contextmanager
    def computing(self) -> Generator[None]:
        """Wraps forward and backward, before the optimizer's step.

        A rank that loses a peer inside still holds the state of the step before, unless a buffer or
        a position in the data has changed since the tick, which is compared.
        """
        self._is_computing = True
        self._is_used = True
        yield
        self._is_computing = False  # an error skips this line: the state is as it was

    @property
    def at_last_step(self) -> bool:
        """True if the state is that of the last tick, after an error of the loop."""
        if not self._is_computing or self._fingerprint is None:
            return False
        return self._fingerprint == self._take_fingerprint()

    def tick(self) -> None:
        """Records that the state is that of a step. Costs nothing if the loop does not use
        `computing`.
        """
        if self._is_used:
            self._fingerprint = self._take_fingerprint()

    def commit(
        self,
        step: int,
        notes: Notes,
        peer: str,
        timeout_s: float,
    ) -> str:
        """Commits `step`, of which this rank holds the state, unless another survivor does.

        Returns an empty text once it is committed. Otherwise returns `peer`, the reason why a rank
        was lost, followed by the reason why the step is not committed.
        """
        if step <= max(self._writer.last_step, self._writer.durable_step):
            return peer  # handed over by all
        obstacle = self._find_missing_state()
        if not obstacle:
            obstacle = self._try_commit(step, notes, timeout_s)
        if obstacle:
            return f"{peer}; {obstacle}"
        self._writer.durable_step = step
        self._writer.durable_since = time.monotonic()
        return ""

    def _try_commit(
        self,
        step: int,
        notes: Notes,
        timeout_s: float,
    ) -> str:
        deadline = time.monotonic() + timeout_s
        try:
            for listener in find_listeners(self._state):
                listener.take_over()
            captured = without_streams(capture(self._state))
            if any(as_dtensor(tensor) is not None for tensor in captured.tensors.values()):
                return _SHARDED
            pieces = make_pieces(captured, 0, 1)
            obstacle = self._find_missing_time(stream_bytes(pieces), timeout_s)
            if obstacle:
                return obstacle
            storage = reliable_storage(self._url, self._writer.tuning)
            if self._is_committed(storage, step):
                return ""
            if not self._claim(storage, step):
                return self._wait_for_other(storage, step, deadline)
            self._write(
                storage,
                step,
                captured,
                pieces,
                notes,
                timeout_s,
            )
        except (StorageError, Damaged, Fenced, InputError) as error:
            return f"this rank alone could not store it: {str(error)[:160]}"
        logs.warning(
            "save", f"step {step} committed by rank {self._ranks.rank} alone: another rank was lost"
        )
        return ""

    def _claim(self, storage: Storage, step: int) -> bool:
        """Returns whether this rank is the one that writes the step."""
        name = object_names.survivor_object(self._run, self._epoch, step)
        token = f"{self._ranks.rank} {random_hex(6)}".encode()
        try:
            put_new(storage, name, token)
        except AlreadyExists:
            # It may be this rank's own, of an earlier try whose answer was lost.
            with suppress(EOFError, NotFound):
                return read_object(storage, name, limit=_MAX_CLAIM_BYTES) == token
            return False
        return True

    def _is_committed(self, storage: Storage, step: int) -> bool:
        """Returns whether a rank of this start has committed the step."""
        present = read_commit(storage, self._run, step)
        return present is not None and present.epoch == self._epoch

    def _write(
        self,
        storage: Storage,
        step: int,
        captured: Captured,
        pieces: list[Piece],
        notes: Notes,
        timeout_s: float,
    ) -> None:
        single_rank = Ranks(self._ranks.store, 0, 1)
        attempt = random_hex(6)
        manifest = make_manifest(
            self._run,
            single_rank,
            step,
            attempt,
            captured,
            pieces,
            notes,
        )
        manifest = upload_now(
            storage,
            pieces,
            manifest,
            self._writer.tuning,
        )
        # A checkpoint of one rank: there is no other manifest to wait for.
        commit(
            storage,
            manifest,
            state=CommitState(epoch=self._epoch),
            timeout_s=timeout_s,
            abandoned=lambda _: False,
        )

    def _wait_for_other(
        self,
        storage: Storage,
        step: int,
        deadline: float,
    ) -> str:
        """Waits for the rank that writes: a launcher ends it with the first rank that exits."""
        pause_s = _FIRST_PAUSE_S
        while not self._is_committed(storage, step):
            if time.monotonic() > deadline:
                return "the rank that stores it has not finished"
            time.sleep(pause_s)
            pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)
        return ""

    def _find_missing_state(self) -> str:
        """Returns the reason why this rank does not have the whole state; empty: it has.

        Called before the state is captured, which is a collective if a module gathers its shards.
        """
        if self._ranks.world_size == 1:
            return "no other rank"
        if any(isinstance(entry, PerRank) for entry in self._state.values()):
            return "each rank has its own state"
        for parameter in _parameters(self._state):
            if as_dtensor(parameter.data) is not None or is_flat(parameter):
                return _SHARDED
        return ""

    def _find_missing_time(self, length: int, timeout_s: float) -> str:
        # One rank uploads what all of them did, and the frozen parameters too: their objects hold
        # the parts of single ranks. 0 before the first upload has ended: to try costs nothing.
        needs_s = self._writer.save_cost.estimate_s(length)
        if needs_s < timeout_s:
            return ""
        remaining_s = max(0.0, timeout_s)
        return f"one rank needs {needs_s:.0f} s to store it, and {remaining_s:.0f} s are left"

    def _take_fingerprint(self) -> list[object] | None:
        """Returns versions of buffers, and all values of entries that are neither module nor
        optimizer: between the optimizer's steps those two keep everything else. None: comparing
        would take too long.
        """
        values: list[object] = []
        is_large = False

        def put(key: str, tensor: torch.Tensor) -> None:
            nonlocal is_large
            if tensor.numel() > _LARGE:
                is_large = True
            else:
                values.append((key, tensor.tolist()))

        for name, entry in targets(self._state):
            if isinstance(entry, torch.nn.Module):
                values += [buffer._version for buffer in entry.buffers()]
            elif not isinstance(entry, torch.optim.Optimizer | CommitListener):
                value = entry.state_dict() if isinstance(entry, Stateful) else entry
                values.append(json.dumps(encode_value(value, name, put)))
        return None if is_large else values


def _parameters(state: State) -> Iterator[torch.Tensor]:
    for _, entry in targets(state):
        if isinstance(entry, torch.nn.Module):
            yield from entry.parameters()
        elif isinstance(entry, torch.optim.Optimizer):
            yield from list_parameters(entry)
        elif isinstance(entry, torch.Tensor):
            yield entry
