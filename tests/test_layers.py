"""Imports go one way. The table is the design; a new arrow is a decision."""

import ast
import builtins
from pathlib import Path

ROOT = Path(__file__).parents[1]

# room -> rooms it may import beside itself. The longest matching prefix of a module decides its room.
CONTRACTS = {"holdfast.contract", "infra.contract"}
SHARED = {f"holdfast.checkpoint.{name}" for name in ("errors", "failpoints", "settings")}
MAY_IMPORT: dict[str, set[str]] = {
    # The library: installable by itself, so nothing outside itself.
    "holdfast.contract": set(),
    "holdfast.runtime": {"holdfast.contract"},
    "holdfast.checkpoint": {"holdfast.contract", "holdfast.runtime"},
    # Its rooms, from the store up. The modules above them are the API and what the rooms share.
    "holdfast.checkpoint.stores": {"holdfast.contract", "holdfast.runtime", *SHARED},
    "holdfast.checkpoint.format": {"holdfast.contract", "holdfast.checkpoint.stores", *SHARED},
    "holdfast.checkpoint.state": {"holdfast.contract", "holdfast.checkpoint.format", *SHARED},
    "holdfast.checkpoint.restore": {
        *("holdfast.contract", "holdfast.runtime", "holdfast.checkpoint.ranks"),
        *("holdfast.checkpoint.stores", "holdfast.checkpoint.format", "holdfast.checkpoint.state", *SHARED),
    },
    "holdfast.checkpoint.save": {
        *("holdfast.contract", "holdfast.runtime", "holdfast.checkpoint.ranks", "holdfast.checkpoint.cadence"),
        *("holdfast.checkpoint.stores", "holdfast.checkpoint.format", "holdfast.checkpoint.state", *SHARED),
        "holdfast.checkpoint.restore",
    },
    "holdfast.checkpoint.commands": {
        *("holdfast.contract", "holdfast.checkpoint.stores", "holdfast.checkpoint.format"),
        *("holdfast.checkpoint.state", "holdfast.checkpoint.restore", "holdfast.checkpoint.save", *SHARED),
    },
    "holdfast.training": {"holdfast.contract", "holdfast.runtime", "holdfast.checkpoint"},
    "holdfast.inference": {"holdfast.contract", "holdfast.runtime"},
    "holdfast.inference.errors": {"holdfast.contract"},
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
    "holdfast.place": CONTRACTS | {"infra.environments"},
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
# room -> what of it is public: all that others may import.
FACES = {
    "holdfast.checkpoint": {
        "holdfast.checkpoint",
        "holdfast.checkpoint.cli",
        "holdfast.checkpoint.dcp",
        "holdfast.checkpoint.errors",
        "holdfast.checkpoint.failpoints",
        "holdfast.checkpoint.parts",
        "holdfast.checkpoint.stores",
    },
}
# Tests and measurements of a room, which look inside.
INSIDERS = {
    "holdfast.checkpoint": ("checkpoint/", "bench/checkpoint", "fuzz/borders/checkpoints.py", "gpu/test_checkpoint")
}
MOST_MODULES = 25
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


def behind_a_face(path: Path, imported: set[str]) -> list[str]:
    """Inner modules of rooms that have a face, imported from outside of them."""
    inside = str(path.relative_to(LIBRARY)) if path.is_relative_to(LIBRARY) else str(path)
    return [
        f"{path} must not import {module}; public are {sorted(face)}"
        for room, face in FACES.items()
        for module in sorted(imported)
        if module.startswith(f"{room}.") and module not in face
        if not inside.startswith((room.replace(".", "/"), *(f"tests/{part}" for part in INSIDERS[room])))
    ]


def test_others_import_public_modules_only() -> None:
    paths = {path for _, path in modules()} | {*(ROOT / "tests").rglob("*.py"), *(LIBRARY / "tests").rglob("*.py")}
    # Most files name no such room, and need no parser.
    near = [path for path in sorted(paths) if any(room in path.read_text() for room in FACES)]
    found = [wrong for path in near for wrong in behind_a_face(path, imports(path))]
    assert not found, "\n".join(found)


def test_an_import_behind_a_face_is_found() -> None:
    inner = {"holdfast.checkpoint.save.writer"}
    assert behind_a_face(LIBRARY / "holdfast/training/rank.py", inner)
    assert behind_a_face(LIBRARY / "tests/training/test_cli.py", inner)
    assert not behind_a_face(LIBRARY / "tests/checkpoint/test_cli.py", inner)
    assert not behind_a_face(LIBRARY / "holdfast/training/rank.py", {"holdfast.checkpoint.stores"})


def test_no_folder_of_a_room_with_a_face_holds_many_modules() -> None:
    for room in FACES:
        top = LIBRARY / room.replace(".", "/")
        for folder in (top, *(path for path in top.rglob("*") if path.is_dir())):
            assert len(list(folder.glob("*.py"))) <= MOST_MODULES, folder


def bases_by_class() -> dict[str, set[str]]:
    """Classes of the library by name, with the names of their bases; a name that is used twice has the bases of both."""
    found: dict[str, set[str]] = {}
    for path in (LIBRARY / "holdfast").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, set()).update(ast.unparse(base).split(".")[-1] for base in node.bases)
    return found


def is_exception(name: str) -> bool:
    kind = getattr(builtins, name, None)
    return isinstance(kind, type) and issubclass(kind, Exception)


def rootless(classes: dict[str, set[str]]) -> list[str]:
    """Exceptions that no `except HoldfastError` takes. What is no Exception, as SystemExit, has no part in it."""
    rooted = {"HoldfastError"}
    while more := {name for name, bases in classes.items() if bases & rooted} - rooted:
        rooted |= more
    return sorted(name for name, bases in classes.items() if any(map(is_exception, bases)) and name not in rooted)


def test_every_exception_of_the_library_has_one_root() -> None:
    classes = bases_by_class()
    assert {"InputError", "Unjudged", "StorageError", "BatchError", "GroupLost"} <= classes.keys()
    assert not rootless(classes), "derive them from holdfast.contract.errors.HoldfastError"
    assert rootless({"HoldfastError": {"Exception"}, "A": {"HoldfastError", "ValueError"}, "B": {"OSError"}}) == ["B"]


def test_contract_needs_the_standard_library_only() -> None:
    import sys

    for path in sorted([*(ROOT / "infra/contract").glob("*.py"), *(LIBRARY / "holdfast/contract").glob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for name in names:
                assert name.split(".")[0] in sys.stdlib_module_names or name.startswith(tuple(CONTRACTS)), (path, name)
