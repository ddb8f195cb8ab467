"""Machines that vanish without a reset: all their packets are dropped, and no connection closes.

No kubelet remains that could probe: the endpoint stays until the node counts as lost, and only the
proxy's own checks and retries protect a client. The run has its own network namespace, so that no
rule stays behind.
"""

import json
import shutil
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.drill.serving.fleet import Fleet, Replica
from tests.tools.build import TOOLS, build
from workloads.library.tests.bench.serving.drains import OURS, under_load

NODE_LOST_S = 20.0
"""Seconds until endpoints follow; 40 to 50 s in a cluster, as long as a node's lease lasts."""
_NEEDS = ("unshare", "ip", "iptables")


def lose_machines(folder: Path, *, rate: float, seconds: float, count: int) -> dict[str, Any]:
    """Drops the packets of `count` servers under load; says why if it cannot run here."""
    missing = [name for name in _NEEDS if not shutil.which(name)]
    if missing:
        return {"vanished_not_run": f"no {missing[0]} on PATH"}
    build(TOOLS["k6"])  # the namespace has no network for a download
    isolated = ["unshare", "--net"]
    trial = subprocess.run(
        [*isolated, "iptables", "-L", "-n"],
        capture_output=True,
        text=True,
        check=False,
    )
    if trial.returncode:
        return {"vanished_not_run": f"no network namespace: {trial.stderr.strip()[:200]}"}
    words = [
        sys.executable,
        "-m",
        __spec__.name,
        str(folder),
        str(rate),
        str(seconds),
        str(count),
    ]
    process = subprocess.run(
        [*isolated, *words],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(process.stdout)


def _vanish(fleet: Fleet, replica: Replica, *, timers: list[threading.Timer]) -> None:
    replica.leaving = True
    replica.probe = lambda path="": True  # type: ignore[method-assign]
    _change_drops("-I", replica.port)

    def replace() -> None:
        fleet.kill(replica)
        # The port is free again, and may become that of a client.
        _change_drops("-D", replica.port)

    timer = threading.Timer(NODE_LOST_S, replace)
    timers.append(timer)
    timer.start()


def _change_drops(change: str, port: int) -> None:
    """Starts (-I) or stops (-D) to drop packets to the port and from it."""
    for end in ("--dport", "--sport"):
        subprocess.run(
            [
                "iptables",
                change,
                "INPUT",
                "-p",
                "tcp",
                end,
                str(port),
                "-j",
                "DROP",
            ],
            check=True,
        )


def main(folder: str, rate: str, seconds: str, count: str) -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    fleet = Fleet(
        folder=Path(folder) / "vanished",
        owner="bench-server-vanished",
        command=OURS,
    )
    timers = list[threading.Timer]()
    actions = [partial(_vanish, timers=timers)] * int(count)
    figures = under_load(
        fleet,
        actions,
        "vanished",
        rate=float(rate),
        seconds=float(seconds),
    )
    for timer in timers:
        timer.cancel()
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
