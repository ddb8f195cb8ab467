"""Small training jobs in separate processes, to be killed, stopped and restarted.

They are forked from a server that has imported torch once, so that a job starts in milliseconds.
Every job trains the same model on the same random numbers, so the expected state after each step is
known beforehand.
"""

import hashlib
import multiprocessing as mp
import os
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import torch
import torch.distributed as dist

from holdfast.checkpoint import Checkpointer, Tuning, committed_steps, load_tensors
from holdfast.checkpoint.stores.factory import open_storage
from holdfast.vocabulary.environment import ENV_KILL_AT

State = dict[str, Any]
# Imports of jobs and of the test modules whose functions they run. The first optimizer of a process
# imports the compiler, which takes longer than a job.
IMPORTS = (
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "pytest",
    "holdfast.checkpoint.checkpointer",
)
RUN = "job"
STEPS = 12
EVERY = 3
WIDTH = 96
TUNING = Tuning(
    shard_bytes=65536,
    agree_timeout_s=60,
    commit_timeout_s=60,
    retry_s=20,
)


def build() -> State:
    torch.manual_seed(11)
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH)
    )
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-2),
        "progress": {"at": 0},
    }


def advance(state: State) -> None:
    state["optimizer"].zero_grad()
    state["model"](torch.randn(4, WIDTH)).square().mean().backward()
    state["optimizer"].step()
    state["progress"]["at"] += 1


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    sha256 = hashlib.sha256()
    for key in sorted(tensors):
        if key.startswith(("model/", "optimizer/")):
            sha256.update(key.encode())
            sha256.update(tensors[key].detach().numpy().tobytes())
    return sha256.hexdigest()


@cache
def compute_reference_digests() -> dict[int, str]:
    """Returns the digest of the state after each step of an undisturbed run."""
    from holdfast.checkpoint.state import capture

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        state = build()
        torch.manual_seed(5)
        digests: dict[int, str] = {}
        for step in range(1, STEPS + 1):
            advance(state)
            digests[step] = digest(capture(state).tensors)
    torch.set_num_threads(threads)
    return digests


def train(
    url: str,
    rank: int,
    world: int,
    rendezvous: str,
    options: dict[str, Any],
) -> None:
    """Runs one rank. `change` changes the state on every rank; `spoil` and `other_url` apply to the
    last one.
    """
    set_up(rank, world, rendezvous, options)
    state = build()
    torch.manual_seed(5)
    options.get("change", change_nothing)(state)
    late, spoil_late = options.get("spoil_late", (0, change_nothing))
    if rank == world - 1:
        options.get("spoil", change_nothing)(state)
        url = options.get("other_url", url)
    settings: dict[str, Any] = {
        "run": RUN,
        "every": EVERY,
        "tuning": TUNING,
    }
    for name in ("window_s", "keep", "run", "every", "tuning"):
        if name in options:
            settings[name] = options[name]
    with Checkpointer(url, state, **settings) as ckpt:
        assert state["progress"]["at"] == ckpt.step
        failure = ""
        for step in range(ckpt.step, options.get("steps", STEPS)):
            advance(state)
            if step + 1 == late and rank == world - 1:
                spoil_late(state)
            if world > 1 and options.get("sums", True):
                dist.barrier()
            ckpt.tick(step + 1)
            if options.get("wait"):
                ckpt.wait()
            if ckpt.failure and ckpt.failure != failure:
                failure = ckpt.failure
                print(f"rank {rank} knows: {failure}", file=sys.stderr)
    if world > 1:
        dist.destroy_process_group()


def change_nothing(state: State) -> None: ...


def set_up(
    rank: int,
    world: int,
    rendezvous: str,
    options: dict[str, Any],
) -> None:
    os.environ.update(options.get("env", {}))
    if options.get("kill_at") and options.get("kill_rank", rank) == rank:
        os.environ[ENV_KILL_AT] = options["kill_at"]
    sys.stderr = Path(options.get("log", os.devnull)).open("a", buffering=1)  # noqa: SIM115
    sys.stdout = sys.stderr
    os.dup2(sys.stderr.fileno(), 2)
    torch.set_num_threads(1)
    if world > 1:
        timeout = timedelta(seconds=60)
        dist.init_process_group(
            "gloo",
            init_method=options.get("meet", f"file://{rendezvous}"),
            rank=rank,
            world_size=world,
            timeout=timeout,
        )


def steps_on(job: BaseProcess, cpu_s: float = 0.3) -> None:
    """Waits until the job has used more CPU time: dozens of steps, however busy the machine is."""
    process = psutil.Process(job.pid)
    target_s = process.cpu_times().user + cpu_s
    while process.cpu_times().user < target_s:
        assert job.is_alive()
        time.sleep(0.01)


class Jobs:
    def __init__(self) -> None:
        self.context = mp.get_context("forkserver")
        self.context.set_forkserver_preload([*IMPORTS, __name__])
        self._started: list[BaseProcess] = []

    def start(
        self, url: str | Path, folder: Path, *, world: int = 1, **options: Any
    ) -> list[BaseProcess]:
        rendezvous = str(folder / f"rendezvous-{uuid4().hex}")
        ranks: list[BaseProcess] = []
        for rank in range(world):
            arguments = (str(url), rank, world, rendezvous, options)
            ranks.append(self.context.Process(target=train, args=arguments))
        for process in ranks:
            process.start()
        self._started += ranks
        return ranks

    def run(
        self, url: str | Path, folder: Path, *, world: int = 1, **options: Any
    ) -> list[int | None]:
        """Returns exit codes by rank; negative signal numbers for killed ranks."""
        ranks = self.start(url, folder, world=world, **options)
        return finish(ranks)

    def end_all(self) -> None:
        """Kills jobs that a failed test left running, which would take cores from other tests."""
        for process in self._started:
            if process.is_alive():
                process.kill()
                process.join()
        self._started.clear()


def finish(ranks: list[BaseProcess], timeout_s: float = 120) -> list[int | None]:
    codes: list[int | None] = []
    for process in ranks:
        process.join(timeout_s)
        if process.is_alive():
            process.kill()
            process.join()
            raise TimeoutError("a rank hangs")
        codes.append(process.exitcode)
    return codes


def list_committed(url: str | Path, run: str = RUN) -> list[int]:
    """Returns the committed steps, the newest first."""
    return committed_steps(open_storage(str(url)), run)


def newest(url: str | Path) -> int:
    """Returns the step of the newest checkpoint, whose every bit it compares with the expected."""
    step, tensors = load_tensors(str(url), RUN)
    assert digest(tensors) == compute_reference_digests()[step], (
        f"step {step} restores with other bits"
    )
    return step
