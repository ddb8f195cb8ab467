"""Compares steps that are done again after a restart with what was computed before it.

Each rank notes the digests of its shards. When its gang starts again, all ranks tell each other
what they noted of the steps that come again, and compare it step by step. Other steps cost no
message.
"""

# Why it is so: infra/decisions/0204.

from collections.abc import Sequence

import torch
import torch.distributed as dist

from holdfast.checkpoint.peers import PeerPlaces
from holdfast.runtime import logs
from holdfast.runtime.events import EventLog
from holdfast.training.gang.recomputation import (
    Computation,
    Computations,
    fold,
    identify_kind,
)
from holdfast.training.sharded.shard_notes import Note, ShardNotes
from holdfast.vocabulary.telemetry import KIND_TRAINING

_FIELDS = 3  # step, shard, digest


class ShardChecks:
    def __init__(
        self, places: PeerPlaces, device: torch.device, group: dist.ProcessGroup | None
    ) -> None:
        self._places = places
        self._device = device
        self._group = group
        self._notes = ShardNotes(places.notes)
        self._former = {note for note in self._notes.read() if note.epoch != places.epoch}
        kind = identify_kind(device)
        rows = self._gather([(places.node, kind, 0)])
        self._members = [rank_rows[0][0] for rank_rows in rows]
        """Number of the node of each rank."""
        self._kinds = [rank_rows[0][1] for rank_rows in rows]
        self._known: dict[int, Computations] = {}
        """What is known of each step that comes again."""
        self._current: list[tuple[int, int, int]] = []
        self._is_told = False
        self._tries = 0
        self.wrong: set[int] = set()
        """Numbers of nodes that computed wrong: their gradients no longer count."""

    @property
    def turn(self) -> int:
        """By how many ranks the shards of this try are dealt further than usual."""
        return (self._places.epoch + self._tries) * self._places.ranks_per_node

    def list_sound_ranks(self) -> list[int]:
        """Returns the ranks whose gradients count; all of them if none is left."""
        ranks: list[int] = []
        for rank, member in enumerate(self._members):
            if member not in self.wrong:
                ranks.append(rank)
        return ranks or list(range(len(self._members)))

    def begin(self, step: int) -> None:
        """Begins a step. Before the first one, all ranks tell what they know of those to come."""
        self._current = []
        self._tries = 0
        if self._is_told:
            return
        self._is_told = True
        rows = [(note.step, note.shard, note.digest) for note in self._former if note.step >= step]
        for rank, rank_rows in enumerate(self._gather(rows)):
            for row in rank_rows:
                self._add(rank, row)

    def note(self, step: int, shard: int, hashes: Sequence[torch.Tensor | None]) -> None:
        """Notes what this rank computed; `hashes` has one for each sharded module."""
        total = 0
        for hashed in hashes:
            total = 3 * total + (int(hashed) if hashed is not None else 0)
        digest = fold(total)
        self._notes.add(Note(self._places.epoch, step, shard, digest))
        self._current.append((step, shard, digest))

    def must_repeat(self, step: int) -> bool:
        """Compares a try of a step with what was computed before, and returns whether the step has
        to be done once more, with other gradients. A collective, for steps that come again only.
        """
        known = self._known.get(step)
        if known is None:
            return False
        for rank, rows in enumerate(self._gather(self._current)):
            for row in rows:
                self._add(rank, row)
        self._current = []
        self._tries += 1
        disputed = known.find_disputed()
        if not disputed:
            del self._known[step]
            return False
        return self._judge(step, known, len(disputed))

    def _judge(self, step: int, known: Computations, count: int) -> bool:
        suspects = known.find_suspects()
        text = f"step {step}: {count} shards have other gradients than before"
        # Later steps began with what may be wrong.
        self._notes.drop_after(step)
        self._known = {step: known}
        if len(suspects) == 1:
            self._known = {}
            self._name(step, suspects[0], text)
            return True
        if suspects and self._tries <= len(self._members):
            logs.warning("gang", f"{text}: other ranks compute them again")
            return True
        self._known = {}
        if suspects:
            nodes = " or ".join(map(str, suspects))
            logs.error("gang", f"{text}: node {nodes} computes wrong, and no other can tell")
        else:
            logs.error("gang", f"{text}, on several nodes: the program is not deterministic")
        return False

    def _name(self, step: int, wrong: int, text: str) -> None:
        self.wrong.add(wrong)
        logs.error("gang", f"{text}: node {wrong} computed wrong, and leaves the gang")
        if wrong != self._places.node:
            return
        self._notes.mark_wrong(step)
        if dist.get_rank() % self._places.ranks_per_node == 0:
            # Its pod writes the line: the mover learns from Kubernetes on which node that is.
            with EventLog.open(None, job=self._places.run, kind=KIND_TRAINING) as events:
                events.emit("miscomputed", step=step, rank=wrong)

    def _add(self, rank: int, row: tuple[int, int, int]) -> None:
        step, shard, digest = row
        computation = Computation(member=self._members[rank], kind=self._kinds[rank], digest=digest)
        self._known.setdefault(step, Computations()).add(shard, computation)

    def _gather(self, rows: Sequence[tuple[int, int, int]]) -> list[list[tuple[int, int, int]]]:
        """Returns the rows of every rank. A collective."""
        size = dist.get_world_size(self._group)
        if size == 1:
            return [list(rows)]
        count = torch.tensor([len(rows)], device=self._device)
        counts = [torch.empty_like(count) for _ in range(size)]
        dist.all_gather(counts, count, group=self._group)
        lengths = [int(length) for length in counts]
        table = torch.zeros(max(lengths), _FIELDS, dtype=torch.int64)
        if rows:
            table[: len(rows)] = torch.tensor(rows, dtype=torch.int64)
        table = table.to(self._device)
        tables = [torch.empty_like(table) for _ in range(size)]
        dist.all_gather(tables, table, group=self._group)
        gathered: list[list[tuple[int, int, int]]] = []
        for one, length in zip(tables, lengths, strict=True):
            gathered.append([(int(a), int(b), int(c)) for a, b, c in one[:length].tolist()])
        return gathered
