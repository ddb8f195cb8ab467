"""Imports go one way. The table, layers.toml, is the design; a new arrow is a decision.

Decision: infra/decisions/0176 (why not import-linter).
"""

import ast
import builtins
import sys
import tomllib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support import ROOT

TABLE = tomllib.loads((ROOT / "tests" / "layers.toml").read_text())
EVERYWHERE = {"holdfast.vocabulary", "holdfast.support"}
"""Rooms that every other room of the library may import."""
MAY_IMPORT: dict[str, set[str]] = {}
for _room, _others in TABLE["library"].items():
    MAY_IMPORT[f"holdfast.{_room}"] = EVERYWHERE | {f"holdfast.{other}" for other in _others}
MAY_IMPORT["holdfast.vocabulary"] = set()
MAY_IMPORT["holdfast.support"] = {"holdfast.vocabulary"}
MAY_IMPORT |= {room: {*TABLE["public"], *others} for room, others in TABLE["platform"].items()}
FACES = {room: {*modules} for room, modules in TABLE["faces"].items()}
MOST_MODULES = 25
PACKAGES = ("holdfast", "infra", "workloads", "monitoring")
LIBRARY = ROOT / "workloads" / "library"


@cache
def imports(path: Path) -> frozenset[str]:
    """Return the modules that a file imports, at any depth; `from infra import cdk` is
    infra.cdk.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            full = (f"{node.module}.{alias.name}" for alias in node.names)
            names |= {name if is_module(name) else node.module for name in full}
        elif isinstance(node, ast.Call) and (name := dynamic_import(node)):
            names.add(name)
    return frozenset(names)


def dynamic_import(call: ast.Call) -> str:
    """Returns the module that `import_module("...")` imports; empty for any other call."""
    if ast.unparse(call.func) not in ("import_module", "importlib.import_module"):
        return ""
    match call.args:
        case [ast.Constant(value=str(name)), *_]:
            return name
        case _:
            return ""


@cache
def find_folder(package: str) -> Path:
    """Return a package's folder, also of a library that is installed and not in the checkout."""
    spec = find_spec(package)
    assert spec
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


@cache
def is_module(name: str) -> bool:
    package, _, rest = name.partition(".")
    if package not in PACKAGES:
        return False
    path = find_folder(package) / rest.replace(".", "/")
    return path.is_dir() or path.with_name(f"{path.name}.py").is_file()


def modules() -> list[tuple[str, Path]]:
    files = []
    for p in PACKAGES[1:]:
        for f in sorted((ROOT / p).rglob("*.py")):
            if not f.is_relative_to(LIBRARY):
                files.append((ROOT, f))
    for f in sorted((LIBRARY / "holdfast").rglob("*.py")):
        files.append((LIBRARY, f))
    named_files: list[tuple[str, Path]] = []
    for root, f in files:
        named_files.append(
            (".".join(f.relative_to(root).with_suffix("").parts).removesuffix(".__init__"), f)
        )
    return named_files


def find_violations(module: str, imported: frozenset[str]) -> str | None:
    """Return the imports that `module` must not have, as text."""
    internal = set()
    for name in imported:
        if name.split(".")[0] in PACKAGES:
            internal.add(name)
    room = module
    while room and room not in MAY_IMPORT:
        room = room.rpartition(".")[0]
    if not room:
        if module in PACKAGES and not internal:
            return None
        return f"{module} is in no room of the table"
    allowed = MAY_IMPORT[room] | {room}
    wrong = set()
    for m in internal:
        if not any(m == a or m.startswith(a + ".") for a in allowed):
            wrong.add(m)
    if wrong:
        return f"{module} (room {room}) must not import {sorted(wrong)}; allowed: {sorted(allowed)}"
    return None


def behind_a_face(path: Path, imported: frozenset[str]) -> list[str]:
    """Inner modules of rooms that have a face, imported from outside of them."""
    inside = str(path.relative_to(LIBRARY)) if path.is_relative_to(LIBRARY) else str(path)
    violations: list[str] = []
    for room, face in FACES.items():
        insiders = [f"tests/{part}" for part in TABLE["insiders"][room]]
        if inside.startswith((room.replace(".", "/"), *insiders)):
            continue
        for module in sorted(imported):
            if module.startswith(f"{room}.") and module not in face:
                violations.append(f"{path} must not import {module}; public are {sorted(face)}")
    return violations


