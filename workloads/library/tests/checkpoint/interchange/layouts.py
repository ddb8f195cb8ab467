"""Eight layouts of a model: each is saved, exported, imported, and begins another run from that."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.optim import swa_utils

from holdfast.checkpoint import Checkpointer
from holdfast.checkpoint.interchange.commands import export_checkpoint, import_checkpoint
from holdfast.checkpoint.stores.local import LocalStorage
from workloads.library.tests.checkpoint.jobs import TUNING
from workloads.library.tests.checkpoint.made import make_adamw
from workloads.library.tests.checkpoint.process_groups import same, step, whole

State = dict[str, Any]
WIDTH = 10


def make_model(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, WIDTH), nn.Linear(WIDTH, 6))


def split_tensors(model: nn.Module, mesh: Any) -> None:
    parallelize_module(
        model,
        mesh,
        {
            "0": ColwiseParallel(),
            "1": RowwiseParallel(),
        },
    )


def make_state(model: nn.Module) -> State:
    return {
        "model": model,
        "optimizer": make_adamw(model, lr=1e-2),
    }


def single(seed: int) -> State:
    return make_state(make_model(seed))


def fsdp2(seed: int) -> State:
    model = make_model(seed)
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return make_state(model)


def hsdp(seed: int) -> State:
    model = make_model(seed)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh)
    return make_state(model)


def tensor_parallel(seed: int) -> State:
    model = make_model(seed)
    split_tensors(model, init_device_mesh("cpu", (dist.get_world_size(),)))
    return make_state(model)


def two_axes(seed: int) -> State:
    model = make_model(seed)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    split_tensors(model, mesh["tp"])
    fully_shard(model, mesh=mesh["dp"])
    return make_state(model)


class Adapted(nn.Module):
    """A frozen layer with a trained update of low rank."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(2, base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, 2))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.base(rows) + rows @ self.down.T @ self.up.T


def lora(seed: int) -> State:
    model = make_model(seed)
    for index, layer in enumerate(model):
        assert isinstance(layer, nn.Linear)
        model[index] = Adapted(layer)
    return make_state(model)


def average(seed: int) -> State:
    state = make_state(make_model(seed))
    return state | {"ema": swa_utils.AveragedModel(state["model"])}


LAYOUTS: dict[int, dict[str, Callable[[int], State]]] = {
    1: {
        "single": single,
        "LoRA": lora,
        "EMA": average,
    },
    2: {"FSDP2 on 2": fsdp2, "tensor parallel": tensor_parallel},
    4: {
        "FSDP2 on 4": fsdp2,
        "HSDP": hsdp,
        "two axes": two_axes,
    },
}


def check_layouts(world: int, folder: str) -> None:
    """Checks the layouts; runs on each rank of a group."""
    for name, build in LAYOUTS[world].items():
        _check_layout(Path(folder) / name.replace(" ", "-"), build)


def _check_layout(folder: Path, build: Callable[[int], State]) -> None:
    state = build(3)
    url = str(folder / "url")
    with Checkpointer(
        url,
        state,
        run="saved",
        every=10**9,
        tuning=TUNING,
    ) as ckpt:
        step(state, 0)
        if "ema" in state:
            state["ema"].update_parameters(state["model"])
        ckpt.tick(1)
    entries = ["model", "ema"] if "ema" in state else ["model"]
    if dist.get_rank() == 0:
        storage = LocalStorage.open(url)
        for form in ("hf", "dcp"):
            for entry in entries:
                out = folder / f"{form}-{entry}"
                export_checkpoint(storage, "saved", None, f"{entry}/", out, form)
                import_checkpoint(
                    out,
                    storage,
                    out.name,
                    entry=entry,
                    step=0,
                )
    dist.barrier()
    expected = whole({entry: state[entry] for entry in entries})
    for form in ("hf", "dcp"):
        for entry in entries:
            fresh = build(4)
            # Begins from the imported run for `hf`, from the exported folder itself for `dcp`.
            name = f"{form}-{entry}"
            place = f"{url}/{name}" if form == "hf" else str(folder / name)
            modules = {"model" if form == "dcp" else entry: fresh[entry]}
            with Checkpointer(
                url,
                modules,
                run=f"begun-{form}-{entry}",
                every=10**9,
                tuning=TUNING,
                start_from=place,
            ) as ckpt:
                assert ckpt.step == 0
                assert ckpt.restored
                assert ckpt.restored.origin == place
            tensors = whole({entry: fresh[entry]})
            expected_part = {key: expected[key] for key in tensors}
            assert same(tensors, expected_part), f"{form} {entry}"
    dist.barrier()
