"""A rank of the rows shrink and grow of `make bench-peers`: tensors that any number of ranks
divide, and steps of one all-reduce and a pause.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, zeros

from holdfast.checkpoint import Checkpointer, Tuning
from holdfast.runtime.events import EventLog
from holdfast.vocabulary.telemetry import KIND_TRAINING
from workloads.library.tests.bench.gangs.rank import write
from workloads.library.tests.processes import MIB

TENSORS = 16
WIDTH = 1024


def train(settings: dict[str, Any]) -> None:
    rows = settings["mib"] * MIB // 4 // WIDTH // TENSORS
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    tensors: dict[str, DTensor] = {}
    for number in range(TENSORS):
        tensors[str(number)] = zeros(rows, WIDTH, device_mesh=mesh, placements=[Shard(0)])
    summand = torch.ones(1)
    events = EventLog.open(Path(settings["events"]), job="sharded", kind=KIND_TRAINING)
    with Checkpointer(
        settings["checkpoints"],
        {"tensors": tensors},
        run="sharded",
        every=settings["every"],
        keep=1,
        tuning=Tuning(peer_steps=settings["peer_steps"]),
        events=events,
    ) as ckpt:
        for step in range(ckpt.step, settings["steps"]):
            time.sleep(settings["pace_s"])
            tensors[str(step % TENSORS)].to_local().add_(1)
            dist.all_reduce(summand)  # comes last: after it every rank has done the step
            if dist.get_rank() == 0:
                write(settings["log"], step=step + 1, size=dist.get_world_size())
            ckpt.tick(step + 1)
            for number, tensor in enumerate(tensors.values()):
                done = len(range(number, step + 1, TENSORS))
                part = tensor.to_local()
                assert not len(part) or float(part[0, 0]) == float(part[-1, -1]) == done


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(json.loads(sys.argv[1]))
    dist.destroy_process_group()
