"""A rank of a sharded gang that continues with fewer nodes, for tests: `python -m
workloads.library.tests.training.elastic.resizing_child SETTINGS`.

It waits at `gate_step` until the file `gate` is there, and shows by another that it does. What each
start begins with, and each step that it does, go to the file `bits`, for any number of ranks alike.
With a file `enough` it ends before its last step, once that is there.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from holdfast.checkpoint import Checkpointer, PerRank, Tuning
from holdfast.checkpoint.peers import PeerPlaces
from holdfast.runtime.events import EventLog
from holdfast.support.errors import run_cli
from holdfast.training.sharded.logical_shards import LogicalShards
from holdfast.vocabulary.telemetry import KIND_TRAINING
from workloads.library.tests.training.elastic.faulty_model import Fault

WIDTH = 8


class PlainMoments(torch.optim.Optimizer):
    """Keeps the moments of this rank's rows, as a custom optimizer may."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                own_rows = parameter.grad.to_local()
                self.state[parameter]["moment"] = own_rows.clone()


def hash_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Returns the digest of the whole state, which does not depend on the number of ranks."""
    values: list[torch.Tensor] = []
    for parameter in model.parameters():
        values += [parameter, *optimizer.state.get(parameter, {}).values()]
    digest = hashlib.sha256()
    for value in join_shards(values):
        digest.update(value.detach().contiguous().numpy().tobytes())
    for buffer in model.buffers():
        digest.update(buffer.numpy().tobytes())
    return digest.hexdigest()


def join_shards(values: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yields the values as whole tensors. All are gathered at once: with a collective for each,
    digests would take most of the time of a step.
    """
    own_shards = [value.to_local() for value in values if isinstance(value, DTensor)]
    shards_by_rank: list[list[torch.Tensor]] = [[]] * dist.get_world_size()
    dist.all_gather_object(shards_by_rank, own_shards)
    shards = zip(*shards_by_rank, strict=True)
    for value in values:
        if not isinstance(value, DTensor):
            yield value
            continue
        whole = torch.cat(next(shards))
        assert whole.shape == value.shape
        yield whole


def build(settings: dict[str, Any]) -> tuple[nn.Module, torch.optim.Optimizer, LogicalShards]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(WIDTH, 64),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(64, 65),
        nn.BatchNorm1d(65),
        nn.Linear(65, 1),
    )
    if settings.get("norm") == "sync":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    if settings.get("norm") == "spectral":
        # With the one row of the last layer, its iteration would end before the first step.
        nn.utils.parametrizations.spectral_norm(model[0])
    # Replicas in the inner dimension: each spans both nodes.
    is_replicated = settings.get("mesh") == "replicas"
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("a", "b")) if is_replicated else None
    for layer in (model[0], model[3]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    # foreach: see sharded_child.py. The bits of fused=True depend on the number of ranks on CPUs.
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    if settings.get("moments") == "plain":
        optimizer = PlainMoments(model.parameters())
    parts = LogicalShards(
        model,
        # More than four ranks, and no multiple: each round is a collective, and takes its time.
        shards=settings.get("shards", 6),
        batch=settings.get("batch", 48),
        exact=not is_replicated,
    )
    return model, optimizer, parts


def inject_faults(model: nn.Module, settings: dict[str, Any]) -> Callable[[int], None]:
    """Makes a layer flip a bit of what it computes, on the node and in the step of each fault.

    Returns a function that is called at the beginning of each step.
    """
    places = PeerPlaces.of_environment()
    epoch = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    armed: list[Fault] = []
    own_faults: list[Fault] = []
    for fields in settings.get("faults", ()):
        node = fields["node"]
        if places and places.node == node and epoch <= fields["last_epoch"]:
            own_faults.append(Fault(step=fields["step"], bit=fields["bit"]))

    def begin(step: int) -> None:
        armed[:] = [fault for fault in own_faults if fault.is_due(step)]

    def strike(_: nn.Module, inputs: object, output: torch.Tensor) -> None:
        for fault in armed:
            fault.strike(output)
        armed.clear()

    if own_faults:
        model[3].register_forward_hook(strike)  # pyright: ignore[reportIndexIssue]
    return begin


def is_enough(settings: dict[str, Any]) -> bool:
    """Returns whether all ranks end here: rank 0 looks for the file, and tells the others."""
    if "enough" not in settings:
        return False
    is_there = torch.tensor(Path(settings["enough"]).exists())
    dist.broadcast(is_there, src=0)
    return bool(is_there)


def train(settings: dict[str, Any]) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    size = dist.get_world_size()
    model, optimizer, parts = build(settings)
    begin_faults = inject_faults(model, settings)
    events = EventLog.open(Path(settings["events"]), job="sharded", kind=KIND_TRAINING)
    state: dict[str, Any] = {
        "model": model,
        "optimizer": optimizer,
        "parts": parts,
    }
    if settings.get("per_rank"):
        state["own"] = PerRank(torch.zeros(3))

    def note(step: int, **fields: Any) -> None:
        digest = hash_state(model, optimizer)
        if rank == 0:
            line = {
                "step": step,
                "digest": digest,
                "size": size,
                "at": time.time(),
                **fields,
            }
            with Path(settings["bits"]).open("a") as file:
                file.write(json.dumps(line) + "\n")

    with Checkpointer(
        settings["checkpoints"],
        state,
        run="sharded",
        every=settings["every"],
        window_s=settings["window_s"],
        tuning=Tuning(peer_steps=settings["peer_steps"]),
        events=events,
    ) as ckpt:
        end = ckpt.step
        note(end, start=True)
        for step in range(ckpt.step, settings["steps"]):
            if is_enough(settings):
                break
            while step == settings["gate_step"] and not Path(settings["gate"]).exists():
                Path(f"{settings['gate']}-reached").touch()
                ckpt.poll()
                time.sleep(0.02)
            begin_faults(step)
            optimizer.zero_grad()
            for part in parts.of_step(step):
                draws = torch.Generator().manual_seed(parts.first_sample(step, part))
                inputs = torch.randn(parts.samples, WIDTH, generator=draws)
                loss = (model(inputs).squeeze(1) - inputs.sum(1)).square().mean()
                parts.backward(loss)
            optimizer.step()
            end = step + 1
            note(end)
            time.sleep(settings.get("pace_s", 0.0))
            ckpt.tick(end)
            # A step here is shorter than a copy: else most steps would have none.
            writer: Any = ckpt._writer  # pyright: ignore[reportPrivateUsage]
            while settings["peer_steps"] == 1 and writer.copying:
                ckpt.poll()
                time.sleep(0.005)
    whole = hash_state(model, optimizer)
    if rank == 0:
        events.emit(
            "exit",
            code=0,
            step=end,
            digest=whole,
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    run_cli(lambda: train(json.loads(sys.argv[1])))
