"""Evictions, roll-outs, kills and freezes under load; common layouts, which must fail in them."""

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

Figures = dict[str, Any]
PREDICTOR = "workloads.library.tests.inference.server.playing_predictors:gpu_like"
OURS = holdfast_server(PREDICTOR)
REPLICAS = 4
LEAST_READY = 2
FREEZE_S = 5.0
HANG_S = 20.0
DEATH_S = 4.5
"""Seconds for each death: at least two of four must be ready, so some wait for a replacement."""
COUNTING = "drains"
"""The run that also takes the servers' own count, which ours report at an orderly end."""
Action = Callable[[Fleet, Replica], None]


def under_load(
    fleet: Fleet,
    actions: Sequence[Action],
    name: str,
    *,
    rate: float,
    seconds: float,
) -> Figures:
    """Spreads actions over the load; each hits a replica while more than LEAST_READY are ready."""
    done = 0

    def act() -> None:
        nonlocal done
        start = time.monotonic()
        rng = random.Random(22)
        for n, action in enumerate(actions):
            due = start + (n + 0.5) * seconds / len(actions)
            time.sleep(max(0.0, due - time.monotonic()))  # a schedule, not a wait for a condition
            ready = fleet.ready()
            while len(ready) <= LEAST_READY and time.monotonic() < start + seconds:
                time.sleep(0.1)
                ready = fleet.ready()
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
        figures = {
            "posts": counted.total,
            "failed": counted.failures,
            "arrivals_not_made": counted.dropped,
            "retries": fleet.stat("upstream_rq_retry"),
            "actions": done,  # without those that found no replica to hit
            "actions_wanted": len(actions),
            "codes": counted.codes,
            "by_proxy": fleet.stat("upstream_rq_2xx"),
            "by_servers": fleet.count_answers() if name == COUNTING else None,
        }
    return {f"{name}_{key}": value for key, value in figures.items()}


def make_fleet(folder: Path, name: str, command: Command = OURS, **settings: Any) -> Fleet:
    return Fleet(
        folder=folder / name,
        owner="bench-server",
        command=command,
        **settings,
    )


def shuffle(seed: int, *actions: Action) -> list[Action]:
    return random.Random(seed).sample(actions, len(actions))


def drains(
    folder: Path,
    *,
    posts: int,
    rate: float,
    evictions: int,
    rollouts: int,
) -> Figures:
    actions = shuffle(7, *[Fleet.evict] * evictions, *[Fleet.roll_out] * rollouts)
    fleet = make_fleet(folder, "drains")
    figures = under_load(
        fleet,
        actions,
        COUNTING,
        rate=rate,
        seconds=posts / rate,
    )
    return figures | {"drains_exit_codes": sorted(set(fleet.exits))}


def late(
    folder: Path,
    *,
    rate: float,
    seconds: float,
    delays_s: Sequence[int],
) -> Figures:
    """Evicts and rolls out with endpoints that follow sooner or later than the contract assumes."""
    figures: Figures = {}
    for delay_s in delays_s:
        fleet = make_fleet(folder, f"late-{delay_s}", endpoint_delay_s=float(delay_s))
        actions = [Fleet.evict, Fleet.roll_out, Fleet.evict]
        figures |= under_load(
            fleet,
            actions,
            f"late_{delay_s}s",
            rate=rate,
            seconds=seconds,
        )
    return figures


def deaths(folder: Path, *, rate: float, kills: int, freezes: int) -> Figures:
    actions = shuffle(
        8,
        *[Fleet.kill] * kills,
        *[lambda fleet, replica: fleet.freeze(replica, FREEZE_S)] * freezes,
    )
    return under_load(
        make_fleet(folder, "deaths"),
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
) -> Figures:
    """Freezes and kills predicting processes in servers that live."""
    actions = shuffle(
        9,
        *[lambda fleet, replica: fleet.freeze_model(replica, HANG_S)] * hangs,
        *[Fleet.kill_model] * kills,
    )
    return under_load(
        make_fleet(folder, "models"),
        actions,
        "models",
        rate=rate,
        seconds=posts / rate,
    )


def stock(port: int) -> list[str]:
    """Returns the command of the same predictor's time behind uvicorn with its defaults."""
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


def controls(folder: Path, *, rate: float, seconds: float) -> Figures:
    """Runs layouts that must fail: they lose a request, or only a retry of the proxy saves it."""
    # Without retries the proxy hides nothing that a server does.
    one_try = {"proxy_change": lambda proxy: replace(proxy, tries=1)}
    no_retries = {"proxy_change": lambda proxy: replace(proxy, max_retries=None)}
    # 13 s of preStop sleep, ready all the while, and then the kubelet's two seconds.
    sleep = {"pre_stop_s": 13.0, "after_pre_stop_s": 2.0}
    layouts = {
        "stock": (make_fleet(folder, "stock", stock, **one_try), Fleet.evict),
        "prestop": (make_fleet(folder, "prestop", stock, **one_try, **sleep), Fleet.evict),
        "breaker": (make_fleet(folder, "breaker", **no_retries), Fleet.kill),
    }
    figures: Figures = {}
    for name, (fleet, action) in layouts.items():
        figures |= under_load(
            fleet,
            [action] * 3,
            f"control_{name}",
            rate=rate,
            seconds=seconds,
        )
    return figures
