"""What an undisturbed step of an elastic gang costs beyond one all-reduce of its gradients.

Two members of a gang, by the library's own loop. A step of it and a bare one, which has one flat buffer, the same
backward passes and one all-reduce of the same group, take turns in the same processes, each first as often as the
other, so that a busy moment of the machine meets both. By the clock, where ranks that share cores wait for each other,
and by rank 0's own CPU time. The gang's threads run beside both: their CPU time is that of a gang that stands still.
"""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from holdfast.training.elastic.gang import ElasticGang
from holdfast.training.model import ByteGPT, ModelConfig, next_byte_loss
from tests.workloads.library.training.elastic.gangs import free_ports
from tests.workloads.library.training.warm import Fork

RANKS, SHARDS, PAIRS, WARM = 2, 3, 100, 4
STILL_S = 3.0
NEVER = 10**6
MODEL = ModelConfig(context=64, width=96, layers=2, heads=2)
SAMPLES = 4
Times = tuple[float, float]
"""By the clock, and of this process's CPU time."""


def step_costs(folder: Path) -> dict[str, float]:
    """Medians of the ratios of neighbouring steps, less 1; `threads_cpu`: of one core, of a gang that stands still."""
    found: dict[str, float] = {}
    for kind in ("plain", "exact"):
        still, rows = _measured(folder / kind, exact=kind == "exact")
        for at, clock in enumerate(("", "_cpu")):
            found[kind + clock] = round(statistics.median(gang[at] / bare[at] for gang, bare in rows) - 1, 4)
        found["threads_cpu"] = round(still, 4)
    return found


def _measured(home: Path, *, exact: bool) -> tuple[float, list[tuple[Times, Times]]]:
    home.mkdir(parents=True)
    nodes = tuple(("127.0.0.1", port) for port in free_ports(RANKS))
    ranks = [Fork(lambda rank=rank: _member(rank, nodes, home, exact=exact)) for rank in range(RANKS)]
    if any([rank.wait() for rank in ranks]):
        raise RuntimeError("a member of the gang that is measured failed")
    return json.loads((home / "times").read_text())


def _member(rank: int, nodes: tuple[tuple[str, int], ...], home: Path, *, exact: bool) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = ByteGPT(MODEL)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = torch.randint(0, 255, (SAMPLES, MODEL.context + 1))

    def loss() -> torch.Tensor:
        return next_byte_loss(model(text[:, :-1]), text[:, 1:])

    gang = ElasticGang(
        str(home / "checkpoints"), {"model": model, "optimizer": optimizer}, run="cost", nodes=nodes, index=rank,
        min_nodes=RANKS, shards=RANKS * SHARDS, exact=exact, every=NEVER,
    )  # fmt: skip
    with gang:
        steps = gang.steps(NEVER)
        bare = _bare(model, optimizer, loss)

        def elastic() -> None:
            next(steps)
            for _ in gang.shards():
                gang.backward(loss())
            if gang.reduce():
                optimizer.step()

        rows = [_pair(elastic, bare, number) for number in range(WARM + PAIRS)][WARM:]
        used = time.process_time()
        time.sleep(STILL_S)
        still = (time.process_time() - used) / STILL_S
        dist.barrier()
    if rank == 0:
        (home / "times").write_text(json.dumps([still, rows]))


def _bare(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[], torch.Tensor]
) -> Callable[[], None]:
    parameters = list(model.parameters())
    flat = torch.zeros(sum(p.numel() for p in parameters))
    views = [
        view.view(p.shape) for view, p in zip(flat.split([p.numel() for p in parameters]), parameters, strict=True)
    ]

    def step() -> None:
        flat.zero_()
        for parameter, view in zip(parameters, views, strict=True):
            parameter.grad = view
        for _ in range(SHARDS):
            (loss() / (RANKS * SHARDS)).backward()
        dist.all_reduce(flat)
        optimizer.step()

    return step


def _pair(elastic: Callable[[], None], bare: Callable[[], None], number: int) -> tuple[Times, Times]:
    if number % 2:
        first = _timed(elastic)
        return first, _timed(bare)
    second = _timed(bare)
    return _timed(elastic), second


def _timed(step: Callable[[], None]) -> Times:
    dist.barrier()
    began, used = time.monotonic(), time.process_time()
    step()
    return time.monotonic() - began, time.process_time() - used
