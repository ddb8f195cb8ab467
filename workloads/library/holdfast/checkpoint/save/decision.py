"""What all ranks must agree on before a save counts: the same tensors, and one attempt to write
below.
"""

import hashlib
import json
from typing import Any

import torch

from holdfast.checkpoint.format import Manifest
from holdfast.checkpoint.format.soundness import NOTES_KEY
from holdfast.checkpoint.ranks import Ranks, agreed, failure_of
from holdfast.checkpoint.save.uploader_process import ANOTHER_RANK_FAILED
from holdfast.checkpoint.state import Captured, capture
from holdfast.checkpoint.state.tensors import Piece, pieces_of
from holdfast.checkpoint.stores.storage import random_hex
from holdfast.support.errors import InputError

NOTHING = Captured(
    skeleton={},
    tensors={},
    per_rank=frozenset(),
)


def check_state(state: dict[str, Any], ranks: Ranks) -> None:
    """Before training: what could not be saved, or differs between ranks, is an error now and on
    every rank.
    """
    try:
        captured = capture(state)
        # a layout without boxes would be found at the first save
        pieces_of(captured, ranks.rank, ranks.world_size)
        if ranks.world_size > 1:
            _check_moments(state)
        mine = {
            "layout": layout_digest(captured),
            "failed": "",
        }
    except InputError as error:
        captured = NOTHING
        mine = failure_of(error)
    decided(ranks, mine, captured)


def _check_moments(state: dict[str, Any]) -> None:
    # Their shapes are the same on every rank, so nothing else would show that each holds other
    # numbers.
    for name, entry in state.items():
        groups = entry.param_groups if isinstance(entry, torch.optim.Optimizer) else []
        if any(is_flat(parameter) for group in groups for parameter in group["params"]):
            raise InputError(
                f"optimizer {name} of an FSDP1 module holds the moments of this rank's shards only",
                got="an entry that would be saved once for all ranks",
                allowed=(
                    "PerRank(optimizer), which resumes on the same number of ranks, or a module of"
                    " fully_shard (FSDP2)"
                ),
                fix=f'write "{name}": PerRank(optimizer)',
            )


def is_flat(parameter: torch.Tensor) -> bool:
    """Whether FSDP1 has made it of several, and cut it."""
    return any(getattr(parameter, mark, False) for mark in ("_is_flat_param", "_fsdp_flattened"))


def decided(ranks: Ranks, mine: dict[str, Any], captured: Captured) -> dict[str, Any]:
    """What rank 0 decides. Raises InputError on all ranks where one has a bad value, or their
    states differ.
    """
    decision = agreed(ranks, mine, _decide)
    if "differ" in decision:
        keys = sorted(captured.tensors.keys() - captured.per_rank)
        raise InputError(
            "state differs between ranks",
            got=ranks.agree(keys, _first_difference),
            allowed="the same tensors on every rank, but for entries marked PerRank",
            fix="build the same state on every rank, or wrap the entry in PerRank",
        )
    return decision


def layout_digest(captured: Captured) -> str:
    """Of what must be the same on every rank."""
    # Shapes too: one rank writes a replicated tensor, so another rank's different shape would never
    # show.
    shared = []
    for key, tensor in captured.tensors.items():
        if key not in captured.per_rank:
            shared.append((key, str(tensor.dtype), list(tensor.shape)))
    return hashlib.sha256(json.dumps(shared).encode()).hexdigest()


def _decide(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    # First: a value that cannot be stored fails every later save too, so it is raised now and on
    # all ranks.
    for outcome in outcomes:
        if "input" in outcome:
            return outcome
    fenced = next((outcome["fenced"] for outcome in outcomes if outcome.get("fenced")), "")
    if fenced:
        return {"fenced": fenced}
    skips = {rank: outcome["skip"] for rank, outcome in enumerate(outcomes) if "skip" in outcome}
    if skips:
        return {"skip": next((f"rank {rank}: {why}" for rank, why in skips.items() if why), "")}
    if len({outcome["layout"] for outcome in outcomes}) > 1:
        return {"differ": True}
    failed = {rank: outcome["failed"] for rank, outcome in enumerate(outcomes) if outcome["failed"]}
    # The first cause and not its echo: `another rank failed` does not help the reader of the log.
    causes = {rank: why for rank, why in failed.items() if why != ANOTHER_RANK_FAILED} or failed
    reason = next((f"rank {rank}: {why}" for rank, why in causes.items()), "")
    # `durable` is the coordinator's: the other ranks see their own uploads and no commit.
    return {
        "attempt": random_hex(6),
        "failed": reason,
        "reported_by": list(causes),
        "durable": outcomes[0].get("durable", 0),
    }


def worst_ending(endings: list[dict[str, str]]) -> dict[str, str]:
    """The first reason of each kind, with its rank."""
    return {
        kind: next(
            (f"rank {rank}: {one[kind]}" for rank, one in enumerate(endings) if one[kind]), ""
        )
        for kind in ("fenced", "failed")
    }


def _first_difference(keys_by_rank: list[list[str]]) -> str:
    first = set(keys_by_rank[0])
    for rank, keys in enumerate(keys_by_rank):
        different = sorted(first.symmetric_difference(keys))
        if different:
            where = 0 if different[0] in first else rank
            return f"{different[0]} is on rank {where} and not on rank {rank if where == 0 else 0}"
    return "the same keys, with other shapes or dtypes"


def step_not_grown(step: int, newest: int) -> InputError:
    return InputError(
        "number of a step is not above that of the last save",
        got=f"step {step} after step {newest}",
        allowed="steps counted over the whole run, each number once",
        fix=(
            "count optimizer steps from ckpt.step on: for step in range(ckpt.step, total): ...;"
            " ckpt.tick(step + 1)"
        ),
    )


def manifest_of(
    run: str,
    ranks: Ranks,
    step: int,
    attempt: str,
    captured: Captured,
    pieces: list[Piece],
    notes: dict[str, Any] | None,
) -> Manifest:
    """Of one of `ranks`, without the shards, which its uploader adds."""
    return Manifest(
        run=run,
        step=step,
        attempt=attempt,
        rank=ranks.rank,
        world_size=ranks.world_size,
        shards=(),
        tensors=tuple(piece.part for piece in pieces),
        values=captured.skeleton | {NOTES_KEY: notes or {}},
    )
