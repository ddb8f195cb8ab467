"""Three members of which one is killed, under torchrun min:max and under torchft: seconds until the others step again.

What they meet at, a store or a lighthouse, is a process of its own, as an operator would keep it, so that no loss takes
it along. A step is one all-reduce of one number, so its length is what the rival adds to every step.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workloads.library.tests.bench.processes import free_port, kill_family, until
from workloads.library.tests.bench.rival_home import CannotRun, home

STOCK, TUNED = "torchrun stock", "torchrun tuned"
FT_STOCK, FT_TUNED = "torchft stock", "torchft tuned"
MEMBERS = 3
LIMIT_S = 180.0
TORCHFT = "torchft"
FT_MEMBER = Path(__file__).with_name("elastic_torchft_member.py")
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
    began = time.monotonic()
    dist.all_reduce(torch.ones(1))
    now = time.monotonic()
    with open(sys.argv[1], "a") as log:
        print(now, dist.get_world_size(), now - began, file=log, flush=True)
    time.sleep(0.02)
"""
RENDEZVOUS = {STOCK: "", TUNED: "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"}
LIGHTHOUSE = {FT_STOCK: (), FT_TUNED: ("--heartbeat_timeout_ms", "1000", "--join_timeout_ms", "1000")}
COLLECTIVE_S = {FT_STOCK: "60", FT_TUNED: "15"}
"""Its own default; and what ours has here."""


@dataclass(frozen=True, kw_only=True)
class Commands:
    server: Sequence[str]
    member: Sequence[str]
    env: dict[str, str]


def commands(kind: str, folder: Path, port: int) -> Commands:
    return (_torchrun if kind in RENDEZVOUS else _torchft)(kind, folder, port)


def _torchrun(kind: str, folder: Path, port: int) -> Commands:
    worker = folder / "worker.py"
    worker.write_text(WORKER)
    member = [sys.executable, "-m", "torch.distributed.run", f"--nnodes=1:{MEMBERS}", "--nproc-per-node=1"]
    member += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=bench", "--max-restarts=3"]
    member += [f"--rdzv-conf={RENDEZVOUS[kind]}"] if RENDEZVOUS[kind] else []
    return Commands(
        server=[sys.executable, "-c", STORE, str(port), str(LIMIT_S * 3)],
        member=[*member, str(worker), str(folder / "steps")],
        env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if kind == TUNED else {},
    )


def _torchft(kind: str, folder: Path, port: int) -> Commands:
    binaries = home(TORCHFT) / "bin"
    address = f"127.0.0.1:{port}"
    return Commands(
        server=[str(binaries / "torchft_lighthouse"), "--bind", address, "--min_replicas", "1", *LIGHTHOUSE[kind]],
        member=[
            str(binaries / "python"),
            str(FT_MEMBER),
            f"http://{address}",
            str(folder / "steps"),
            COLLECTIVE_S[kind],
        ],
        env={},
    )


def one_killed(folder: Path, kind: str) -> dict[str, float]:
    folder.mkdir(parents=True)
    steps = folder / "steps"
    found = commands(kind, folder, free_port())
    server = _started(found.server, folder, found.env)
    members = [_started(found.member, folder, found.env) for _ in range(MEMBERS)]
    try:
        _met(steps, members, folder)
        _end(members[1])
        began = time.monotonic()

        def after() -> list[float]:
            return [t for t, size, _ in _lines(steps) if size == MEMBERS - 1 and t > began]

        try:
            until(after, LIMIT_S, pause_s=0.05)
        except TimeoutError:
            raise CannotRun(f"the others did not step again within {LIMIT_S:g} s") from None
        together = [seconds for _, size, seconds in _lines(steps) if size == MEMBERS]
        return {
            "death_s": round(after()[0] - began, 2),
            "all_reduce_ms": round(1000 * statistics.median(together), 2),
        }
    finally:
        for process in (*members, server):
            _end(process)


def _started(command: Sequence[str], folder: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
    with (folder / "log").open("a") as log:
        return subprocess.Popen(command, env={**os.environ, **env}, stdout=log, stderr=log)


def _met(steps: Path, members: Sequence[subprocess.Popen[bytes]], folder: Path) -> None:
    """Until all have stepped together for a while; what a member that cannot says is the reason."""

    def together() -> bool:
        if gone := [each.returncode for each in members if each.poll() is not None]:
            raise CannotRun(f"a member ended with {gone[0]}: {_last_line(folder)}")
        return sum(size == MEMBERS for _, size, _ in _lines(steps)) > 20 * MEMBERS

    try:
        until(together, LIMIT_S, pause_s=0.05)
    except TimeoutError:
        raise CannotRun(f"{MEMBERS} members did not meet in {LIMIT_S:g} s: {_last_line(folder)}") from None


def _last_line(folder: Path) -> str:
    lines = [line for line in (folder / "log").read_text().splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it said nothing"


def _lines(path: Path) -> list[tuple[float, int, float]]:
    if not path.exists():
        return []
    found = [line.split() for line in path.read_text().splitlines()]
    return [(float(line[0]), int(line[1]), float(line[2])) for line in found if len(line) == 3]


def _end(process: subprocess.Popen[bytes]) -> None:
    kill_family(process.pid)
    process.wait()
