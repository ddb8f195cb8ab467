"""Ways to lay a model out over ranks, each taken from 2 ranks to 1, with a save between."""

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from holdfast.checkpoint import Checkpointer, PerRank
from holdfast.checkpoint.ranks import Ranks
from holdfast.checkpoint.save.decision import check_state
from holdfast.contract.errors import InputError
from workloads.library.tests.checkpoint.jobs import TUNING
from workloads.library.tests.checkpoint.process_groups import same, whole

State = dict[str, Any]
WORLDS = (2, 1)
STEPS_PER_START = 2
EXACT = "exact"
_EVEN, _UNEVEN = 12, 10  # 10 divides by 2 and not by 4


def layers(width: int = _EVEN) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, width), nn.Linear(width, 6))


def step(state: State, number: int) -> None:
    """On the same samples on every rank, as a tensor parallel model wants them."""
    torch.manual_seed(number)
    state["optimizer"].zero_grad()
    state["replicas" if "replicas" in state else "model"](torch.randn(4, 8)).square().mean().backward()
    state["optimizer"].step()


@dataclass(frozen=True, kw_only=True)
class Layout:
    name: str
    build: Callable[[int], State]
    advance: Callable[[State, int], None] = step
    alone: bool = False
    """Whether a start may refuse it that could not know before: then it has a run of its own."""


def adamw(model: nn.Module) -> State:
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-2)}


def mesh(world: int, *names: str) -> DeviceMesh:
    """Ranks on the last axes first: 2 ranks on two axes are 1 by 2."""
    shape = [1] * len(names)
    for axis in reversed(range(len(names))):
        shape[axis] = min(2 if len(names) > 1 else world, world)
        world //= shape[axis]
    return init_device_mesh("cpu", tuple(shape), mesh_dim_names=names)


def fsdp2_on_the_second_axis(world: int) -> State:
    return adamw(fully_shard(layers(8), mesh=mesh(world, "dp"), shard_placement_fn=lambda p: Shard(p.ndim - 1)))


def hsdp(world: int) -> State:
    return adamw(fully_shard(layers(_UNEVEN), mesh=mesh(world, "replicate", "shard")))


def expert_parallel(world: int) -> State:
    """Eight experts as one tensor that is shared out by its first axis, beside layers of FSDP2."""
    model, one = layers(), mesh(world, "ep")
    experts = nn.Parameter(distribute_tensor(torch.randn(8, 4, 3), one, [Shard(0)]))
    fully_shard(model, mesh=one)
    model.register_parameter("experts", experts)
    return adamw(model)


def step_by_made_up_gradients(state: State, number: int) -> None:
    torch.manual_seed(number)
    for parameter in state["model"].parameters():
        whole = torch.randn(parameter.shape)
        parameter.grad = distribute_tensor(whole, parameter.device_mesh, parameter.placements)
    state["optimizer"].step()


def fsdp1(kind: StateDictType, *, optimizer: bool = False) -> Callable[[int], State]:
    def build(world: int) -> State:
        model = FullyShardedDataParallel(
            layers(),
            device_id=torch.device("cpu"),
            device_mesh=mesh(world, "dp"),
        )
        FullyShardedDataParallel.set_state_dict_type(model, kind)
        state = adamw(model)
        return state | {"saved": {"model": model} | ({"optimizer": state["optimizer"]} if optimizer else {})}

    return build


def fsdp1_without_a_mesh(world: int) -> State:
    model = FullyShardedDataParallel(layers(), device_id=torch.device("cpu"))
    FullyShardedDataParallel.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
    return adamw(model) | {"saved": {"model": model}}


def zero(world: int) -> State:
    model = layers()
    replicas = DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
    return {"model": model, "optimizer": optimizer, "replicas": replicas}


def pipeline(marked: bool) -> Callable[[int], State]:
    def build(world: int) -> State:
        torch.manual_seed(3)
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4 // world)))
        stage = nn.ModuleDict({f"stage {dist.get_rank()}": model})
        state = adamw(model)
        return state | {"saved": {"stage": PerRank(stage) if marked else stage}}

    return build


def partial_sum(world: int) -> State:
    one = mesh(world, "dp")
    return adamw(layers()) | {"saved": {"sum": {"of": DTensor.from_local(torch.ones(4), one, [Partial()])}}}


LAYOUTS = (
    Layout(name="FSDP2 on the second axis", build=fsdp2_on_the_second_axis),
    Layout(name="HSDP (FSDP2, 2 replicas)", build=hsdp),
    Layout(name="expert parallel with FSDP2", build=expert_parallel, advance=step_by_made_up_gradients),
    Layout(name="FSDP1, full state, module", build=fsdp1(StateDictType.FULL_STATE_DICT)),
    Layout(name="FSDP1, sharded state without a mesh", build=fsdp1_without_a_mesh),
    Layout(name="FSDP1, optimizer", build=fsdp1(StateDictType.FULL_STATE_DICT, optimizer=True)),
    Layout(name="ZeroRedundancyOptimizer", build=zero),
    Layout(name="pipeline stages", build=pipeline(False)),
    Layout(name="pipeline stages, PerRank", build=pipeline(True), alone=True),
    Layout(name="a partial sum", build=partial_sum),
)


def saved_part(state: State) -> State:
    return state.get("saved") or {name: value for name, value in state.items() if name != "replicas"}


def start_all(world: int, url: str, start: int, names: list[str], results: str) -> None:
    """Every named layout once, on this many ranks; rank 0 writes what happened to `results`."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    going = [layout for layout in LAYOUTS if layout.name in names]
    built = {layout.name: layout.build(world) for layout in going}
    found = {name: why for name, state in built.items() if (why := _refusal(saved_part(state)))}
    together = [layout for layout in going if not layout.alone and layout.name not in found]
    found |= _one_start(together, built, Path(url), start, "together")
    for layout in going:
        if layout.alone and layout.name not in found:
            try:
                found |= _one_start([layout], built, Path(url), start, slug(layout.name))
            except InputError as error:
                found[layout.name] = refused(error)
    if dist.get_rank() == 0:
        Path(results).write_text(json.dumps(found))


def _refusal(state: State) -> str:
    """What a start says to such a state before it reads or writes anything."""
    try:
        check_state(state, Ranks.of_job(timeout_s=60))
    except InputError as error:
        return refused(error)
    return ""


def _one_start(layouts: list[Layout], built: dict[str, State], url: Path, start: int, run: str) -> dict[str, str]:
    """What a start restores, against what the start before had in memory when it saved; then some steps more."""
    saved = {layout.name: saved_part(built[layout.name]) for layout in layouts}
    entries = {f"{slug(name)}.{key}": value for name, state in saved.items() for key, value in state.items()}
    found: dict[str, str] = {}
    with Checkpointer(url / "store", entries, run=run, every=10**9, tuning=TUNING) as ckpt:
        assert ckpt.step == start * STEPS_PER_START
        for name, state in saved.items():
            exact = not start or same(whole(state), torch.load(_truth(url, name, start), weights_only=True))
            found[name] = EXACT if exact else "restored other bits"
        for number in range(ckpt.step, ckpt.step + STEPS_PER_START):
            for layout in layouts:
                layout.advance(built[layout.name], number)
            ckpt.tick(number + 1)
        for name, state in saved.items():
            full = whole(state)
            if dist.get_rank() == 0:
                torch.save(full, _truth(url, name, start + 1))
    return found


def _truth(url: Path, name: str, start: int) -> Path:
    return url / f"{slug(name)}-{start}"


def refused(error: InputError) -> str:
    return f"refused: {error.what}; {error.got}".replace("|", "/")


def slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower()).strip("-")
