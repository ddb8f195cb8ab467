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
from holdfast.training.sharded.shard_notes import Note, ShardNotes, read_wrong_step
from holdfast.vocabulary.telemetry import KIND_TRAINING

Row = tuple[int, int, int]
"""Step, shard and digest."""
_FIELDS = 3


class ShardChecks:
    def __init__(
        self,
        places: PeerPlaces,
        device: torch.device,
        group: dist.ProcessGroup | None,
    ) -> None:
        self._places = places
        self._device = device
        self._group = group
        self._notes = ShardNotes(places.notes)
        self._members: list[int] = []
        """Number of the node of each rank."""
        self._kinds: list[int] = []
        """Kind of the machine of each rank."""
        self.wrong: set[int] = set()
        """Numbers of nodes that computed wrong: their gradients no longer count."""
        was_wrong = read_wrong_step(places.notes) is not None
        own_row = (
            places.node,
            identify_kind(device),
            int(was_wrong),
        )
        for rows in self._gather([own_row]):
            node, kind, node_was_wrong = rows[0]
            self._members.append(node)
            self._kinds.append(kind)
            if node_was_wrong:
                self.wrong.add(node)
        self._known: dict[int, Computations] = {}
        """Computations of each step that comes again."""
        self._current: list[Row] = []
        self._is_told = False
        self._tries = 0

    @property
    def turn(self) -> int:
        """Number of ranks by which the assignment of the shards is rotated in this try."""
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
        own_rows: list[Row] = []
        for note in self._notes.read():
            if note.epoch == self._places.epoch:
                continue
            if note.step >= step:
                row = (
                    note.step,
                    note.shard,
                    note.digest,
                )
                own_rows.append(row)
        self._exchange(own_rows)

    def note(
        self,
        step: int,
        shard: int,
        hashes: Sequence[torch.Tensor | None],
    ) -> None:
        """Notes what this rank computed; `hashes` has one for each sharded module."""
        total = 0
        for hashed in hashes:
            total *= 3
            if hashed is not None:
                total += int(hashed)
        digest = fold(total)
        note = Note(
            epoch=self._places.epoch,
            step=step,
            shard=shard,
            digest=digest,
        )
        self._notes.add(note)
        self._current.append((step, shard, digest))

    def must_repeat(self, step: int) -> bool:
        """Compares a try of a step with what was computed before, and returns whether the step has
        to be done once more, with other gradients. A collective, for steps that come again only.
        """
        step_computations = self._known.get(step)
        if step_computations is None:
            return False
        self._exchange(self._current)
        self._current = []
        self._tries += 1
        disputed = step_computations.find_disputed()
        if not disputed:
            del self._known[step]
            return False
        return self._judge(
            step,
            step_computations,
            len(disputed),
        )

    def _judge(
        self,
        step: int,
        computations: Computations,
        count: int,
    ) -> bool:
        suspects = computations.find_suspects()
        text = f"step {step}: {count} shards have other gradients than before"
        # Later steps began with what may be wrong.
        self._notes.drop_after(step)
        self._known = {step: computations}
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
            reason = f": node {nodes} computes wrong, and no other can tell"
        else:
            reason = ", on several nodes: the program is not deterministic"
        logs.error("gang", text + reason)
        return False

    def _name(self, step: int, wrong: int, text: str) -> None:
        self.wrong.add(wrong)
        logs.error(
            "gang",
            f"{text}: node {wrong} computed wrong, and leaves the gang",
        )
        if wrong != self._places.node:
            return
        self._notes.mark_wrong(step)
        if dist.get_rank() % self._places.ranks_per_node:
            return
        events = EventLog.open(
            None,
            job=self._places.run,
            kind=KIND_TRAINING,
        )
        # Its pod writes the line: the mover learns from Kubernetes on which node that is.
        with events:
            events.emit("miscomputed", step=step, rank=wrong)

    def _exchange(self, own_rows: Sequence[Row]) -> None:
        """Adds the rows of all ranks to what is known. A collective."""
        for rank, rows in enumerate(self._gather(own_rows)):
            for step, shard, digest in rows:
                computation = Computation(
                    member=self._members[rank],
                    kind=self._kinds[rank],
                    digest=digest,
                )
                if step not in self._known:
                    self._known[step] = Computations()
                self._known[step].add(shard, computation)

    def _gather(self, rows: Sequence[Row]) -> list[list[Row]]:
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
        gathered: list[list[Row]] = []
        for rank_table, length in zip(tables, lengths, strict=True):
            rank_rows: list[Row] = []
            for row in rank_table[:length].tolist():
                first, second, third = map(int, row)
                rank_rows.append((first, second, third))
            gathered.append(rank_rows)
        return gathered
