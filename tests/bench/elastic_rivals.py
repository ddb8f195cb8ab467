"""torchrun min:max on three agents of which one is lost: seconds until the others step again.

The store is a process of its own, as an operator would keep it, so that no loss takes it along.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from tests.workloads.library.training.elastic.gangs import free_ports

STOCK, TUNED = "torchrun stock", "torchrun tuned"
AGENTS = 3
LIMIT_S = 180.0
STORE = """
import sys, time
from datetime import timedelta
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
time.sleep(float(sys.argv[2]))
"""
WORKER = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
while True:
    dist.all_reduce(torch.ones(1))
    with open(sys.argv[1], "a") as log:
        print(time.monotonic(), dist.get_world_size(), file=log, flush=True)
    time.sleep(0.02)
"""
OPTIONS = {STOCK: "", TUNED: "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"}


def torchrun_death_s(folder: Path, kind: str) -> float | None:
    """None: the others did not step again within the limit."""
    folder.mkdir(parents=True)
    (folder / "worker.py").write_text(WORKER)
    (port,) = free_ports(1)
    store = subprocess.Popen([sys.executable, "-c", STORE, str(port), str(LIMIT_S * 3)])
    agents = [_agent(folder, kind, port) for _ in range(AGENTS)]
    steps = folder / "steps"
    try:
        _until(lambda: any(size == AGENTS for _, size in _lines(steps)))
        _kill_tree(agents[1])
        began = time.monotonic()
        with suppress(TimeoutError):
            _until(lambda: any(size == AGENTS - 1 and t > began for t, size in _lines(steps)))
            return round(next(t for t, size in _lines(steps) if size == AGENTS - 1 and t > began) - began, 1)
        return None
    finally:
        for process in (*agents, store):
            _kill_tree(process)


def _agent(folder: Path, kind: str, port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes=1:{AGENTS}", "--nproc-per-node=1"]
    command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=bench", "--max-restarts=3"]
    if OPTIONS[kind]:
        command.append(f"--rdzv-conf={OPTIONS[kind]}")
    environment = dict(os.environ)
    if kind == TUNED:
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    with (folder / "log").open("a") as log:
        return subprocess.Popen(
            [*command, str(folder / "worker.py"), str(folder / "steps")], env=environment, stdout=log, stderr=log
        )


def _lines(path: Path) -> list[tuple[float, int]]:
    if not path.exists():
        return []
    found = [line.split() for line in path.read_text().splitlines()]
    return [(float(line[0]), int(line[1])) for line in found if len(line) == 2]


def _until(condition: Callable[[], object]) -> None:
    ends = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > ends:
            raise TimeoutError
        time.sleep(0.05)


def _kill_tree(process: subprocess.Popen[bytes]) -> None:
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.send_signal(signal.SIGKILL)
        process.kill()
    process.wait()
