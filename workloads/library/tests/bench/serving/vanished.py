"""Machines that are gone without a reset: from one moment on all their packets are dropped, and
nobody closes anything.

No kubelet is left that could probe: the endpoint stays until the node counts as lost, and only the
proxy's own checks and retries are between that machine and a client. In a network namespace of its
own, so that no rule is left behind.
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
"""Until endpoints follow; 40 to 50 s in a cluster, as long as a node's lease lasts."""
_NEEDS = ("unshare", "ip", "iptables")


def vanished(folder: Path, *, rate: float, seconds: float, count: int) -> dict[str, Any]:
    missing = [name for name in _NEEDS if not shutil.which(name)]
    if missing:
        return {"vanished_not_run": f"no {missing[0]} on PATH"}
    build(TOOLS["k6"])  # in there nothing can be downloaded
    isolated = ["unshare", "--net"]
    tried = subprocess.run(
        [
            *isolated,
            "iptables",
            "-L",
            "-n",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode:
        return {"vanished_not_run": f"no network namespace: {tried.stderr.strip()[:200]}"}
    words = [
        sys.executable,
        "-m",
        __spec__.name,
        str(folder),
        str(rate),
        str(seconds),
        str(count),
    ]
    done = subprocess.run(
        [*isolated, *words],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def _vanish(fleet: Fleet, replica: Replica, *, lost: list[threading.Timer]) -> None:
    replica.leaving = True
    replica.probe = lambda path="": True  # type: ignore[method-assign]
    _dropped("-I", replica.port)

    def replace() -> None:
        fleet.kill(replica)
        # Free again, its port may become that of a client.
        _dropped("-D", replica.port)

    lost.append(threading.Timer(NODE_LOST_S, replace))
    lost[-1].start()


def _dropped(change: str, port: int) -> None:
    """Begins (-I) or ends (-D): what comes to the port, and from it."""
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
    lost = list[threading.Timer]()
    actions = [partial(_vanish, lost=lost)] * int(count)
    found = under_load(
        fleet,
        actions,
        "vanished",
        rate=float(rate),
        seconds=float(seconds),
    )
    for each in lost:
        each.cancel()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
