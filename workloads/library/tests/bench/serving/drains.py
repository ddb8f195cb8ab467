"""Evictions, roll-outs, kills and freezes under load, and the layouts of the field that must fail
at the same.
"""

import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.drill.serving.fleet import HOST, Command, Replica, holdfast_server
from workloads.library.tests.bench.serving.client import INFER, k6
from workloads.library.tests.drill.field_fleet import FieldFleet as Fleet

PREDICTOR = "workloads.library.tests.inference.server.playing_predictors:gpu_like"
OURS = holdfast_server(PREDICTOR)
REPLICAS = 4
LEAST_READY = 2
FREEZE_S = 5.0
HANG_S = 20.0
DEATH_S = 4.5
"""For each death: with two of four ready at least, so that some wait for a replacement."""
COUNTING = "drains"
"""Here the servers' own count is taken too, which ours leave behind when they end in order."""
Action = Callable[[Fleet, Replica], None]


def under_load(
    fleet: Fleet,
    actions: Sequence[Action],
    name: str,
    *,
    rate: float,
    seconds: float,
) -> dict[str, Any]:
    """The actions spread over the load, each on a ready replica, and never below LEAST_READY of
    them.
    """
    done = 0

    def act() -> None:
        nonlocal done
        began = time.monotonic()
        rng = random.Random(22)
        for n, action in enumerate(actions):
            due = began + (n + 0.5) * seconds / len(actions)
            time.sleep(max(0.0, due - time.monotonic()))  # a schedule, not a wait for a condition
            while len(ready := fleet.ready()) <= LEAST_READY and time.monotonic() < began + seconds:
                time.sleep(0.1)
            if len(ready) > LEAST_READY:
                action(fleet, rng.choice(ready))
                done += 1

    with fleet.running(REPLICAS):
        url = f"http://{HOST}:{fleet.port}{INFER}"
        counted = k6(
            url,
            rate=rate,
            seconds=seconds,
            folder=fleet.folder,
            meanwhile=act,
        )
        found = {
            "posts": counted.asked,
            "failed": counted.failed,
            "arrivals_not_made": counted.dropped,
            "retries": fleet.stat("upstream_rq_retry"),
            "actions": done,  # those that found a replica to hit
            "actions_wanted": len(actions),
            "codes": counted.codes,
            "by_proxy": fleet.stat("upstream_rq_2xx"),
            "by_servers": fleet.answered() if name == COUNTING else None,
        }
    return {f"{name}_{key}": value for key, value in found.items()}


def fleet_of(folder: Path, name: str, command: Command = OURS, **more: Any) -> Fleet:
    return Fleet(
        folder=folder / name,
        owner="bench-server",
        command=command,
        **more,
    )


def shuffled(seed: int, *actions: Action) -> list[Action]:
    return random.Random(seed).sample(actions, len(actions))


def drains(
    folder: Path,
    *,
    posts: int,
    rate: float,
    evictions: int,
    rollouts: int,
) -> dict[str, Any]:
    actions = shuffled(7, *[Fleet.evict] * evictions, *[Fleet.roll_out] * rollouts)
    fleet = fleet_of(folder, "drains")
    found = under_load(
        fleet,
        actions,
        COUNTING,
        rate=rate,
        seconds=posts / rate,
    )
    return found | {"drains_exit_codes": sorted(set(fleet.exits))}


def late(
    folder: Path,
    *,
    rate: float,
    seconds: float,
    delays_s: Sequence[int],
) -> dict[str, Any]:
    """Both ways out, with endpoints that follow sooner and later than the contract assumes."""
    figures: dict[str, Any] = {}
    for delay_s in delays_s:
        fleet = fleet_of(folder, f"late-{delay_s}", endpoint_delay_s=float(delay_s))
        actions = [Fleet.evict, Fleet.roll_out, Fleet.evict]
        figures |= under_load(
            fleet,
            actions,
            f"late_{delay_s}s",
            rate=rate,
            seconds=seconds,
        )
    return figures


def deaths(folder: Path, *, rate: float, kills: int, freezes: int) -> dict[str, Any]:
    actions = shuffled(
        8,
        *[Fleet.kill] * kills,
        *[lambda fleet, replica: fleet.freeze(replica, FREEZE_S)] * freezes,
    )
    return under_load(
        fleet_of(folder, "deaths"),
        actions,
        "deaths",
        rate=rate,
        seconds=len(actions) * DEATH_S,
    )


def models(
    folder: Path,
    *,
    posts: int,
    rate: float,
    hangs: int,
    kills: int,
) -> dict[str, Any]:
    """Predicting processes that hang or are killed, in servers that live."""
    actions = shuffled(
        9,
        *[lambda fleet, replica: fleet.freeze_model(replica, HANG_S)] * hangs,
        *[Fleet.kill_model] * kills,
    )
    return under_load(
        fleet_of(folder, "models"),
        actions,
        "models",
        rate=rate,
        seconds=posts / rate,
    )


def stock(port: int) -> list[str]:
    """The same predictor's time behind uvicorn as it comes."""
    app = "workloads.library.tests.bench.serving.twins:app"
    return [
        sys.executable,
        "-m",
        "uvicorn",
        app,
        "--host",
        HOST,
        "--port",
        str(port),
        "--log-level",
        "warning",
    ]


def controls(folder: Path, *, rate: float, seconds: float) -> dict[str, Any]:
    """Each must fail: a request lost, or one that only a retry of the proxy saved."""
    # What a server does by itself: no retry hides it.
    one_try = {"proxy_change": lambda proxy: replace(proxy, tries=1)}
    no_retries = {"proxy_change": lambda proxy: replace(proxy, max_retries=None)}
    # 13 s of preStop sleep, ready all the while, and then the kubelet's two seconds.
    sleep = {"pre_stop_s": 13.0, "after_pre_stop_s": 2.0}
    layouts = {
        "stock": (fleet_of(folder, "stock", stock, **one_try), Fleet.evict),
        "prestop": (fleet_of(folder, "prestop", stock, **one_try, **sleep), Fleet.evict),
        "breaker": (fleet_of(folder, "breaker", **no_retries), Fleet.kill),
    }
    figures: dict[str, Any] = {}
    for name, (fleet, action) in layouts.items():
        figures |= under_load(
            fleet,
            [action] * 3,
            f"control_{name}",
            rate=rate,
            seconds=seconds,
        )
    return figures
