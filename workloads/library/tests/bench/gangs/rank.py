"""A rank of `make bench-peers`: a state, and steps of some products, one all-reduce and a pause.

The number of a step determines which tensor it changes, so a restored state can be verified.
Started by `holdfast train ranks` and by torchrun; with "dcp" it saves by PyTorch's own means.
"""

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from holdfast.checkpoint import Checkpointer, PerRank, Tuning
from holdfast.runtime.events import EventLog
from holdfast.vocabulary.telemetry import KIND_TRAINING
from workloads.library.tests.processes import MIB

TENSORS = 16
SIDE = 700
PAUSE_S = 0.6


class Work:
    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._lead = dist.get_rank() == 0
        self._square = torch.randn(SIDE, SIDE)
        self._one = torch.ones(1)
        rank = dist.get_rank()
        size = settings["mib"] * MIB // 4 // TENSORS
        self.tensors = {}
        for n in range(TENSORS):
            self.tensors[f"{rank}.{n}"] = torch.full((size,), float(n))
        self._checked = False

    def step(self, step: int) -> None:
        """Runs the step that follows `step` others."""
        for _ in range(self._settings["products"]):
            self._square @ self._square
        [*self.tensors.values()][step % TENSORS].add_(1)
        time.sleep(self._settings["pace_s"])
        dist.all_reduce(self._one)  # comes last: after it every rank has done the step
        if self._lead:
            write(self._settings["log"], step=step + 1)
        if not self._checked:  # verifies the restored state after the first step, which is timed
            self._checked = True
            for n, tensor in enumerate(self.tensors.values()):
                additions = len(range(n, step + 1, TENSORS))
                right = bool((tensor == n + additions).all())
                assert right, f"tensor {n} is not of step {step}"


def write(path: str, **fields: object) -> None:
    line = json.dumps({"t": time.time(), **fields})
    with Path(path).open("a") as log:
        log.write(f"{line}\n")


class Turns:
    """Alternates turns with and without copies in the same processes; saves after each turn."""

    def __init__(self, settings: dict[str, Any], ckpt: Any) -> None:
        self._settings = settings
        self._ckpt = ckpt
        self._writer = ckpt._writer
        self._copies = ckpt._writer._copies
        self._copied = 0
        self._newest = -1
        self._every = 0

    def note_step(self, step: int) -> None:
        if self._writer._copies and self._copies.newest_step != self._newest:
            self._newest = self._copies.newest_step
            self._copied = self._copied + 1
            self._every = self._copies._due_at - step
        if step % self._settings["turns"] == 0:
            which = "with" if self._writer._copies else "without"
            self._pause(which=which, copies=self._copied, every=self._every)
            self._ckpt.save(step)
            self._pause(which="save")
            self._copied = 0
            self._newest = step
            self._writer._copies = None if self._writer._copies else self._copies
            self._copies._due_at = step + 1
            self._ckpt._ticked_at = 0.0  # the pause is no part of a step

    def _pause(self, **fields: object) -> None:
        """Waits until all processes rest, so that their times can be read."""
        while self._writer.copying or self._writer.busy:
            self._writer.poll()
            time.sleep(0.01)
        dist.barrier()
        if dist.get_rank() == 0:
            write(self._settings["turn_log"], **fields)
            time.sleep(PAUSE_S)
        dist.barrier()


def train_with_holdfast(settings: dict[str, Any]) -> None:
    mark = {
        "rank": dist.get_rank(),
        "what": "group",
    }
    write(settings["marks"], **mark)
    work = Work(settings)
    write(settings["marks"], **mark | {"what": "state"})
    events = EventLog.open(Path(settings["events"]), job="sharded", kind=KIND_TRAINING)
    state = {"tensors": PerRank(work.tensors)}
    tuning = Tuning(peer_steps=settings["peer_steps"])
    with Checkpointer(
        settings["checkpoints"],
        state,
        run="sharded",
        every=settings["every"],
        keep=1,
        tuning=tuning,
        events=events,
    ) as ckpt:
        write(settings["marks"], **mark | {"what": "restored"})
        turns = Turns(settings, ckpt) if settings["turns"] else None
        for step in range(ckpt.step, settings["steps"]):
            work.step(step)
            ckpt.tick(step + 1)
            if turns:
                turns.note_step(step + 1)


def train_with_dcp(settings: dict[str, Any]) -> None:
    """Saves as PyTorch's tutorials do: async_save to a folder, and load of the newest."""
    import torch.distributed.checkpoint as dcp

    from workloads.library.tests.bench.checkpoints.dcp_twin import newest

    work = Work(settings)
    folder = Path(settings["checkpoints"])
    group = dist.new_group(backend="gloo")  # async_save hangs on the group of the training
    first = newest(folder)
    if first:
        start = time.monotonic()
        dcp.load(work.tensors, checkpoint_id=folder / str(first))
        if dist.get_rank() == 0:
            write(
                settings["events"],
                event="restore",
                step=first,
                seconds=round(time.monotonic() - start, 3),
            )
    saving = None
    for step in range(first, settings["steps"]):
        work.step(step)
        if (step + 1) % settings["every"] == 0:
            if saving:
                saving.result()
                if dist.get_rank() == 0:
                    old = folder / str(step + 1 - 2 * settings["every"])
                    shutil.rmtree(old, ignore_errors=True)
            saving = dcp.async_save(
                work.tensors, checkpoint_id=folder / str(step + 1), process_group=group
            )


def main() -> None:
    settings = json.loads(sys.argv[1])
    if settings["marks"]:
        write(settings["marks"], rank=-1, what="began")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train = train_with_dcp if settings["dcp"] else train_with_holdfast
    train(settings)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
