"""Layouts of a model over ranks: restored on 1 rank after a save on 2, or refused."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

from holdfast.checkpoint import Checkpointer, PerRank
from holdfast.checkpoint.ranks import Ranks
from holdfast.checkpoint.save.agreement import check_state
from holdfast.support.errors import InputError
from workloads.library.tests.checkpoint.jobs import TUNING
from workloads.library.tests.checkpoint.process_groups import same, step, whole

State = dict[str, Any]
WORLDS = (2, 1)
STEPS_PER_START = 2
_EVEN = 12
# It divides by 2 and not by 4.
_UNEVEN = 10


def layers(width: int = _EVEN) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, width), nn.Linear(width, 6))


def adamw(model: nn.Module) -> State:
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-2),
    }


def mesh(world: int, *names: str) -> DeviceMesh:
    """Make a mesh with all ranks on the last axis: 2 ranks on two axes are 1 by 2."""
    shape = (1,) * (len(names) - 1) + (world,)
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def fsdp2_on_the_second_axis(world: int) -> State:
    model = fully_shard(
        layers(8),
        mesh=mesh(world, "dp"),
        shard_placement_fn=lambda parameter: Shard(parameter.ndim - 1),
    )
    return adamw(model)


def hsdp(world: int) -> State:
    model = fully_shard(
        layers(_UNEVEN),
        mesh=mesh(world, "replicate", "shard"),
    )
    return adamw(model)


def expert_parallel(world: int) -> State:
    """Build eight experts as one tensor, sharded by its first axis, with layers of FSDP2."""
    model = layers()
    expert_mesh = mesh(world, "ep")
    experts = nn.Parameter(
        distribute_tensor(
            torch.randn(8, 4, 3),
            expert_mesh,
            [Shard(0)],
        )
    )
    fully_shard(model, mesh=expert_mesh)
    model.register_parameter("experts", experts)
    return adamw(model)


def step_by_made_up_gradients(state: State, number: int) -> None:
    torch.manual_seed(number)
    for parameter in state["model"].parameters():
        whole = torch.randn(parameter.shape)
        parameter.grad = distribute_tensor(whole, parameter.device_mesh, parameter.placements)
    state["optimizer"].step()


def fsdp1(world: int, kind: StateDictType = StateDictType.FULL_STATE_DICT, **options: Any) -> State:
    model = FullyShardedDataParallel(
        layers(),
        device_id=torch.device("cpu"),
        **options,
    )
    FullyShardedDataParallel.set_state_dict_type(model, kind)
    return adamw(model)


LAYOUTS: dict[str, tuple[Callable[[int], State], Callable[[State, int], None]]] = {
    "FSDP2 on the second axis": (fsdp2_on_the_second_axis, step),
    "HSDP": (hsdp, step),
    "expert parallel with FSDP2": (expert_parallel, step_by_made_up_gradients),
    "FSDP1, full state, module": (lambda world: fsdp1(world, device_mesh=mesh(world, "dp")), step),
}


def select_saved(name: str, state: State) -> State:
    """Return the entries of a layout that are saved: for FSDP1 the module only."""
    entries: State = {}
    for key, value in state.items():
        if key == "model" or not name.startswith("FSDP1"):
            entries[f"{name}.{key}"] = value
    return entries


def check_restored(
    world: int,
    url: str,
    start: int,
) -> None:
    """Compare the restored state with that of the start before, then train some steps more."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    states: dict[str, State] = {}
    entries: State = {}
    for name, (build, _) in LAYOUTS.items():
        states[name] = build(world)
        entries |= select_saved(name, states[name])
    with Checkpointer(
        f"{url}/store",
        entries,
        run="exact",
        every=10**9,
        tuning=TUNING,
    ) as ckpt:
        assert ckpt.step == start * STEPS_PER_START
        for name, state in states.items():
            if start:
                expected = torch.load(f"{url}/{name}-{start}", weights_only=True)
                restored = whole(select_saved(name, state))
                assert same(restored, expected), f"{name}: restored other bits"
        for number in range(ckpt.step, ckpt.step + STEPS_PER_START):
            for name, (_, advance) in LAYOUTS.items():
                advance(states[name], number)
            ckpt.tick(number + 1)
        for name, state in states.items():
            full = whole(select_saved(name, state))
            if dist.get_rank() == 0:
                torch.save(full, f"{url}/{name}-{start + 1}")
    check_stages(world, url)


def check_stages(world: int, url: str) -> None:
    """Check that stages of a pipeline are restored only on as many ranks as saved them."""
    try:
        with Checkpointer(
            f"{url}/store",
            {"stage": PerRank(stage(world))},
            run="stages",
        ) as ckpt:
            ckpt.tick(1)
        assert world == WORLDS[0]
    except InputError as error:
        assert "is marked PerRank and fits only the number of ranks that saved it" in error.what
        assert world < WORLDS[0]


def stage(world: int) -> nn.Module:
    torch.manual_seed(3)
    stage_layers = []
    for _ in range(4 // world):
        stage_layers.append(nn.Linear(8, 8))
    name = f"stage {dist.get_rank()}"
    return nn.ModuleDict({name: nn.Sequential(*stage_layers)})


def zero(world: int) -> State:
    return {
        "optimizer": ZeroRedundancyOptimizer(
            layers().parameters(),
            torch.optim.AdamW,
            lr=1e-2,
        )
    }


def partial_sum(world: int) -> State:
    return {
        "sum": {
            "of": DTensor.from_local(
                torch.ones(4),
                mesh(world, "dp"),
                [Partial()],
            )
        }
    }


# The real classes, because some are refused by the name of the class.
REFUSED: dict[str, Callable[[int], State]] = {
    "a ShardedTensor of FSDP1": lambda world: {
        "model": fsdp1(world, StateDictType.SHARDED_STATE_DICT)["model"]
    },
    "holds the moments of this rank's shards only": lambda world: fsdp1(
        world, device_mesh=mesh(world, "dp")
    ),
    "holds the moments of this rank's parameters only": zero,
    "state differs between ranks": lambda world: {"stage": stage(world)},
    "is a partial sum": partial_sum,
}


def check_refused(world: int) -> None:
    """Check that these states are refused before anything is read or written."""
    warnings.simplefilter("ignore")
    for reason, build in REFUSED.items():
        try:
            check_state(build(world), Ranks.of_job(timeout_s=60))
        except InputError as error:
            assert reason in f"{error.what}; {error.got}", error
        else:
            raise AssertionError(f"not refused: {reason}")
