"""Evictions, roll-outs, kills and freezes under load, and the layouts of the field that must fail at the same."""

import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.drill.serving.fleet import HOST, Command, Replica, holdfast_server
from workloads.library.tests.bench.server_client import INFER, Counted, k6
from workloads.library.tests.drill.field_fleet import FieldFleet as Fleet

PREDICTOR = "workloads.library.tests.inference.server.playing_predictors:gpu_like"
OURS = holdfast_server(PREDICTOR)
REPLICAS = 4
FREEZE_S = 5.0
HANG_S = 20.0
Action = Callable[[Fleet, Replica], None]


def freeze(fleet: Fleet, replica: Replica) -> None:
    fleet.freeze(replica, FREEZE_S)


def hang_model(fleet: Fleet, replica: Replica) -> None:
    fleet.freeze_model(replica, HANG_S)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    counted: Counted
    retries: int
    by_proxy: int
    by_servers: int | None
    wanted: int
    done: int
    """Of the actions wanted, those that found a replica to hit."""

    def figures(self, name: str) -> dict[str, Any]:
        found = {
            "posts": self.counted.asked,
            "failed": self.counted.failed,
            "arrivals_not_made": self.counted.dropped,
            "retries": self.retries,
            "actions": self.done,
            "actions_wanted": self.wanted,
            "codes": self.counted.codes,
            "p99_ms": self.counted.answered_ms.get("p(99)"),
            "by_proxy": self.by_proxy,
            "by_servers": self.by_servers,
        }
        return {f"{name}_{key}": value for key, value in found.items()}


def under_load(
    fleet: Fleet,
    actions: Sequence[Action],
    *,
    rate: float,
    seconds: float,
    least_ready: int = 2,
    counting: bool = False,
) -> Outcome:
    """The actions spread over the load, each on a ready replica, and never below `least_ready` of them. `counting`: the
    servers' own count too, which ours leave behind when they end in order."""
    done = 0

    def act() -> None:
        nonlocal done
        began = time.monotonic()
        rng = random.Random(22)
        for n, action in enumerate(actions):
            due = began + (n + 0.5) * seconds / len(actions)
            time.sleep(max(0.0, due - time.monotonic()))  # a schedule, not a wait for a condition
            while len(ready := fleet.ready()) <= least_ready and time.monotonic() < began + seconds:
                time.sleep(0.1)
            if len(ready) > least_ready:
                action(fleet, rng.choice(ready))
                done += 1

    with fleet.running(REPLICAS):
        url = f"http://{HOST}:{fleet.port}{INFER}"
        counted = k6(url, rate=rate, seconds=seconds, folder=fleet.folder, meanwhile=act)
        return Outcome(
            counted=counted,
            retries=fleet.stat("upstream_rq_retry"),
            by_proxy=fleet.stat("upstream_rq_2xx"),
            by_servers=fleet.answered() if counting else None,
            wanted=len(actions),
            done=done,
        )


def fleet_of(folder: Path, name: str, command: Command = OURS, **more: Any) -> Fleet:
    return Fleet(folder=folder / name, owner="bench-server", command=command, **more)


def shuffled(seed: int, *actions: Action) -> list[Action]:
    return random.Random(seed).sample(actions, len(actions))


def drains(folder: Path, *, posts: int, rate: float, evictions: int, rollouts: int) -> dict[str, Any]:
    actions = shuffled(7, *[Fleet.evict] * evictions, *[Fleet.roll_out] * rollouts)
    fleet = fleet_of(folder, "drains")
    outcome = under_load(fleet, actions, rate=rate, seconds=posts / rate, counting=True)
    return outcome.figures("drains") | {"drains_exit_codes": sorted(set(fleet.exits))}


def late(folder: Path, *, rate: float, seconds: float, delays_s: Sequence[int]) -> dict[str, Any]:
    """Both ways out, with endpoints that follow sooner and later than the contract assumes."""
    figures: dict[str, Any] = {}
    for delay_s in delays_s:
        fleet = fleet_of(folder, f"late-{delay_s}", endpoint_delay_s=float(delay_s))
        outcome = under_load(fleet, [Fleet.evict, Fleet.roll_out, Fleet.evict], rate=rate, seconds=seconds)
        figures |= outcome.figures(f"late_{delay_s}s")
    return figures


def deaths(folder: Path, *, rate: float, seconds: float, kills: int, freezes: int) -> dict[str, Any]:
    actions = shuffled(8, *[Fleet.kill] * kills, *[freeze] * freezes)
    return under_load(fleet_of(folder, "deaths"), actions, rate=rate, seconds=seconds).figures("deaths")


def models(folder: Path, *, posts: int, rate: float, hangs: int, kills: int) -> dict[str, Any]:
    """Predicting processes that hang or are killed, in servers that live."""
    actions = shuffled(9, *[hang_model] * hangs, *[Fleet.kill_model] * kills)
    return under_load(fleet_of(folder, "models"), actions, rate=rate, seconds=posts / rate).figures("models")


def stock(port: int) -> list[str]:
    """The same predictor's time behind uvicorn as it comes."""
    app = "workloads.library.tests.bench.server_twins:app"
    return [sys.executable, "-m", "uvicorn", app, "--host", HOST, "--port", str(port), "--log-level", "warning"]


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
        figures |= under_load(fleet, [action] * 3, rate=rate, seconds=seconds).figures(f"control_{name}")
    return figures
