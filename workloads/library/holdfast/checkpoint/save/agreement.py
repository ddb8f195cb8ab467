"""The agreement of all ranks on a save: the same tensors everywhere, and one attempt to write."""

import hashlib
import json
from collections.abc import Collection
from typing import Any

import torch

from holdfast.checkpoint.format import Manifest
from holdfast.checkpoint.format.validation import NOTES_KEY
from holdfast.checkpoint.peers.keeper_client import PeerPlaces
from holdfast.checkpoint.ranks import (
    Outcome,
    Ranks,
    agree_or_raise,
    encode_failure,
    on_every_rank,
    outcome,
    worst,
)
from holdfast.checkpoint.save.resizing import check_entries, check_memory, check_meshes
from holdfast.checkpoint.save.uploader_process import ANOTHER_RANK_FAILED
from holdfast.checkpoint.state import Captured, capture, targets
from holdfast.checkpoint.state.first_moments import check_first_moments
from holdfast.checkpoint.state.parameter_names import list_parameters
from holdfast.checkpoint.state.tensors import Piece, make_pieces, stream_bytes
from holdfast.checkpoint.stores.storage import random_hex
from holdfast.support.errors import InputError

State = dict[str, Any]
"""Objects and values of a user, by name."""
Notes = dict[str, Any]
"""Values that a checkpoint carries in addition to the state, such as the hazard."""
NOTHING = Captured(
    skeleton={},
    tensors={},
    per_rank=frozenset(),
)


def check_state(
    state: State,
    ranks: Ranks,
    *,
    leave_out: Collection[str] = (),
) -> None:
    """Checks the state before training starts, without the entries in `leave_out`.

    Raises InputError on every rank if something cannot be saved, or differs between ranks.
    """
    try:
        captured = capture(state, leave_out=leave_out)
        # a layout without boxes would be found at the first save
        make_pieces(captured, ranks.rank, ranks.world_size)
        if ranks.world_size > 1:
            _check_moments(state)
        for name, value in targets(state):
            if isinstance(value, torch.optim.Optimizer):
                check_first_moments(name, value)
        outcome: Outcome = {
            "layout": digest_layout(captured),
            "failed": "",
        }
    except InputError as error:
        captured = NOTHING
        outcome = encode_failure(error)
    agree_on_save(ranks, outcome, captured)


def check_resizable(state: State, ranks: Ranks, places: PeerPlaces) -> None:
    """Checks that a gang may continue with any number of nodes that it allows.

    Raises InputError on every rank.
    """

    def check() -> int:
        check_entries(state)
        captured = capture(state)
        check_meshes(captured, places, ranks.world_size)
        return stream_bytes(make_pieces(captured, ranks.rank, ranks.world_size))

    # All ranks wait here while the size of a gang changes: the sum comes with the outcomes.
    total_bytes = agree_or_raise(ranks, outcome(check), _add_up)["value"]
    on_every_rank(ranks, lambda: check_memory(total_bytes, places))


def _add_up(outcomes: list[Outcome]) -> Outcome:
    decision = worst(outcomes)
    if "value" not in decision:
        return decision
    return {"value": sum(rank_outcome["value"] for rank_outcome in outcomes)}


def _check_moments(state: State) -> None:
    # Their shapes are the same on every rank, so nothing else would show that each holds other
    # numbers.
    for name, entry in state.items():
        if not isinstance(entry, torch.optim.Optimizer):
            continue
        if any(is_flat(parameter) for parameter in list_parameters(entry)):
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
    """Tells whether FSDP1 has flattened several parameters into this one and sharded it."""
    return any(getattr(parameter, mark, False) for mark in ("_is_flat_param", "_fsdp_flattened"))