def test_modules_import_only_what_their_rooms_may() -> None:
    violations = []
    for module, path in modules():
        wrong = find_violations(module, imports(path))
        if wrong:
            violations.append(wrong)
    assert not violations, "\n".join(violations)


def test_others_import_public_modules_only() -> None:
    paths = {path for _, path in modules()} | {
        *(ROOT / "tests").rglob("*.py"),
        *(LIBRARY / "tests").rglob("*.py"),
    }
    # Most files name no such room, and need no parser.
    candidates = []
    for path in sorted(paths):
        if any(room in path.read_text() for room in FACES):
            candidates.append(path)
    violations = []
    for path in candidates:
        for wrong in behind_a_face(path, imports(path)):
            violations.append(wrong)
    assert not violations, "\n".join(violations)


def test_a_wrong_import_is_found_at_any_depth(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "import infra.main\ndef f(x=lambda: 1):\n if x:\n  try: from infra import cdk\n  finally:"
        " pass\nmatch 1:\n case 1:\n  with f() as g:\n   from monitoring.stack import X\ntry:"
        " pass\nexcept OSError:\n import holdfast.checkpoint.save.writer as api\n"
        'x = import_module("monitoring.alerting").y\nimportlib.import_module("infra.ops")\n'
    )
    inner = "holdfast.checkpoint.save.writer"
    imported = imports(tmp_path / "a.py")
    called = {"monitoring.alerting", "infra.ops"}
    assert imported == {"infra.main", "infra.cdk", "monitoring.stack", inner} | called
    assert f"must not import ['{inner}', 'infra.cdk', " in (
        find_violations("infra.specs.pools", imported) or ""
    )
    assert find_violations("infra", imported)
    assert not find_violations("infra", frozenset())
    outside = (
        LIBRARY / "holdfast/training/trainer/rank.py",
        LIBRARY / "tests/training/test_cli.py",
    )
    for path in outside:
        assert behind_a_face(path, imported)
    assert not behind_a_face(LIBRARY / "tests/checkpoint/test_cli.py", imported)


def test_no_folder_with_a_face_has_many_modules() -> None:
    for room in FACES:
        top = LIBRARY / room.replace(".", "/")
        for folder in (top, *(path for path in top.rglob("*") if path.is_dir())):
            assert len(list(folder.glob("*.py"))) <= MOST_MODULES, folder


@pytest.mark.skipif(
    not LIBRARY.is_dir(), reason="the library is installed, not part of this checkout"
)
def test_library_exceptions_have_one_root() -> None:
    """Classes that are no Exception, as SystemExit, are left out."""
    classes: dict[str, set[str]] = {}  # a name that is used twice has the bases of both
    for path in (LIBRARY / "holdfast").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases = [ast.unparse(base).split(".")[-1] for base in node.bases]
                classes.setdefault(node.name, set()).update(bases)
    assert {"InputError", "Unjudged", "StorageError", "BatchError", "GroupLost"} <= classes.keys()
    rooted = {"HoldfastError"}
    while children := {name for name, bases in classes.items() if bases & rooted} - rooted:
        rooted |= children
    python = set()
    for name, kind in vars(builtins).items():
        if isinstance(kind, type) and issubclass(kind, Exception):
            python.add(name)
    rootless = []
    for name, bases in classes.items():
        if bases & python and name not in rooted:
            rootless.append(name)
    assert not rootless, "derive them from holdfast.support.errors.HoldfastError"


def test_vocabularies_need_the_standard_library_only() -> None:
    files = [
        *(ROOT / "infra/contract").glob("*.py"),
        *(LIBRARY / "holdfast/vocabulary").glob("*.py"),
    ]
    for path in sorted(files):
        own_rooms = ("holdfast.vocabulary", "holdfast.support", "infra.contract")
        foreign = set()
        for name in imports(path):
            if not name.startswith(own_rooms):
                foreign.add(name)
        assert {name.split(".")[0] for name in foreign} <= sys.stdlib_module_names, path
