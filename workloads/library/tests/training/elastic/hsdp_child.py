"""A rank of a node that shares one state, for tests: `python -m
workloads.library.tests.training.elastic.hsdp_child SETTINGS`.

A plain loop as a user's own, on a model of uneven shards with dropout; its place is as the pod's
environment states it.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from holdfast.checkpoint.errors import CheckpointExit
from holdfast.checkpoint.state import RNG_KEY, capture
from holdfast.runtime.events import EventLog
from holdfast.support.errors import run_cli
from holdfast.training.gang import process_group
from holdfast.training.gang.node import join_node
from holdfast.vocabulary import exit_codes
from holdfast.vocabulary.environment import ENV_LOCAL_RANK
from holdfast.vocabulary.telemetry import KIND_TRAINING
from workloads.library.tests.training.elastic.child import make_gated

SAMPLES = 2
WIDTH = 5


def train(settings: dict[str, Any]) -> None:
    mesh = join_node()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(WIDTH, 7),
        nn.BatchNorm1d(7),
        nn.Dropout(0.1),
        nn.ReLU(),
        nn.Linear(7, 3),
        nn.Linear(3, 1),
    )
    for layer in (model[0], model[4]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    # foreach: see sharded_child.py.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    events = EventLog.open(Path(settings["events"]), job="elastic", kind=KIND_TRAINING)
    kind = make_gated(
        Path(settings["gate"]),
        settings["gate_step"],
        pace_s=settings.get("pace_s", 0.0),
        ledger=None,
    )
    gang = kind(
        settings["checkpoints"],
        {"model": model, "optimizer": optimizer},
        run="elastic",
        events=events,
        **{
            name: settings[name]
            for name in ("shards", "exact", "every", "gather_s", "hold_s", "silent_s", "window_s")
        },
    )
    try:
        with gang:
            for step in gang.steps(settings["steps"]):
                for shard in gang.shards():
                    draws = torch.Generator().manual_seed(step * gang.shard_count + shard)
                    inputs = torch.randn(SAMPLES, WIDTH, generator=draws)
                    gang.backward((model(inputs).squeeze(1) - inputs.sum(1)).square().mean())
                if gang.reduce():
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
    except CheckpointExit as end:
        os._exit(end.CODE)
    digest = bits(model, optimizer)
    weights = torch.cat([whole(w.data).flatten() for w in model.parameters()])
    if os.environ[ENV_LOCAL_RANK] == "0":
        complete = exit_codes.EXIT_COMPLETE
        events.emit(
            "exit",
            code=complete,
            step=settings["steps"],
            digest=digest,
            weights=weights.tolist(),
        )
    sys.stdout.flush()
    os._exit(exit_codes.EXIT_COMPLETE)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the whole tensor; for a DTensor this is a collective of its shard's ranks."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def bits(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    select: Callable[[torch.Tensor], torch.Tensor] = whole,
) -> str:
    """Returns the digest of the part of every tensor that `select` returns."""
    total = hashlib.sha256()
    for name, tensor in sorted(capture({"model": model, "optimizer": optimizer}).tensors.items()):
        if not name.startswith(RNG_KEY):
            flat = select(tensor).detach().cpu().reshape(-1).contiguous()
            total.update(name.encode() + flat.view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    process_group.CONNECT_S = settings["connect_s"]
    run_cli(lambda: train(settings))