def agree_on_save(
    ranks: Ranks,
    outcome: Outcome,
    captured: Captured,
) -> Outcome:
    """Returns the decision of rank 0 over the outcomes of all ranks.

    Raises InputError on all ranks if one has a bad value, or their states differ.
    """
    decision = agree_or_raise(ranks, outcome, _decide)
    if "differ" in decision:
        keys = sorted(captured.tensors.keys() - captured.per_rank)
        raise InputError(
            "state differs between ranks",
            got=ranks.agree(keys, _describe_difference),
            allowed="the same tensors on every rank, except entries marked PerRank",
            fix="build the same state on every rank, or wrap the entry in PerRank",
        )
    return decision


def digest_layout(captured: Captured) -> str:
    """Returns the digest of keys, dtypes and shapes, which must match on every rank."""
    # Shapes too: one rank writes a replicated tensor, so another rank's different shape would never
    # show.
    shared = []
    for key, tensor in captured.tensors.items():
        if key not in captured.per_rank:
            shape = list(tensor.shape)
            shared.append((key, str(tensor.dtype), shape))
    text = json.dumps(shared)
    return hashlib.sha256(text.encode()).hexdigest()


def _decide(outcomes: list[Outcome]) -> Outcome:
    # First: a value that cannot be stored fails every later save too, so it is raised now and on
    # all ranks.
    for rank_outcome in outcomes:
        if "input" in rank_outcome:
            return rank_outcome
    for rank_outcome in outcomes:
        if rank_outcome.get("fenced"):
            return {"fenced": rank_outcome["fenced"]}
    if any("skip" in rank_outcome for rank_outcome in outcomes):
        return {"skip": _first_reason(outcomes, "skip")}
    layouts = {rank_outcome["layout"] for rank_outcome in outcomes}
    if len(layouts) > 1:
        return {"differ": True}
    failures: dict[int, str] = {}
    causes: dict[int, str] = {}
    for rank, rank_outcome in enumerate(outcomes):
        failure = rank_outcome["failed"]
        if failure:
            failures[rank] = failure
        # Only the original cause: `another rank failed` does not help the reader of the log.
        if failure and failure != ANOTHER_RANK_FAILED:
            causes[rank] = failure
    causes = causes or failures
    reason = ""
    if causes:
        rank = min(causes)
        reason = f"rank {rank}: {causes[rank]}"
    # `durable` comes from the coordinator: other ranks see only their own uploads, not commits.
    return {
        "attempt": random_hex(6),
        "failed": reason,
        "reported_by": list(causes),
        "durable": outcomes[0].get("durable", 0),
        "bytes": sum(outcome.get("bytes", 0) for outcome in outcomes),
    }


def pick_worst_ending(endings: list[Outcome]) -> Outcome:
    """Returns the first reason of each kind, with its rank."""
    return {kind: _first_reason(endings, kind) for kind in ("fenced", "failed")}


def _first_reason(outcomes: list[Outcome], kind: str) -> str:
    for rank, rank_outcome in enumerate(outcomes):
        if rank_outcome.get(kind):
            return f"rank {rank}: {rank_outcome[kind]}"
    return ""


def _describe_difference(keys_by_rank: list[list[str]]) -> str:
    reference = set(keys_by_rank[0])
    for rank, keys in enumerate(keys_by_rank):
        different = sorted(reference.symmetric_difference(keys))
        if not different:
            continue
        key = different[0]
        if key in reference:
            return f"{key} is on rank 0 and not on rank {rank}"
        return f"{key} is on rank {rank} and not on rank 0"
    return "the same keys, with other shapes or dtypes"


def step_error(step: int, newest: int) -> InputError:
    """Makes the error for a step that is not above the newest one."""
    return InputError(
        "number of a step is not above that of the last save",
        got=f"step {step} after step {newest}",
        allowed="steps counted over the whole run, each number once",
        fix=(
            "count optimizer steps from ckpt.step on: for step in range(ckpt.step, total): ...;"
            " ckpt.tick(step + 1)"
        ),
    )


def make_manifest(
    run: str,
    ranks: Ranks,
    step: int,
    attempt: str,
    captured: Captured,
    pieces: list[Piece],
    notes: Notes | None,
) -> Manifest:
    """Makes this rank's manifest; the uploader adds the shards."""
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
