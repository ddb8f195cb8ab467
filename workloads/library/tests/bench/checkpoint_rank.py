"""One rank of the checkpoint benchmark: every method in turn, round after round, so that noise hits all alike.

Started by workloads.library.tests.bench.checkpoint with RANK and the like set, and its settings as JSON; writes its
figures as JSON to `out`.
"""

import json
import os
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from holdfast.checkpoint.ranks import Ranks
from holdfast.checkpoint.restore import restore
from holdfast.checkpoint.settings import Tuning
from holdfast.checkpoint.state import PerRank
from holdfast.checkpoint.stores.opening import open_storage
from workloads.library.tests.bench.checkpoint_methods import METHODS, DcpSave, Holdfast, Method, Tensors
from workloads.library.tests.bench.checkpoint_on_gpu import ON_GPU
from workloads.library.tests.bench.checkpoint_rivals import RIVALS

MIB = 1 << 20
TENSOR_MIB = 16
WARM_UP_S = 10.0

Figures = dict[str, dict[str, list[float]]]


def make_state(mib: int, device: str = "cpu") -> Tensors:
    generator = torch.Generator().manual_seed(dist.get_rank())
    size = TENSOR_MIB * MIB // 4
    return {
        f"rank{dist.get_rank()}.{i}": torch.empty(size).uniform_(generator=generator).to(device)
        for i in range(mib // TENSOR_MIB)
    }


class Step:
    """A stand-in for training: some tens of milliseconds on one core, and one all-reduce."""

    def __init__(self, device: str = "cpu") -> None:
        # A GPU is asked for 33 TFLOP.
        side, self._products, kind = (8192, 30, torch.bfloat16) if device == "cuda" else (700, 2, torch.float32)
        self._a = torch.randn(side, side, device=device, dtype=kind)
        self._one = torch.ones(1)

    def run(self, before_update: Callable[[], object] = lambda: None) -> float:
        began = time.perf_counter()
        for _ in range(self._products):
            self._a @ self._a
        before_update()
        caught_up()
        dist.all_reduce(self._one)
        return time.perf_counter() - began


def caught_up() -> None:
    """Until a GPU has done what it was asked for: what it copies there is time that it does not compute."""
    if torch.cuda.is_initialized():
        torch.cuda.current_stream().synchronize()


def warm_up(step: Step) -> None:
    """A job's first save comes after its first interval, which is never below seconds."""
    until = time.perf_counter() + WARM_UP_S
    while not everyone_done(time.perf_counter() > until):
        step.run()


def everyone_done(done: bool) -> bool:
    flag = torch.tensor([int(done)])
    dist.all_reduce(flag, dist.ReduceOp.MIN)
    return bool(flag.item())


def slowest(seconds: float) -> float:
    value = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return float(value.item())


def one_save(method: Method, number: int, step: Step, loaded: bool) -> dict[str, float]:
    settle()
    alone = [step.run() for _ in range(8 if torch.cuda.is_initialized() else 20)] if loaded else []
    dist.barrier()
    began = time.perf_counter()
    method.begin(number)
    caught_up()
    blocking = time.perf_counter() - began
    beside: list[float] = []
    while loaded and not everyone_done(not method.busy()):
        beside.append(step.run(getattr(method, "staged", lambda: None)))
    method.finish()
    total = time.perf_counter() - began
    figures = {"blocking": slowest(blocking), "total": slowest(total)}
    if beside:
        normal = sorted(alone)[len(alone) // 2]
        figures["factor"] = sum(beside) / len(beside) / normal
        figures["extra"] = sum(beside) - normal * len(beside)
    return figures


def settle() -> None:
    """What the method before left to the kernel to write would be paid by the next one."""
    if dist.get_rank() == 0:
        os.sync()
    dist.barrier()


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def memcpy_seconds(tensors: Tensors, copies: list[torch.Tensor]) -> float:
    settle()
    began = time.perf_counter()
    for source, target in zip(tensors.values(), copies, strict=True):
        target.copy_(source, non_blocking=True)
    caught_up()
    return slowest(time.perf_counter() - began)


def copies_of(tensors: Tensors, device: str) -> list[torch.Tensor]:
    """Memory for a plain copy, which for a GPU's is pinned."""
    copies = [torch.ones_like(tensor, device="cpu") for tensor in tensors.values()]
    return [copy.pin_memory() for copy in copies] if device == "cuda" else copies


def saves(folder: Path, tensors: Tensors, names: list[str], rounds: int) -> Figures:
    figures: Figures = defaultdict(lambda: defaultdict(list))
    device = next(iter(tensors.values())).device.type
    step = Step(device)
    copies = copies_of(tensors, device) if len(names) > 1 else []
    methods: list[Any] = [(METHODS | RIVALS | ON_GPU)[name](folder, tensors) for name in names]
    for method in methods:
        # Their own start slows what saves beside them; ours is measured from its first, apart from a GPU's.
        if method.name in RIVALS or device == "cuda":
            one_save(method, 1, step, loaded=False)
    if device == "cpu":  # else all have saved by now
        warm_up(step)
    for number in range(2, 2 + (rounds if device == "cuda" else 2 * rounds)):
        loaded = number % 2 == 1 or device == "cuda"
        for method in methods:
            if copies and (device == "cuda" or not loaded):
                figures["memcpy"]["blocking"].append(memcpy_seconds(tensors, copies))
            for kind, value in one_save(method, number, step, loaded).items():
                figures[method.name][f"{kind}_loaded" if loaded and device == "cpu" else kind].append(value)
            if os.environ.get("BENCH_VERBOSE"):
                print(method.name, {kind: values[-1] for kind, values in figures[method.name].items()}, file=sys.stderr)
    for method in methods:
        method.close()
    return figures


def restores(folder: Path, tensors: Tensors, rounds: int) -> dict[str, list[float]]:
    """Both read what the last save left into tensors that exist: from the disk, as on a new node, and from the cache."""
    names = [f"{name} {cache}" for cache in ("cold", "warm") for name in ("holdfast", "dcp.load")]
    figures: dict[str, list[float]] = {name: [] for name in names}
    ranks = Ranks.of_job(timeout_s=600)
    newest = max((folder / DcpSave.name).iterdir(), key=lambda p: int(p.name))
    expected = {key: tensor.clone() for key, tensor in tensors.items()}
    for _ in range(rounds):
        for name in figures:
            for tensor in tensors.values():
                tensor.zero_()
            if name.endswith("cold"):  # of its own files only: "warm" is what the last read of a method left
                forget(folder / Holdfast.name if name.startswith("holdfast") else newest)
            dist.barrier()
            began = time.perf_counter()
            if name.startswith("holdfast"):
                storage = open_storage(str(folder / Holdfast.name))
                found = restore(storage, "bench", {"t": PerRank(tensors)}, ranks, Tuning())
                assert found.step and not found.skipped, found
            else:
                dcp.load(tensors, checkpoint_id=newest)
            figures[name].append(slowest(time.perf_counter() - began))
            assert all(torch.equal(tensors[key], expected[key]) for key in tensors), name
    return figures


def forget(folder: Path) -> None:
    """Drop the files below from the page cache; they are durable."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[1])
    folder, rounds = Path(given["folder"]), given["rounds"]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    device = given.get("device", "cpu")
    dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
    tensors = make_state(given["mib"], device)
    if given.get("announce"):
        for _ in range(5):  # what training itself allocates is none of the checkpoint's
            Step().run()
        dist.barrier()
        (folder / "state-is-there").touch()
        time.sleep(1)
    result: dict[str, Any] = {"saves": saves(folder, tensors, given["methods"], rounds)}
    if given.get("restore"):
        result["restores"] = restores(folder, tensors, rounds)
    if dist.get_rank() == 0:
        Path(given["out"]).write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
