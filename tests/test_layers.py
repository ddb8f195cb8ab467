"""Imports go one way. The table is the design; a new arrow is a decision."""

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]

# The library's public face: all that the platform may import of it.
PUBLIC = {
    "holdfast.checks",
    "holdfast.clients.api",
    "holdfast.clients.gcloud",
    "holdfast.command_line",
    "holdfast.contract",
    "holdfast.ledger.money",
    "holdfast.manifests",
    "holdfast.place.prices",
    "holdfast.platform",
    "holdfast.tables",
}
# room -> rooms it may import beside itself and the vocabulary. The longest matching prefix of a module decides its room.
LIBRARY_ROOMS: dict[str, set[str]] = {
    "contract": set(),
    "tables": set(),
    "checks": {"tables"},
    "clients": set(),
    "platform": {"clients"},
    "runtime": set(),
    "checkpoint": {"runtime"},
    "training": {"runtime", "checkpoint"},
    "inference": {"runtime"},
    "inference.errors": set(),
    "inference.items": {"inference.errors"},
    "inference.values": set(),
    "inference.queue": {"inference.errors", "inference.items"},
    "inference.results": {"inference.errors", "inference.items", "inference.queue"},
    # A model's code runs there, so no database.
    "inference.predictor": {"runtime", "checkpoint", "training.model", "inference.errors", "inference.values"},
    "inference.worker": {
        "runtime",
        "inference.errors",
        "inference.items",
        "inference.predictor",
        "inference.queue",
        "inference.redact",
        "inference.results",
        "inference.retry",
        "inference.values",
    },
    "inference.server": {
        "runtime",
        "checkpoint",
        "inference.errors",
        "inference.values",
        "inference.predictor",
        "inference.proxy",
    },
    "inference.proxy": {"runtime"},
    # The one arithmetic of useful time; money and receipts price it by the table of `place`.
    "ledger": set(),
    "ledger.command": {"ledger.receipt"},
    "ledger.money": {"ledger", "place"},
    "ledger.receipt": {"ledger", "place", "clients"},
    "place": {"platform"},
    "place.churn": {"ledger", "clients"},
    "manifests": {"platform"},
    "lint": {"platform", "clients", "manifests.waiting_for_pods"},
    "jobs": {"platform", "clients", "place", "manifests", "lint", "ledger"},
    "exporter": {"runtime", "clients", "ledger", "place"},
    # It sees what the exporter sees; what a policy does is decided where it was priced.
    "mover": {"runtime", "clients", "ledger", "place", "exporter"},
    "report": {"ledger", "place.churn"},
    "drill": {
        "platform",
        "clients",
        "runtime",
        "ledger",
        "jobs.job_snapshot",
        # The proxy before local servers is the one that is rendered, and its endpoints are written as in a cluster.
        "inference.proxy.endpoints",
        "manifests.envoy",
    },
    # The naive twin is the trainer without its care: the same model, data and flags.
    "drill.naive": {"runtime", "training"},
    "command_line": set(),
    "commands": {
        "checkpoint.cli",
        "drill.cli",
        "exporter.command",
        "inference.cli",
        "inference.server.cli",
        "jobs.cli",
        "jobs.own.cli",
        "ledger.command",
        "lint.cli",
        "mover.command",
        "place.churn.command",
        "place.cli",
        "report.command",
        "training.cli",
    },
    "cli": {"command_line", "commands"},
    "__main__": {"cli"},
}
PLATFORM_ROOMS: dict[str, set[str]] = {
    "infra.contract": set(),
    "infra.environments": {"infra.contract"},
    "infra.specs": {"infra.contract", "infra.environments"},
    "infra.rules": {"infra.contract", "infra.environments", "infra.specs"},
    "infra.cdk": set(),
    "infra.stacks": {"infra.contract", "infra.environments", "infra.specs", "infra.cdk"},
    # An environment as data: the one way by which the cluster's half knows it.
    "infra.describe": {"infra.contract", "infra.environments"},
    # The composition root, so the only one that knows the stack of another folder.
    "infra.main": {"infra.environments", "infra.rules", "infra.stacks", "infra.cdk", "monitoring.stack"},
    "infra.ops": {"infra.contract", "infra.environments", "infra.specs", "infra.rules"},
    "infra.__main__": {
        "infra.contract",
        "infra.describe",
        "infra.environments",
        "infra.ops",
        "infra.rules",
        "infra.specs",
    },
    "workloads.manifests": {"infra.describe", "infra.environments"},
    "workloads.images": {"infra.contract.versions", "infra.describe", "workloads.operators.catalogue"},
    "workloads.operators": {"infra.contract.versions", "infra.describe", "workloads.manifests.rendering"},
    "workloads.__main__": {
        "infra.contract.interpreter",
        "workloads.images",
        "workloads.manifests",
        "workloads.operators",
    },
    "monitoring.alerting": set(),
    "monitoring.stack": {"infra.contract", "infra.environments", "infra.cdk", "monitoring.alerting"},
    "monitoring.__main__": {"infra.contract.interpreter", "monitoring.alerting"},
}
CONTRACT = "holdfast.contract"
MAY_IMPORT = {
    f"holdfast.{room}": {CONTRACT, *(f"holdfast.{other}" for other in others)} for room, others in LIBRARY_ROOMS.items()
} | {room: PUBLIC | others for room, others in PLATFORM_ROOMS.items()}
PACKAGES = ("holdfast", "infra", "workloads", "monitoring")
LIBRARY = ROOT / "workloads" / "library"


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
            full = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            found |= {full[name] if is_module(full[name]) else node.module for name in full}
    return {m for m in found if ours(m)}


