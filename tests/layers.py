"""The table of the layers, layers.toml, as the tests ask for it."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONTRACT = "holdfast.contract"
_TABLE = tomllib.loads((ROOT / "tests" / "layers.toml").read_text())
MAY_IMPORT: dict[str, set[str]] = {
    f"holdfast.{room}": {CONTRACT, *(f"holdfast.{other}" for other in others)}
    for room, others in _TABLE["library"].items()
} | {room: {*_TABLE["public"], *others} for room, others in _TABLE["platform"].items()}
FACES = {room: {*modules} for room, modules in _TABLE["faces"].items()}
INSIDERS = {room: tuple(places) for room, places in _TABLE["insiders"].items()}
MOST_MODULES = 25
PACKAGES = ("holdfast", "infra", "workloads", "monitoring")
LIBRARY = ROOT / "workloads" / "library"
