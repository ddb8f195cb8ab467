"""A rank of a state that is sharded over nodes, for tests: `python -m
workloads.library.tests.training.elastic.sharded_child SETTINGS`.

A plain FSDP2 loop as a user's own: it knows nothing of copies or of the launcher. It waits at
`gate_step` until the file `gate` is there, and shows by another that it does. The digest of what
each start begins with goes to the file `bits`.
"""

import hashlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from holdfast.checkpoint import Checkpointer, Tuning
from holdfast.checkpoint.state.tensors import to_local
from holdfast.runtime.events import EventLog
from holdfast.support.errors import run_cli
from holdfast.vocabulary.telemetry import KIND_TRAINING
from workloads.library.tests.training.elastic.hsdp_child import bits

WIDTH = 8
SAMPLES = 4


def _replicas_over_nodes(_: nn.Module) -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


def _shards_over_nodes(_: nn.Module) -> DeviceMesh:
    """Returns a mesh in which both ranks of a node hold the same shard."""
    return DeviceMesh("cpu", [[0, 2], [1, 3]], mesh_dim_names=("replicate", "shard"))


def _tensor_parallel_inside(model: nn.Module) -> DeviceMesh:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "tp"))
    parallelize_module(
        model,
        mesh["tp"],
        {
            "0": ColwiseParallel(),
            "2": RowwiseParallel(),
        },
    )
    return mesh["shard"]


LAYOUTS: dict[str, Callable[[nn.Module], DeviceMesh | None]] = {
    "fsdp": lambda _: None,
    "hsdp": _replicas_over_nodes,
    "hsdp-inside": _shards_over_nodes,
    "tp": _tensor_parallel_inside,
}
"""Dimensions of the mesh of two nodes with two ranks each, apart from the first."""


class _Temporary:
    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class GatheredOnHost(_Temporary, AllGather):
    """Gloo's own gather of a GPU's memory crashes: pytorch issue 152645."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: Any,
        async_op: Any = 0,
    ) -> None:
        host_tensor = torch.empty_like(output_tensor, device="cpu")
        dist.all_gather_into_tensor(host_tensor, input_tensor.cpu(), group=group)
        output_tensor.copy_(host_tensor)


class ReducedOnHost(_Temporary, ReduceScatter):
    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: Any,
        op: Any,
        async_op: Any = 0,
    ) -> None:
        host_tensor = torch.empty_like(output_tensor, device="cpu")
        dist.reduce_scatter_tensor(
            host_tensor,
            input_tensor.cpu(),
            op=op,
            group=group,
        )
        output_tensor.copy_(host_tensor)


def exchange_on_host(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_all_gather(GatheredOnHost())
            module.set_custom_reduce_scatter(ReducedOnHost())


def hash_shards(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Returns the digest of the shards of all ranks."""
    digests = [""] * dist.get_world_size()
    dist.all_gather_object(digests, bits(model, optimizer, to_local))
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def train(settings: dict[str, Any]) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
    )
    device = torch.device(settings.get("device", "cpu"))
    model.to(device)
    # Summed exactly: gloo adds three terms and more in an order that differs from start to start.
    exact = MixedPrecisionPolicy(reduce_dtype=torch.float64)
    layout = settings.get("layout", "fsdp")
    mesh = LAYOUTS[layout](model)
    # ranks that share each layer compute with the same samples
    replica = rank // 2 if layout == "tp" else rank
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh, mp_policy=exact)
    fully_shard(model, mesh=mesh, mp_policy=exact)
    if device.type == "cuda":
        exchange_on_host(model)
    # Without a state of the optimizer the ranks of a second replica have nothing to write.
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    if layout != "hsdp":
        # With foreach=False, the default on CPUs, the first step of a start takes a third of the
        # start: ten small operations on each shape of a DTensor.
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    events = EventLog.open(Path(settings["events"]), job="sharded", kind=KIND_TRAINING)
    state = {"model": model, "optimizer": optimizer}
    tuning = Tuning(peer_steps=settings["peer_steps"])

    def note(step: int) -> None:
        digest = hash_shards(model, optimizer)
        if rank == 0:
            with Path(settings["bits"]).open("a") as file:
                file.write(json.dumps({"step": step, "digest": digest}) + "\n")

    with Checkpointer(
        settings["checkpoints"],
        state,
        run="sharded",
        every=settings["every"],
        window_s=settings["window_s"],
        tuning=tuning,
        events=events,
    ) as ckpt:
        first = ckpt.step
        for step in range(first, settings["steps"]):
            if step in (first, *settings.get("bits_at", ())):
                note(step)
            while step == settings["gate_step"] and not Path(settings["gate"]).exists():
                Path(f"{settings['gate']}-reached").touch()
                ckpt.poll()
                time.sleep(0.02)
            draws = torch.Generator().manual_seed(step * 100 + replica)
            inputs = torch.randn(SAMPLES, WIDTH, generator=draws).to(device)
            loss = (model(inputs).squeeze(1) - inputs.sum(1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(settings.get("pace_s", 0.0))
            ckpt.tick(step + 1)
            # A step here is shorter than a copy: else most steps would have none.
            writer: Any = ckpt._writer  # pyright: ignore[reportPrivateUsage]
            while writer.copying:
                ckpt.poll()
                time.sleep(0.005)
    whole = hash_shards(model, optimizer)
    if rank == 0:
        events.emit(
            "exit",
            code=0,
            step=settings["steps"],
            digest=whole,
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    run_cli(lambda: train(json.loads(sys.argv[1])))
