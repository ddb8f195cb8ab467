"""Imports go one way. The table is the design; a new arrow is a decision."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]

# room -> rooms it may import beside itself. The longest matching prefix of a module decides its room.
CONTRACTS = {"holdfast.contract", "infra.contract"}
MAY_IMPORT: dict[str, set[str]] = {
    # The library: installable by itself, so nothing outside itself.
    "holdfast.contract": set(),
    "holdfast.runtime": {"holdfast.contract"},
    "holdfast.checkpoint": {"holdfast.contract", "holdfast.runtime"},
    "holdfast.training": {"holdfast.contract", "holdfast.runtime", "holdfast.checkpoint"},
    "holdfast.inference": {"holdfast.contract", "holdfast.runtime"},
    "holdfast.inference.errors": set(),
    "holdfast.inference.items": {"holdfast.contract", "holdfast.inference.errors"},
    "holdfast.inference.values": set(),
    "holdfast.inference.queue": {"holdfast.contract", "holdfast.inference.errors", "holdfast.inference.items"},
    "holdfast.inference.results": {
        "holdfast.contract",
        "holdfast.inference.errors",
        "holdfast.inference.items",
        "holdfast.inference.queue",
    },
    # A model's code runs there, so no database.
    "holdfast.inference.predictor": {
        "holdfast.contract",
        "holdfast.runtime",
        "holdfast.checkpoint",
        "holdfast.training.model",
        "holdfast.inference.errors",
        "holdfast.inference.values",
    },
    "holdfast.inference.worker": {
        "holdfast.contract",
        "holdfast.runtime",
        "holdfast.inference.errors",
        "holdfast.inference.items",
        "holdfast.inference.predictor",
        "holdfast.inference.queue",
        "holdfast.inference.redact",
        "holdfast.inference.results",
        "holdfast.inference.retry",
        "holdfast.inference.values",
    },
    "holdfast.inference.server": {
        "holdfast.contract",
        "holdfast.runtime",
        "holdfast.checkpoint",
        "holdfast.inference.errors",
        "holdfast.inference.values",
        "holdfast.inference.predictor",
        "holdfast.inference.proxy",
    },
    "holdfast.inference.proxy": {"holdfast.contract", "holdfast.runtime"},
    "holdfast.command_line": {"holdfast.contract"},
    "holdfast.cli": {"holdfast.contract", "holdfast.command_line", "holdfast.commands"},
    "holdfast.commands": {
        "holdfast.contract",
        "holdfast.checkpoint.cli",
        "holdfast.inference.cli",
        "holdfast.inference.server.cli",
        "holdfast.training.cli",
    },
    "holdfast.__main__": {"holdfast.cli"},
    "infra.contract": {"holdfast.contract"},
    "infra.environments": CONTRACTS,
    "infra.specs": CONTRACTS | {"infra.environments"},
    "infra.rules": CONTRACTS | {"infra.environments", "infra.specs"},
    "holdfast.place": CONTRACTS | {"infra.environments", "holdfast.clients.gcloud"},
    "infra.cdk": set(),
    "infra.stacks": CONTRACTS | {"infra.environments", "infra.specs", "infra.cdk"},
    "infra.main": CONTRACTS
    | {"infra.environments", "infra.specs", "infra.rules", "infra.stacks", "infra.cdk", "monitoring.stack"},
    "infra.ops": CONTRACTS | {"infra.environments", "infra.specs", "infra.rules"},
    "infra.proof": CONTRACTS | {"infra.environments", "holdfast.place", "infra.ops"},
    "infra.__main__": CONTRACTS
    # What a cluster lacks is known where it is installed; nothing of infra but its command line asks.
    | {"infra.environments", "infra.specs", "infra.rules", "holdfast.place", "infra.ops", "infra.proof"}
    | {"holdfast.command_line", "holdfast.clients.api", "workloads.operators"},
    "workloads.manifests": CONTRACTS | {"infra.environments"},
    "workloads.images": CONTRACTS | {"infra.environments", "workloads.operators.catalogue"},
    "workloads.operators": CONTRACTS
    | {
        "infra.environments",
        "holdfast.clients.api",
        "holdfast.manifests.render_context",
        "workloads.manifests.rendering",
        "holdfast.manifests.waiting_for_pods",
    },
    "holdfast.jobs": CONTRACTS
    | {
        "infra.environments",
        "holdfast.place",
        "holdfast.clients.gcloud",
        "workloads.manifests",
        "holdfast.ledger",
        "holdfast.ledger.receipt",
    },
    "holdfast.drill": CONTRACTS
    | {
        "infra.environments",
        "holdfast.runtime",
        "holdfast.ledger",
        # The proxy before local servers is the one that is rendered, and its endpoints are written as in a cluster.
        "holdfast.inference.proxy.endpoints",
        "holdfast.manifests.envoy",
        "holdfast.clients.api",
        "holdfast.jobs.job_snapshot",
    },
    "workloads.__main__": CONTRACTS
    | {"holdfast.command_line", "holdfast.jobs", "workloads.manifests", "workloads.images"}
    | {"workloads.operators", "holdfast.drill"},
    # The one arithmetic of useful time: whoever counts it may ask it.
    "holdfast.ledger": {"holdfast.contract"},
    "holdfast.place.churn": CONTRACTS | {"holdfast.ledger", "holdfast.clients.cloud_api"},
    "monitoring.alerting": CONTRACTS,
    # Prices and break-even are those of `infra place`, or two commands would give two answers.
    "monitoring.cost": CONTRACTS
    | {"holdfast.place", "holdfast.ledger", "holdfast.place.churn", "holdfast.clients.kubernetes_api"},
    "holdfast.exporter": CONTRACTS
    | {
        "holdfast.runtime",
        "holdfast.ledger",
        "holdfast.place.churn",
        "monitoring.cost",
        "holdfast.mover",
        "holdfast.clients.kubernetes_api",
        "holdfast.clients.cloud_api",
    },
    # What a policy does is decided where it was priced.
    "holdfast.mover": CONTRACTS | {"holdfast.runtime", "holdfast.place", "holdfast.ledger"},
    "holdfast.report": CONTRACTS | {"holdfast.ledger", "holdfast.place.churn", "monitoring.cost"},
    "monitoring.stack": CONTRACTS | {"infra.environments", "infra.cdk", "monitoring.alerting", "monitoring.cost"},
    "monitoring.__main__": CONTRACTS
    | {
        "holdfast.command_line",
        "monitoring.alerting",
        "holdfast.place.churn",
        "monitoring.cost",
        "holdfast.exporter",
        "holdfast.report",
    },
    "holdfast.clients.kubernetes_api": {"holdfast.contract"},
    "holdfast.clients.cloud_api": set(),
}
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
            found |= {f"{node.module}.{a.name}" if node.module in PACKAGES else node.module for a in node.names}
    return {m for m in found if ours(m)}


def modules() -> list[tuple[str, Path]]:
    files = [f for p in PACKAGES[1:] for f in sorted((ROOT / p).rglob("*.py")) if not f.is_relative_to(LIBRARY)]
    return [(dotted(f, ROOT), f) for f in files] + [(dotted(f, LIBRARY), f) for f in sorted(LIBRARY.rglob("*.py"))]


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
                assert name.split(".")[0] in sys.stdlib_module_names or name.startswith(tuple(CONTRACTS)), (path, name)
