"""Imports go one way. The table is the design; a new arrow is a decision."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# room -> rooms it may import beside itself. The longest matching prefix of a module decides its room.
MAY_IMPORT: dict[str, set[str]] = {
    "infra.contract": set(),
    "infra.environments": {"infra.contract"},
    "infra.specs": {"infra.contract", "infra.environments"},
    "infra.rules": {"infra.contract", "infra.environments", "infra.specs"},
    "infra.placement": {"infra.contract", "infra.environments"},
    "infra.cdk": set(),
    "infra.stacks": {"infra.contract", "infra.environments", "infra.specs", "infra.cdk"},
    "infra.main": {
        "infra.contract",
        "infra.environments",
        "infra.specs",
        "infra.rules",
        "infra.stacks",
        "infra.cdk",
        "monitoring.stack",
    },
    "infra.ops": {"infra.contract", "infra.environments", "infra.specs", "infra.rules"},
    "infra.__main__": {
        "infra.contract",
        "infra.environments",
        "infra.specs",
        "infra.rules",
        "infra.placement",
        "infra.ops",
    },
    "workloads.runtime": {"infra.contract"},
    "workloads.checkpoint": {"infra.contract", "workloads.runtime"},
    "workloads.training": {"infra.contract", "workloads.runtime", "workloads.checkpoint"},
    "workloads.inference": {"infra.contract", "workloads.runtime", "workloads.checkpoint", "workloads.training.model"},
    "workloads.manifests": {"infra.contract", "infra.environments"},
    "workloads.jobs": {"infra.contract", "infra.environments", "infra.placement", "workloads.manifests"},
    "workloads.drill": {
        "infra.contract",
        "infra.environments",
        "workloads.runtime",
        "workloads.jobs.api",
        "workloads.jobs.view",
    },
    "workloads.__main__": {
        "infra.contract",
        "infra.environments",
        "workloads.runtime",
        "workloads.checkpoint",
        "workloads.training",
        "workloads.inference",
        "workloads.jobs",
        "workloads.manifests",
        "workloads.drill",
    },
    "monitoring": {"infra.contract"},
    # Prices and break-even are those of `infra place`, or two doors would give two answers.
    "monitoring.money": {"infra.contract", "infra.placement", "monitoring"},
    "monitoring.stack": {"infra.contract", "infra.environments", "infra.cdk", "monitoring"},
}
PACKAGES = ("infra", "workloads", "monitoring")


def room_of(module: str) -> str | None:
    parts = module.split(".")
    return next((r for n in range(len(parts), 0, -1) if (r := ".".join(parts[:n])) in MAY_IMPORT), None)


def ours(module: str) -> bool:
    return module.split(".")[0] in PACKAGES


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from infra import cdk` imports the module infra.cdk
            found |= {f"{node.module}.{a.name}" if node.module in PACKAGES else node.module for a in node.names}
    return {m for m in found if ours(m)}


def modules() -> list[tuple[str, Path]]:
    files = [f for p in PACKAGES for f in sorted((ROOT / p).rglob("*.py"))]
    return [(".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), f) for f in files]


@pytest.mark.parametrize(("module", "path"), modules(), ids=lambda v: v if isinstance(v, str) else "")
def test_module_imports_only_what_its_room_may(module: str, path: Path) -> None:
    room = room_of(module)
    if room is None:
        assert module in PACKAGES, f"{module} stands in no room of the table"
        assert not imports(path)
        return
    allowed = MAY_IMPORT[room] | {room}
    wrong = {m for m in imports(path) if not any(m == a or m.startswith(a + ".") for a in allowed)}
    assert not wrong, f"{module} (room {room}) must not import {sorted(wrong)}; allowed: {sorted(allowed)}"


def test_contract_needs_the_standard_library_only() -> None:
    import sys

    for path in sorted((ROOT / "infra/contract").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for name in names:
                assert name.split(".")[0] in sys.stdlib_module_names or name.startswith("infra.contract"), (path, name)