@cache
def is_module(name: str) -> bool:
    """Also of the library where it is installed, and not part of the checkout."""
    try:
        return ours(name) and find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def modules() -> list[tuple[str, Path]]:
    files = [f for p in PACKAGES[1:] for f in sorted((ROOT / p).rglob("*.py")) if not f.is_relative_to(LIBRARY)]
    return [(dotted(f, ROOT), f) for f in files] + [
        (dotted(f, LIBRARY), f) for f in sorted((LIBRARY / "holdfast").rglob("*.py"))
    ]


def dotted(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def not_allowed(module: str, imported: set[str]) -> str | None:
    """What is wrong with what `module` imports."""
    room = room_of(module)
    if room is None:
        return None if module in PACKAGES and not imported else f"{module} stands in no room of the table"
    allowed = MAY_IMPORT[room] | {room}
    wrong = {m for m in imported if not any(m == a or m.startswith(a + ".") for a in allowed)}
    return f"{module} (room {room}) must not import {sorted(wrong)}; allowed: {sorted(allowed)}" if wrong else None


def test_modules_import_only_what_their_rooms_may() -> None:
    found = [wrong for module, path in modules() if (wrong := not_allowed(module, imports(path)))]
    assert not found, "\n".join(found)


def test_a_wrong_import_is_found_wherever_it_stands(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "import os, infra.main\ndef f(x=lambda: 1):\n if x:\n  try: from infra import cdk\n  finally: pass\n"
        "match 1:\n case 1:\n  with f() as g:\n   from monitoring.stack import X\n"
        "try: pass\nexcept OSError:\n import holdfast.clients.api as api\n"
    )
    imported = imports(tmp_path / "a.py")
    assert imported == {"infra.main", "infra.cdk", "monitoring.stack", "holdfast.clients.api"}
    assert "must not import ['infra.cdk', " in (not_allowed("infra.specs.pools", imported) or "")
    assert not_allowed("infra", {"infra.cdk"}) == "infra stands in no room of the table"
    assert not_allowed("infra", set()) is None


def test_contract_needs_the_standard_library_only() -> None:
    import sys

    for path in sorted([*(ROOT / "infra/contract").glob("*.py"), *(LIBRARY / "holdfast/contract").glob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for name in names:
                assert name.split(".")[0] in sys.stdlib_module_names or name.startswith((CONTRACT, "infra.contract")), (
                    path,
                    name,
                )
