"""One save after another: stage, agree, hand to the uploader, hear how it went.

Used by Checkpointer only. At most one save is in flight, because there is one staging buffer: a save that
is due while the last is still being uploaded waits for it, instead of taking more memory.
"""

import hashlib
import json
import math
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from infra.contract.errors import InputError
from workloads.checkpoint.format import Manifest
from workloads.checkpoint.interval import Pace
from workloads.checkpoint.pieces import Piece, pieces_of
from workloads.checkpoint.ranks import Ranks
from workloads.checkpoint.settings import Tuning
from workloads.checkpoint.staging import Staging
from workloads.checkpoint.tree import NOTES_KEY, Captured, capture
from workloads.checkpoint.upload import ANOTHER_RANK_FAILED, Job
from workloads.checkpoint.uploader import Report, Uploader

Tell = Callable[[Report, int, float], None]


class Saver:
    def __init__(
        self,
        url: str,
        run: str,
        ranks: Ranks,
        *,
        keep: int,
        tuning: Tuning,
        damaged: dict[int, str],
        tell: Tell,
        stop_asked: Callable[[], bool],
        pace: Pace,
    ) -> None:
        self._run, self._ranks, self._tuning, self._tell = run, ranks, tuning, tell
        self._damaged = damaged
        self._staging = Staging()
        self._uploader = Uploader(
            url, run, self._staging.descriptor, keep=keep, tuning=tuning, coordinator=ranks.coordinator
        )
        self._prepared = 0
        self._save = 0
        self._began = 0.0
        self._failure = ""
        self._stop_asked = stop_asked
        self.overlaps = False
        """Whether the caller holds Checkpointer.lock() around its optimizer step, so that copying may go on meanwhile."""
        self.last_step = -1
        """Step of the newest save that was handed over."""
        self._full_save_s = 0.0
        self.upload_rate = 0.0
        """Bytes per second to durability that this rank has seen; 0 before the start-up probe is back."""
        self.pace = pace

    @property
    def state_bytes(self) -> int:
        """This rank's part, once its staging memory is there."""
        return self._staging.bytes

    @property
    def busy(self) -> bool:
        return self._uploader.busy

    def full_save_s(self) -> float:
        """How long a save takes until it is durable: as the last one did, or by the probe before there is one."""
        return self._full_save_s or (self._staging.bytes / self.upload_rate if self.upload_rate else math.inf)

    def prepare(self, state: dict[str, Any]) -> None:
        """Touch the staging memory before the first save needs it: at the start, and once more when the first
        step has given the optimizer its tensors. Never waits for the first to be through."""
        if self._prepared < 2 and not self._staging.touching:
            self._prepared += 1
            with suppress(InputError):  # the next save tells it on every rank
                self._staging.prepare(pieces_of(capture(state), self._ranks.rank, self._ranks.world_size))

    def save(
        self, step: int, state: dict[str, Any], notes: dict[str, Any] | None = None, *, in_any_case: bool = False
    ) -> bool:
        """False: not done, because the ranks are about to stop and the upload before is not through."""
        self._wait_for_room(in_any_case)
        began = time.monotonic()
        mine, captured, pieces, length = self._stage(state)
        attempt = self._agree(mine, captured)
        if not attempt:
            return False
        if not self.overlaps:
            self._staging.wait()
        self._save += 1
        self.last_step, self._began = step, began
        manifest = Manifest(
            run=self._run,
            step=step,
            attempt=attempt,
            rank=self._ranks.rank,
            world_size=self._ranks.world_size,
            shards=(),
            tensors=tuple(piece.part for piece in pieces),
            values=captured.skeleton | {NOTES_KEY: notes or {}},
        )
        blocking_s = time.monotonic() - self._began
        replace = (self._damaged[step],) if step in self._damaged else ()
        self._uploader.submit(
            Job(
                save=self._save,
                length=length,
                shard_bytes=self._tuning.shard_size(length),
                manifest=manifest,
                replace=replace,
            ),
            after=self._staging.wait if self._staging.copying else None,
        )
        self.pace.saved(blocking_s)
        self._tell(Report(save=self._save, done="staged", bytes=length), step, blocking_s)
        return True

    def _wait_for_room(self, in_any_case: bool) -> None:
        """There is one staging buffer: back-pressure instead of more memory."""
        patience_s = self._tuning.commit_timeout_s + self._tuning.retry_s
        self._hear(
            self._uploader.finish(
                patience_s, give_up=self._drop_what_cannot_complete if in_any_case else self._drop_or_hurry
            )
        )
        if self._uploader.busy and (in_any_case or not self._stop_asked()):
            self._uploader.replace()
            self._hear(self._uploader.finish(1.0))

    def _stage(self, state: dict[str, Any]) -> tuple[dict[str, Any], Captured, list[Piece], int]:
        """What to tell the others, and what was staged. A bad value is told, so that every rank raises it."""
        if self._uploader.busy:
            return {"skip": True}, _NOTHING, [], 0
        try:
            captured = capture(state)
            pieces = pieces_of(captured, self._ranks.rank, self._ranks.world_size)
            length = self._staging.stage(pieces)
        except InputError as error:
            return _told(error), _NOTHING, [], 0
        mine = {"layout": _layout_digest(captured), "failed": self._failure}
        self._failure = ""
        return mine, captured, pieces, length

    def _agree(self, mine: dict[str, Any], captured: Captured) -> str:
        decision = _decided(self._ranks, mine, captured)
        if "skip" in decision:
            return ""
        if decision["failed"] and self._ranks.rank not in decision["told"]:
            self._tell(Report(save=self._save, done="failed", reason=decision["failed"]), self.last_step, 0.0)
        return decision["attempt"]

    def wait(self, timeout_s: float) -> bool:
        self._hear(self._uploader.finish(timeout_s, give_up=self._drop_what_cannot_complete))
        return not self._uploader.busy and not self._failure

    def poll(self) -> None:
        if self._uploader.busy or not self.upload_rate:
            self._hear(self._uploader.poll())

    def staged(self) -> None:
        self._staging.wait()

    def close(self) -> None:
        self._uploader.close()
        self._staging.close()

    def _hear(self, reports: list[Report]) -> None:
        for report in reports:
            if report.done == "failed":
                self._failure = report.reason or "failed"
                if not self._ranks.coordinator:
                    self._ranks.store.set(f"failed/{report.save}", report.reason)
            if report.done == "probed":
                self.upload_rate = report.bytes / max(report.seconds, 1e-6)
                continue
            if report.done in ("uploaded", "committed"):
                self._full_save_s = time.monotonic() - self._began
                self.pace.durable(self._full_save_s)
            self._tell(report, self.last_step, time.monotonic() - self._began)

    def _drop_or_hurry(self) -> bool:
        return self._drop_what_cannot_complete() or self._stop_asked()

    def _drop_what_cannot_complete(self) -> bool:
        """The coordinator's uploader waits for shards that will not come if another rank's upload failed."""
        if self._ranks.coordinator and self._ranks.world_size > 1 and self._ranks.store.check([f"failed/{self._save}"]):
            self._uploader.abandon()
        return False


_NOTHING = Captured(skeleton={}, tensors={}, per_rank=frozenset())


def check_state(state: dict[str, Any], ranks: Ranks) -> None:
    """Before training: what could not be saved, or differs between ranks, is an error now and on every rank."""
    try:
        captured = capture(state)
        mine = {"layout": _layout_digest(captured), "failed": ""}
    except InputError as error:
        captured, mine = _NOTHING, _told(error)
    _decided(ranks, mine, captured)


def _told(error: InputError) -> dict[str, Any]:
    return {"input": [error.what, error.got, error.allowed, error.fix]}


def _decided(ranks: Ranks, mine: dict[str, Any], captured: Captured) -> dict[str, Any]:
    decision: dict[str, Any] = ranks.agree(mine, _decide)
    if "input" in decision:
        what, got, allowed, fix = decision["input"]
        raise InputError(what, got=got, allowed=allowed, fix=fix)
    if "differ" in decision:
        keys = sorted(captured.tensors.keys() - captured.per_rank)
        raise _different_states(ranks.agree(keys, _first_difference))
    return decision


def _layout_digest(captured: Captured) -> str:
    """Of what must be the same on every rank."""
    shared = [
        (key, str(tensor.dtype), list(tensor.shape))
        for key, tensor in captured.tensors.items()
        if key not in captured.per_rank
    ]
    return hashlib.sha256(json.dumps(shared).encode()).hexdigest()


def _decide(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    for outcome in outcomes:
        if "input" in outcome:
            return outcome
    if any("skip" in outcome for outcome in outcomes):
        return {"skip": True}
    if len({outcome["layout"] for outcome in outcomes}) > 1:
        return {"differ": True}
    failed = {rank: outcome["failed"] for rank, outcome in enumerate(outcomes) if outcome["failed"]}
    causes = {rank: why for rank, why in failed.items() if why != ANOTHER_RANK_FAILED} or failed
    reason = next((f"rank {rank}: {why}" for rank, why in causes.items()), "")
    return {"attempt": secrets.token_hex(6), "failed": reason, "told": list(causes)}


def _first_difference(keys_by_rank: list[list[str]]) -> str:
    first = set(keys_by_rank[0])
    for rank, keys in enumerate(keys_by_rank):
        if different := sorted(first.symmetric_difference(keys)):
            where = 0 if different[0] in first else rank
            return f"{different[0]} is on rank {where} and not on rank {rank if where == 0 else 0}"
    return "the same keys, with other shapes or dtypes"


def _different_states(got: str) -> InputError:
    return InputError(
        "state differs between ranks",
        got=got,
        allowed="the same tensors on every rank, but for entries marked PerRank",
        fix="build the same state on every rank, or wrap the entry in PerRank",
    )
